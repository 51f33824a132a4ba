"""Log-probabilities in OpenAI's two shapes and vLLM's third one for prompts."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from octavo.text.logprobs import PositionLogprobs, Positions
from octavo.text.tokenizer import Tokenizer

MOST_KEPT = 1 << 15  # tokens whose names are kept, of each tokenizer; some ten megabytes


class Name(NamedTuple):
    """What a token is called, and the chat shape's object for it but for the number: what stands before and behind."""

    text: str
    before: bytes
    behind: bytes


class TokenNames(dict[int, Name]):
    """How tokens are called, by id: by their text, or ``token_id:N`` where the caller asks for ids."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        super().__init__()
        self._bytes_of = tokenizer.token_bytes
        self._as_ids = as_ids

    def __missing__(self, token: int) -> Name:
        if len(self) >= MOST_KEPT:
            self.clear()
        data = self._bytes_of(token)
        text = f"token_id:{token}" if self._as_ids else data.decode("utf-8", "replace")
        before = msgspec.json.encode({"token": text})[:-1] + b',"logprob":'
        name = self[token] = Name(text, before, b',"bytes":' + msgspec.json.encode(list(data)) + b"}")
        return name


@lru_cache(maxsize=8)
def names_of(tokenizer: Tokenizer, as_ids: bool) -> TokenNames:
    """The table for this tokenizer, shared by all requests."""
    return TokenNames(tokenizer, as_ids)


def chat_content(names: TokenNames, positions: Positions) -> list[msgspec.Raw]:
    """The chat shape: one object a token, with its bytes and the likeliest ones."""
    name_of, found = names.__getitem__, []
    for _, ids, values in positions.columns():
        numbers = msgspec.json.encode(values)[1:-1].split(b",")
        (_, before, behind), *others = map(name_of, ids)
        top = b",".join([b"%b%b%b" % (head, number, tail) for (_, head, tail), number in zip(others, numbers[1:])])
        found.append(msgspec.Raw(b'%b%b%b,"top_logprobs":[%b]}' % (before, numbers[0], behind[:-1], top)))
    return found


class LegacyLogprobs:
    """The completions shape: four lists that run in parallel. ``text_offset`` counts characters of one choice."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._offset = 0

    def render(
        self, first: int, prompt: Sequence[PositionLogprobs | None], output: Positions | None
    ) -> dict[str, list[Any]] | None:
        """The next run of tokens, of the prompt and behind it; None where there are none. An entry of None, the
        beginning of a prompt, is the token `first`."""
        rows = [_row(entry) for entry in prompt]
        if output is not None:
            rows += [(ids, values) for _, ids, values in output.columns()]
        if not rows:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for ids, values in rows:
            names = [self._names[token].text for token in ids or (first,)]
            found["tokens"].append(names[0])
            found["token_logprobs"].append(values[0] if ids else None)
            found["top_logprobs"].append(self._likeliest(names, values) if ids else None)
            found["text_offset"].append(self._offset)
            self._offset += len(names[0])
        return found

    def _likeliest(self, names: list[str], values: list[float]) -> dict[str, float]:
        """The likeliest and the chosen one, which comes first in both lists: at most one more than asked for, as OpenAI
        documents."""
        found: dict[str, float] = {}
        for place in (*range(1, len(names))[: self._top], 0):
            found.setdefault(names[place], values[place])  # two tokens may share a text
        return found


def _row(entry: PositionLogprobs | None) -> tuple[list[int], list[float]]:
    told = () if entry is None else (entry.chosen, *entry.top)
    return [one.id for one in told], [one.logprob for one in told]


def prompt_positions(entries: Iterable[PositionLogprobs | None]) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's ``prompt_logprobs``: by position, token id to its log-probability, rank and text."""
    return [None if entry is None else _ranked(entry) for entry in entries]


def _ranked(position: PositionLogprobs) -> dict[str, dict[str, Any]]:
    return {
        str(entry.id): {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.token}
        for entry in (*position.top, position.chosen)
    }
