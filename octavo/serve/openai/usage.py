"""Token counts of one answer."""

from typing import Any

import msgspec

from octavo.serve.generate import Piece


class Usage:
    """Counts as pieces arrive. A prompt counts once, however many choices continue it."""

    def __init__(self, prompt_lengths: list[int], choices_per_prompt: int) -> None:
        self._n = choices_per_prompt
        self.prompt_tokens = sum(prompt_lengths)
        self.completion_tokens = 0
        self._cached = [0] * len(prompt_lengths)

    def add(self, piece: Piece) -> None:
        self.completion_tokens += len(piece.delta.tokens)
        if piece.index % self._n == 0:  # the siblings of a prompt find what the first one computed
            prompt = piece.index // self._n
            self._cached[prompt] = max(self._cached[prompt], piece.cached_tokens)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
        }

    def as_json(self) -> bytes:
        return msgspec.json.encode(self.as_dict())
