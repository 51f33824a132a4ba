"""Tokens to text as they come: never half a character, never a byte of the prompt. (Half an emoji: graphemes.py.)

The fast road looks each token's bytes up in a table and runs them through an incremental UTF-8 decoder. Tokenizers
whose decoder needs neighbouring tokens go by decoding a window of ids and showing what it adds.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from octavo.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")
_NONE: frozenset[int] = frozenset()


class Characters(Protocol):
    """Whole characters out of tokens."""

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        ...

    def flush(self) -> str:
        """What incomplete bytes at the end come to."""
        ...


def characters(
    tokenizer: Tokenizer,
    prompt: Sequence[int] = (),
    *,
    skip_special: bool = True,
    shown: frozenset[int] = _NONE,
) -> Characters:
    """The decoder that fits the tokenizer, for text that continues `prompt`. `shown`: special tokens not skipped."""
    if tokenizer.pieces is None:
        return WindowCharacters(tokenizer, prompt, skip_special=skip_special, shown=shown)
    return TableCharacters(tokenizer, prompt, skip_special=skip_special, shown=shown)


class TableCharacters:
    """Bytes by table, characters by an incremental decoder; bytes that are not UTF-8 become U+FFFD."""

    __slots__ = ("_decode", "_pieces", "_skip", "_strip")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special: bool = True,
        shown: frozenset[int] = _NONE,
    ) -> None:
        assert tokenizer.pieces is not None
        self._pieces = tokenizer.pieces
        skip = tokenizer.special_ids if skip_special else _NONE
        self._skip = skip - shown
        self._decode = _UTF8("replace").decode
        # SentencePiece drops the first space of a text, and a text that continues a prompt is not at its start.
        self._strip = tokenizer.pieces.strip_first and all(token in skip for token in prompt)

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        pieces, skip = self._pieces, self._skip
        if len(tokens) == 1:
            token = tokens[0]
            data = b"" if token in skip else pieces[token]
        else:
            data = b"".join([pieces[token] for token in tokens if token not in skip])
        if self._strip and data:
            self._strip = False
            if data[:1] == b" ":
                data = data[1:]
        return self._decode(data)

    def flush(self) -> str:
        """What incomplete bytes at the end come to."""
        return self._decode(b"", True)


class WindowCharacters:
    """Decodes a window of ids and shows what the new ones add, as text-generation-inference does.

    The window is the ids shown last and those not shown yet, so that the decoder sees what stands before.
    """

    _CONTEXT = 8  # ids of the prompt that the decoder sees before the first new one
    _MAX_WAIT = 16  # ids that may stay unfinished: bytes that are no character must not be held for ever

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special: bool = True,
        shown: frozenset[int] = _NONE,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids - shown if skip_special else _NONE
        self._ids = list(prompt[-self._CONTEXT :])
        self._shown = len(self._ids)

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        return "".join([self._one(token) for token in tokens])

    def flush(self) -> str:
        """What incomplete bytes at the end come to."""
        return self._show(self._text(self._ids))

    def _one(self, token: int) -> str:
        self._ids.append(token)
        text = self._text(self._ids)
        if text.endswith("\ufffd") and len(self._ids) - self._shown < self._MAX_WAIT:
            return ""
        return self._show(text)

    def _show(self, text: str) -> str:
        new = text[len(self._text(self._ids[: self._shown])) :]
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return new

    def _text(self, ids: list[int]) -> str:
        skip = self._skip
        return self._tokenizer.decode([token for token in ids if token not in skip], skip_special=False)
