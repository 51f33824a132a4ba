"""Token counts of one answer."""

from collections.abc import Sequence
from typing import Any

from octavo.text.collect import Collector


def usage_of(collectors: Sequence[Collector], choices_per_prompt: int) -> dict[str, Any]:
    """Counts up to now. A prompt counts once, however many choices continue it; so do its cached tokens, as the
    first choice found them, since the others find what that one computed."""
    firsts = collectors[::choices_per_prompt]
    prompt = sum(collector.num_prompt_tokens for collector in firsts)
    completion = sum(collector.num_output_tokens for collector in collectors)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(collector.cached_tokens for collector in firsts)},
    }
    speakers = [collector.speaker for collector in collectors if collector.speaker is not None]
    if speakers:
        thought = sum(speaker.reasoning_tokens for speaker in speakers)
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage
