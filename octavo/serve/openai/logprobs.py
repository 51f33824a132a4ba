"""Log-probabilities in OpenAI's two shapes and vLLM's third one for prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.text.logprobs import Logprob, PositionLogprobs


class TokenNames:
    """How tokens are called: by their text, or ``token_id:N`` where the caller asks for ids."""

    def __init__(self, as_ids: bool = False) -> None:
        self._as_ids = as_ids

    def of(self, token: int, text: str) -> str:
        """What to call a token of this id and text."""
        return f"token_id:{token}" if self._as_ids else text

    def name(self, entry: Logprob) -> str:
        """What to call this entry."""
        return self.of(entry.id, entry.token)


def chat_content(names: TokenNames, entries: Iterable[PositionLogprobs]) -> list[dict[str, Any]]:
    """The chat shape: one object a token, with its bytes and the likeliest ones."""
    return [
        {**_chat_token(names, entry.chosen), "top_logprobs": [_chat_token(names, other) for other in entry.top]}
        for entry in entries
    ]


def _chat_token(names: TokenNames, entry: Logprob) -> dict[str, Any]:
    return {"token": names.name(entry), "logprob": entry.logprob, "bytes": entry.bytes}


class LegacyLogprobs:
    """The completions shape: four lists that run in parallel. ``text_offset`` counts characters of one choice."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._offset = 0

    def render(self, first: str, entries: Sequence[PositionLogprobs | None]) -> dict[str, list[Any]]:
        """The next run of tokens. An entry of None, the beginning of a prompt, is called `first`."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            name = first if entry is None else self._names.name(entry.chosen)
            found["tokens"].append(name)
            found["token_logprobs"].append(None if entry is None else entry.chosen.logprob)
            found["top_logprobs"].append(None if entry is None else self._likeliest(entry))
            found["text_offset"].append(self._offset)
            self._offset += len(name)
        return found

    def _likeliest(self, entry: PositionLogprobs) -> dict[str, float]:
        """The likeliest and the chosen one: at most one more than asked for, as OpenAI documents."""
        found: dict[str, float] = {}
        for other in (*entry.top[: self._top], entry.chosen):
            found.setdefault(self._names.name(other), other.logprob)  # two tokens may share a text
        return found


def prompt_positions(entries: Iterable[PositionLogprobs | None]) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's ``prompt_logprobs``: by position, token id to its log-probability, rank and text."""
    return [None if entry is None else _ranked(entry) for entry in entries]


def _ranked(position: PositionLogprobs) -> dict[str, dict[str, Any]]:
    return {
        str(entry.id): {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.token}
        for entry in (*position.top, position.chosen)
    }
