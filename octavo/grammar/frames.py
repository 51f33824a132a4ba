"""What passes between the engine and the process that tries constraints out: msgpack, a length before each."""

import os
import select
import struct
import time

from msgspec import Struct

from octavo.base.wire import Vocabulary
from octavo.grammar.base import Form
from octavo.grammar.spec import GrammarSpec

MAX_FRAME_BYTES = 64 << 20


class Setup(Struct, frozen=True, array_like=True):
    """The first frame."""

    vocabulary: Vocabulary
    width: int
    memory_bytes: int  # that compiling may take


class Job(Struct, frozen=True, array_like=True):
    """A constraint to try with one engine. Without a spec: only load the engine. With `glance`: only what is seen
    without compiling, for which the engine need not be loaded."""

    backend: str
    spec: GrammarSpec | None = None
    glance: bool = False


class Verdict(Struct, frozen=True, array_like=True):
    """How it went. `opening`: a short whole text in tokens, if one was found."""

    form: Form | None = None
    opening: list[int] | None = None
    error: str | None = None
    param: str | None = None
    refused: bool = False  # another engine may do better


class Broken(Exception):
    """The other side is gone, or sent what is no frame."""


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def read_frame(descriptor: int, timeout_s: float | None) -> bytes:
    """One frame. Raises Broken at the end of the stream, TimeoutError when time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (size,) = struct.unpack(">I", _read(descriptor, 4, deadline))
    if size > MAX_FRAME_BYTES:
        raise Broken(f"a frame of {size} bytes")
    return _read(descriptor, size, deadline)


def _read(descriptor: int, size: int, deadline: float | None) -> bytes:
    parts, missing = [], size
    while missing:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
        data = os.read(descriptor, min(missing, 1 << 20))
        if not data:
            raise Broken("the stream has ended")
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
