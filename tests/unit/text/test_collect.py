"""Collectors: the same text, tokens and reasons however the engine cuts its outputs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_kit import CORPUS, train_backend

from octavo.base.params import SamplingParams
from octavo.base.scores import TokenLogprobs, write
from octavo.base.wire import TokenOutput
from octavo.text.collect import Collector, TextDelta
from octavo.text.tokenizer import Tokenizer

BACKEND = train_backend(400)
EOS = BACKEND.token_to_id("<|im_end|>")
TOKENIZER = Tokenizer(BACKEND, eos_ids=[EOS])


def outputs(tokens: list[int], cuts: list[int], finish: str, logprobs: bool = False) -> list[TokenOutput]:
    """The engine's outputs: `tokens` in runs of the given lengths, the last of them in the last run."""
    runs, rest = [], tokens[:-1]
    for cut in cuts:
        runs.append(rest[:cut])
        rest = rest[cut:]
    runs.append([*rest, *tokens[-1:]])
    last = len(runs) - 1
    stop = tokens[-1] if finish == "stop" else None
    return [
        TokenOutput(
            "r",
            run,
            finish=finish if index == last else None,
            stop_token=stop if index == last else None,
            logprobs=write([TokenLogprobs(token, -0.5, 1, [token, 1], [-0.5, float("-inf")]) for token in run])
            if logprobs
            else b"",
        )
        for index, run in enumerate(runs)
    ]


def run(params: SamplingParams, stream: list[TokenOutput], **options: Any) -> tuple[Collector, list[TextDelta]]:
    collector = Collector(TOKENIZER, params, options.pop("prompt", [5, 6]), **options)
    return collector, [collector.feed(output) for output in stream]


def totals(collector: Collector, deltas: list[TextDelta]) -> tuple[Any, ...]:
    assert "".join(delta.text for delta in deltas) == collector.text
    assert [token for delta in deltas for token in delta.tokens] == collector.tokens
    finishes = [delta.finish_reason for delta in deltas if delta.finish_reason]
    assert finishes == [collector.finish_reason]
    return collector.text, collector.tokens, collector.finish_reason, collector.stop_reason, len(collector.logprobs)


tokens_of = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=30) | st.sampled_from(CORPUS).map(
    TOKENIZER.encode
)


@given(
    tokens_of,
    st.lists(st.integers(0, 4), max_size=20),
    st.lists(st.sampled_from(["a", "the", "fox", "\n", "你", "😀", "\ufffd", "re", "return"]), max_size=3),
    st.booleans(),
    st.sampled_from(["stop", "length"]),
    st.integers(0, 6),
)
@settings(deadline=None, max_examples=200)
def test_stream_equals_whole(
    tokens: list[int], cuts: list[int], stops: list[str], include: bool, finish: str, minimum: int
) -> None:
    params = SamplingParams(
        stop=stops, include_stop_str_in_output=include, min_tokens=minimum, logprobs=1, stop_token_ids=[7]
    )
    whole = totals(*run(params, outputs(tokens, [], finish, True)))
    assert totals(*run(params, outputs(tokens, cuts, finish, True))) == whole
    text, kept, reason, stop, count = whole
    assert count == len(kept)
    assert reason in ("stop", "length")
    if isinstance(stop, str):
        assert text.endswith(stop) or not include
        assert kept == tokens[: len(kept)]
        if not include and not minimum:
            assert not any(other in text for other in stops)
    elif stops == []:
        silent = finish == "stop" and not include
        assert text == TOKENIZER.decode(tokens[:-1] if silent else tokens)


def feed_text(text: str, params: SamplingParams) -> tuple[Collector, list[TextDelta]]:
    tokens = TOKENIZER.encode(text)
    return run(params, outputs(tokens, [1] * (len(tokens) - 1), "length"))


def test_a_stop_string_ends_the_sequence_and_asks_for_an_abort() -> None:
    collector, deltas = feed_text("The quick brown fox jumps over", SamplingParams(stop=["own f", "over"]))
    assert collector.text == "The quick br"
    assert (collector.finish_reason, collector.stop_reason) == ("stop", "own f")
    ended = next(delta for delta in deltas if delta.finish_reason)
    assert ended.needs_abort
    assert TOKENIZER.decode(collector.tokens[:-1]).find("own f") < 0 <= TOKENIZER.decode(collector.tokens).find("own f")
    assert deltas[-1] == TextDelta()
    assert collector.feed(TokenOutput("r", [], finish="abort")) == TextDelta()


def test_no_part_of_a_stop_string_is_shown_early() -> None:
    collector, deltas = feed_text("The quick brown fox", SamplingParams(stop=["quick brown dog"]))
    shown = ""
    for delta in deltas[:-1]:
        shown += delta.text
        assert "quick" not in shown or "fox" in shown or " f" in shown
    assert collector.text == "The quick brown fox"
    assert collector.finish_reason == "length"


def test_a_stop_in_the_last_output_needs_no_abort() -> None:
    tokens = TOKENIZER.encode("fox")
    collector, deltas = run(SamplingParams(stop="ox"), outputs(tokens, [], "length"))
    assert (collector.text, collector.finish_reason, deltas[-1].needs_abort) == ("f", "stop", False)


def test_end_of_sequence_and_stop_tokens() -> None:
    tokens = TOKENIZER.encode("fox")
    collector, _ = run(SamplingParams(), outputs([*tokens, EOS], [], "stop"))
    assert (collector.text, collector.num_output_tokens, collector.stop_reason) == ("fox", len(tokens) + 1, None)
    comma = TOKENIZER.encode(",")[0]
    params = SamplingParams(stop_token_ids=[comma])
    collector, _ = run(params, outputs([*tokens, comma], [], "stop"))
    assert (collector.text, collector.stop_reason) == ("fox", comma)
    collector, _ = run(params.replace(include_stop_str_in_output=True), outputs([*tokens, comma], [], "stop"))
    assert collector.text == "fox,"
    collector, _ = run(SamplingParams(skip_special_tokens=False), outputs([EOS, *tokens], [], "length"))
    assert collector.text == "<|im_end|>fox"


def test_min_tokens_hold_stop_strings_off() -> None:
    tokens = TOKENIZER.encode("a, b, c,")
    for minimum in range(len(tokens)):
        collector, _ = run(SamplingParams(stop=",", min_tokens=minimum), outputs(tokens, [], "length"))
        assert collector.num_output_tokens > minimum
        assert collector.stop_reason == ","


def test_held_text_comes_at_the_end() -> None:
    tokens = TOKENIZER.encode("hi 👩‍👩‍👧")
    collector, deltas = run(SamplingParams(), outputs(tokens, [1] * len(tokens), "length"))
    assert collector.text == "hi 👩‍👩‍👧"
    assert [delta.text for delta in deltas if "👩" in delta.text] == ["👩‍👩‍👧"]


def test_logprobs_have_text_bytes_and_no_infinity() -> None:
    tokens = TOKENIZER.encode("🦑")
    collector, _ = run(SamplingParams(logprobs=2), outputs(tokens, [], "length", True))
    first = collector.logprobs[0]
    assert first.chosen.token == "\ufffd"
    assert bytes(first.chosen.bytes) == "🦑".encode()[: len(first.chosen.bytes)]
    assert [top.rank for top in first.top] == [1, 2]
    assert first.top[1].logprob == -9999.0


@pytest.mark.parametrize("cuts", [[], [1, 1, 1], [2, 3]])
def test_positions_are_a_sequence_however_they_came(cuts: list[int]) -> None:
    tokens = TOKENIZER.encode("The quick brown fox")
    collector, deltas = run(SamplingParams(logprobs=2), outputs(tokens, cuts, "length", True))
    found = collector.logprobs
    assert len(found) == len(tokens)
    assert [each.chosen.id for each in found] == [each.chosen.id for each in found[:]] == tokens
    assert found[-1] == found[len(found) - 1] == deltas[-1].logprobs[-1]
    assert found.chosen() == [-0.5] * len(tokens)
    assert found.columns()[0] == (1, [tokens[0], tokens[0], 1], [-0.5, -0.5, -9999.0])
    with pytest.raises(IndexError):
        found[len(found)]
    assert [len(delta.logprobs or ()) for delta in deltas] == [len(delta.tokens) for delta in deltas]


def test_echo_gives_prompt_text_and_logprobs_once() -> None:
    prompt = TOKENIZER.encode("The fox")
    values = [TokenLogprobs(token, -1.0, 2, [3], [-0.1]) for token in prompt[1:]]
    stream = [
        TokenOutput("r", [], prompt_logprobs=write([None, *values[:1]]), cached_tokens=2),
        TokenOutput("r", [], prompt_logprobs=write(values[1:])),
        TokenOutput("r", TOKENIZER.encode(" jumps")),
        TokenOutput("r", TOKENIZER.encode(" over"), finish="length"),
    ]
    params = SamplingParams(prompt_logprobs=1)
    collector, deltas = run(params, stream, prompt=prompt, echo=True)
    assert collector.text == "The fox jumps over"
    assert [delta.prompt_logprobs is not None for delta in deltas] == [False, False, True, False]
    assert collector.prompt_logprobs is not None
    assert collector.prompt_logprobs[0] is None
    assert [entry.chosen.id for entry in collector.prompt_logprobs if entry] == prompt[1:]
    assert collector.cached_tokens == 2
    collector, _ = run(
        SamplingParams(max_tokens=0), stream[2:3] + stream[3:], prompt=prompt, echo=True, hide_output=True
    )
    assert (collector.text, collector.tokens, collector.finish_reason) == ("The fox", [], "length")


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_other_ends(finish: str) -> None:
    collector = Collector(TOKENIZER, SamplingParams(), [1])
    collector.feed(TokenOutput("r", TOKENIZER.encode("fox")))
    delta = collector.feed(TokenOutput("r", [], finish=finish, error="no", error_code=503))
    assert collector.error == ("no" if finish == "error" else None)
    assert delta.finish_reason == collector.finish_reason == finish
    assert not delta.needs_abort


def test_without_detokenizing_there_is_no_text() -> None:
    collector, _ = run(SamplingParams(detokenize=False), outputs([1, 2, 3], [1], "length"))
    assert (collector.text, collector.tokens) == ("", [1, 2, 3])
