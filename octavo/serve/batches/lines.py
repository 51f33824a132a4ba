"""A batch's input: JSON lines, each a request. One bad line is one bad answer and never the end of the rest."""

from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Raw, Struct

from octavo.base.config import LimitsConfig
from octavo.base.errors import UserError, bad_value
from octavo.serve.decode import check_shape
from octavo.serve.errors import invalid_json

BOM = b"\xef\xbb\xbf"
READ_BYTES = 1 << 20
MAX_ID = 512


class BatchLine(Struct, kw_only=True):
    """One request. `body` stays JSON until its endpoint reads it."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
    url: Annotated[str, Meta(max_length=256)]
    body: Raw
    method: str = "POST"


class _Modes(Struct):
    """Ways to answer that a line of a file cannot have."""

    stream: Any = None
    background: Any = None


_LINE = msgspec.json.Decoder(BatchLine)
_MODES = msgspec.json.Decoder(_Modes)


def read_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Number (from 1) and content of the lines that are not blank; None for a line that is too long.

    A byte order mark, carriage returns and a missing end of the last line are nothing unusual. Holds one line and
    one block in memory, whatever the file is like.
    """
    number, rest, too_long, first = 0, b"", False, True
    while True:
        block = file.read(READ_BYTES)
        ended = not block
        if first:
            block, first = block.removeprefix(BOM), False
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield from _line(number, line, max_bytes, too_long)
            too_long = False
        if ended:
            yield from _line(number + 1, rest, max_bytes, too_long)
            return
        if len(rest) > max_bytes:
            rest, too_long = b"", True


def _line(number: int, line: bytes, max_bytes: int, too_long: bool) -> Iterator[tuple[int, bytes | None]]:
    line = line.strip()
    if too_long or len(line) > max_bytes:
        yield number, None
    elif line:
        yield number, line


def count_lines(file: BinaryIO, max_bytes: int) -> int:
    """How many requests there are, bad ones included."""
    return sum(1 for _ in read_lines(file, max_bytes))


def parse_line(line: bytes | None, max_bytes: int, limits: LimitsConfig) -> BatchLine:
    """The request of a line. UserError says what is wrong with it."""
    if line is None:
        raise UserError(f"The line has more than {max_bytes} bytes.", code="line_too_long")
    check_shape(line, limits)
    try:
        found = _LINE.decode(line)
        if bytes(memoryview(found.body)[:1]) != b"{":
            raise bad_value("body", "must be an object")
        modes = _MODES.decode(found.body)
    except msgspec.DecodeError as exc:
        raise invalid_json(exc) from None
    except (RecursionError, UnicodeDecodeError):
        raise UserError("The line is not valid JSON.", code="invalid_json") from None
    if found.method != "POST":
        raise bad_value("method", "must be POST")
    for name in ("stream", "background"):
        if getattr(modes, name):
            raise UserError(f"{name} cannot be asked for in a batch.", param=f"body.{name}", code="invalid_value")
    return found


def id_of(line: bytes | None) -> str | None:
    """The custom_id of a line that could not be read as a request, if one can be seen."""
    try:
        found = msgspec.json.decode(line or b"", type=dict[str, Any]).get("custom_id")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found[:MAX_ID] if isinstance(found, str) else None
