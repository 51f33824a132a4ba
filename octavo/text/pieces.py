"""What each token stands for in bytes, worked out from the tokenizer's decoder when first asked for.

Byte-level BPE (GPT-2, Llama 3, Qwen) writes a token as printable stand-ins of its bytes; SentencePiece models write
a space as U+2581 and single bytes as ``<0x0A>``. Any other decoder gives no table, and `bytes_table` says None.
"""

import json
import re
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
MANY = 2048  # tokens that are converted in one go


def _stand_ins() -> dict[str, int]:
    """GPT-2's map of bytes to printable characters, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_STAND_INS = _stand_ins()
_NO_STAND_IN = 0xFFFD
_TO_LATIN = {code: _STAND_INS.get(chr(code), _NO_STAND_IN) for code in range(256 + 68)}
"""For str.translate: each stand-in to the character of its byte, what is none to one that Latin-1 lacks."""


class Pieces(dict[int, bytes]):
    """Token id -> bytes; ids that the vocabulary does not have are empty.

    `strip_first`: the decoder drops one space at the very start of a text.
    """

    def __init__(
        self, backend: Backend, added: dict[int, AddedToken], *, byte_level: bool, byte_fallback: bool
    ) -> None:
        super().__init__()
        self._backend = backend
        self._byte_level = byte_level
        self._byte_fallback = byte_fallback
        self.strip_first = False
        for token, entry in added.items():
            self[token] = entry.content.encode("utf-8", "replace")

    def __missing__(self, token: int) -> bytes:
        if not 0 <= token < 1 << 32:
            return b""
        text = self._backend.id_to_token(token)
        value = b"" if text is None else self._convert(text)
        if text is not None:  # a hostile stream of unknown ids must not grow the table
            self[token] = value
        return value

    def listed(self, count: int) -> list[bytes]:
        """All tokens with ids below `count`, worked out together: far quicker than one by one. Nothing is kept."""
        name = self._backend.id_to_token
        found: list[bytes] = []
        for start in range(0, count, MANY):
            found += self._converted([name(token) or "" for token in range(start, min(start + MANY, count))])
        for token, value in dict(self).items():  # the added ones are not written in stand-ins
            if token < count:
                found[token] = value
        return found

    def _converted(self, texts: list[str]) -> list[bytes]:
        if not self._byte_level:
            return [self._convert(text) for text in texts]
        try:
            data = "".join(texts).translate(_TO_LATIN).encode("latin-1")
        except UnicodeEncodeError:
            return [self._convert(text) for text in texts]
        ends = [0, *accumulate(map(len, texts))]  # one byte for each character
        return [data[start:end] for start, end in pairwise(ends)]

    def _convert(self, text: str) -> bytes:
        if self._byte_level:
            try:
                return text.translate(_TO_LATIN).encode("latin-1")
            except UnicodeEncodeError:
                return text.encode("utf-8", "replace")
        match = _BYTE.fullmatch(text) if self._byte_fallback else None
        if match:
            return bytes([int(match[1], 16)])
        return text.replace(_SPACE, " ").encode("utf-8", "replace")


def bytes_table(backend: Backend) -> Pieces | None:
    """The table for this tokenizer, or None if its decoder is of a kind that needs neighbouring tokens."""
    decoder = _state(backend.decoder)
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [step.get("type") for step in steps]
    added = backend.get_added_tokens_decoder()
    if kinds == ["ByteLevel"]:
        return Pieces(backend, added, byte_level=True, byte_fallback=False)
    strip_first = False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and step.get("pattern") == {"String": _SPACE} and step.get("content") == " ":
            continue
        if kind == "Strip" and step.get("content") == " " and (step.get("start"), step.get("stop")) == (1, 0):
            strip_first = True
        elif kind == "Metaspace" and step.get("replacement") == _SPACE:
            strip_first = strip_first or step.get("prepend_scheme") != "never"
        elif kind not in ("ByteFallback", "Fuse"):
            return None
    if not {"Replace", "Metaspace"} & set(kinds):
        return None
    pieces = Pieces(backend, added, byte_level=False, byte_fallback="ByteFallback" in kinds)
    pieces.strip_first = strip_first
    return pieces


def _state(part: Any) -> dict[str, Any]:
    """The JSON form of one part of a tokenizer."""
    if part is None:
        return {}
    state = json.loads(part.__getstate__())
    return state if isinstance(state, dict) else {}
