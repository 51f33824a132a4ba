"""From bytes to a checked struct: depth first, then msgspec in strict mode, then the fields nobody knows.

Strict means no coercion anywhere: ``"0.5"`` is not a number, ``1.0`` and ``1E+2`` are not integers, ``true`` is not 1,
``NaN`` and ``Infinity`` are not JSON, ``1e400`` is out of range. Of a repeated key the last one counts.
"""

import re
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from octavo.base.errors import UserError

MAX_DEPTH = 64
MAX_CONTAINERS = 65_536
MAX_STRINGS = 131_072  # keys included
MAX_TOP_KEYS = 256

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

T = TypeVar("T", bound=Struct)


def check_shape(body: bytes) -> None:
    """UserError when the body nests deeper or holds more values than any honest request.

    Runs before the decoder does, without recursion and at the speed of bytes methods: the decoder would make a Python
    object of each value while all other requests wait.
    """
    brackets = body.count(b"[") + body.count(b"{")
    if brackets <= MAX_DEPTH and body.count(b'"') <= MAX_STRINGS:
        return
    rest, strings = _STRING.subn(b"", body)
    if strings > MAX_STRINGS:
        raise UserError(f"The body holds more than {MAX_STRINGS} strings.", code="invalid_json")
    if brackets <= MAX_DEPTH:
        return
    rest = rest.translate(None, _NOT_BRACKETS)
    if len(rest) > 2 * MAX_CONTAINERS:
        raise UserError(f"The body holds more than {MAX_CONTAINERS} lists and objects.", code="invalid_json")
    _check_depth(rest)


def _check_depth(brackets: bytes) -> None:
    """Each pass removes the innermost empty pairs, so well-formed JSON of depth d is gone after d passes."""
    rest = brackets
    for _ in range(MAX_DEPTH):
        shorter = rest.replace(b"[]", b"").replace(b"{}", b"")
        if not shorter:
            return
        if len(shorter) == len(rest):
            break
        rest = shorter
    raise UserError(f"The body is not valid JSON, or nests deeper than {MAX_DEPTH}.", code="invalid_json")


class Schema(Generic[T]):
    """A request struct with its decoder and the names it knows."""

    def __init__(self, struct: type[T], silent: frozenset[str] = frozenset()) -> None:
        """`silent`: fields accepted without effect on the answer, and so not reported as ignored."""
        self._decoder = msgspec.json.Decoder(struct)
        self._top = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(struct.__struct_encode_fields__) | silent

    def decode(self, body: bytes) -> tuple[T, dict[str, msgspec.Raw]]:
        """The struct, and the fields it does not know as raw JSON."""
        check_shape(body)
        try:
            top = self._top.decode(body)
            if len(top) > MAX_TOP_KEYS:
                raise UserError(f"The body has more than {MAX_TOP_KEYS} fields.", code="invalid_json")
            unknown = {name: raw for name, raw in top.items() if name not in self._known}
            return self._decoder.decode(body), unknown
        except (RecursionError, UnicodeDecodeError) as exc:
            raise UserError("The body is not valid JSON.", code="invalid_json") from exc


def plain(raw: msgspec.Raw) -> Any:
    """The value of a raw field; invalid text inside it is the client's fault like any other."""
    return msgspec.json.decode(raw)
