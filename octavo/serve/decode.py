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
MAX_TOP_KEYS = 256

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

T = TypeVar("T", bound=Struct)


def check_depth(body: bytes, limit: int = MAX_DEPTH) -> None:
    """UserError when brackets nest deeper than `limit`, without recursion and at the speed of bytes.replace.

    Each pass removes the innermost empty pairs, so well-formed JSON of depth d is gone after d passes.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    rest = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(limit):
        shorter = rest.replace(b"[]", b"").replace(b"{}", b"")
        if not shorter:
            return
        if len(shorter) == len(rest):
            break
        rest = shorter
    raise UserError(f"The body is not valid JSON, or nests deeper than {limit}.", code="invalid_json")


class Schema(Generic[T]):
    """A request struct with its decoder and the names it knows."""

    def __init__(self, struct: type[T], silent: frozenset[str] = frozenset()) -> None:
        """`silent`: fields accepted without effect on the answer, and so not reported as ignored."""
        self._decoder = msgspec.json.Decoder(struct)
        self._top = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(struct.__struct_encode_fields__) | silent

    def decode(self, body: bytes) -> tuple[T, dict[str, msgspec.Raw]]:
        """The struct, and the fields it does not know as raw JSON."""
        check_depth(body)
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
