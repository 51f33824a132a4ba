"""Log-probabilities in OpenAI's two shapes and vLLM's third one for prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.base.wire import TokenLogprobs
from octavo.text.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity


class TokenNames:
    """Texts of tokens, or ``token_id:N`` where the caller asks for ids."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self._tokenizer.token_text(token)

    def bytes(self, token: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token))


def chat_content(names: TokenNames, entries: Iterable[TokenLogprobs], top: int) -> list[dict[str, Any]]:
    """The chat shape: one object a token, with its bytes and the `top` likeliest."""
    return [
        {
            **_chat_token(names, entry.token, entry.logprob),
            "top_logprobs": [
                _chat_token(names, token, logprob) for token, logprob in zip(entry.ids[:top], entry.logprobs[:top])
            ],
        }
        for entry in entries
    ]


def _chat_token(names: TokenNames, token: int, logprob: float) -> dict[str, Any]:
    return {"token": names.text(token), "logprob": max(logprob, LEAST), "bytes": names.bytes(token)}


class LegacyLogprobs:
    """The completions shape: four lists that run in parallel. `offset` counts characters over the whole choice."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._offset = 0

    def render(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """The next run of tokens; an entry of None has no log-probability (the first token of a prompt)."""
        texts, values, tops, offsets = [], [], [], []
        for token, entry in zip(tokens, entries):
            text = self._names.text(token)
            texts.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            values.append(None if entry is None else max(entry.logprob, LEAST))
            tops.append(None if entry is None else self._likeliest(entry))
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float]:
        """The likeliest and the chosen one: at most one more than asked for, as OpenAI documents."""
        found: dict[str, float] = {}
        for token, logprob in zip(entry.ids[: self._top], entry.logprobs[: self._top]):
            found.setdefault(self._names.text(token), max(logprob, LEAST))  # two tokens may share a text
        found.setdefault(self._names.text(entry.token), max(entry.logprob, LEAST))
        return found


def prompt_positions(
    names: TokenNames, entries: Iterable[TokenLogprobs | None]
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's ``prompt_logprobs``: by position, token id to its log-probability, rank and text."""
    return [None if entry is None else _ranked(names, entry) for entry in entries]


def _ranked(names: TokenNames, entry: TokenLogprobs) -> dict[str, dict[str, Any]]:
    found = {
        str(token): {"logprob": max(logprob, LEAST), "rank": rank, "decoded_token": names.text(token)}
        for rank, (token, logprob) in enumerate(zip(entry.ids, entry.logprobs), 1)
    }
    found.setdefault(
        str(entry.token),
        {"logprob": max(entry.logprob, LEAST), "rank": entry.rank, "decoded_token": names.text(entry.token)},
    )
    return found
