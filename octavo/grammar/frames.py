"""What passes between the engine and the process that tries constraints out: msgpack, a length before each."""

import os
import struct
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from octavo.base.wire import Vocabulary
from octavo.grammar.base import Form
from octavo.grammar.closings import Closings
from octavo.grammar.spec import GrammarSpec

MAX_FRAME_BYTES = 64 << 20
LENGTH = 4  # bytes of a frame's length
PATIENCE_S = 1.6  # from a constraint's coming to its refusal
STARVED_S = 20.0  # beyond a deadline, for a constraint that a busy machine gives no time to


class Setup(Struct, frozen=True, array_like=True):
    """The first frame."""

    vocabulary: Vocabulary
    width: int
    memory_bytes: int  # that compiling may take


class Job(Struct, frozen=True, array_like=True):
    """A constraint to try with one engine. Without a spec: only load the engine. With `glance`: only what is seen
    without compiling, for which the engine need not be loaded."""

    number: int
    backend: str
    spec: GrammarSpec | None = None
    glance: bool = False
    deadline_s: float = 0.0  # of the monotonic clock, which all processes of a machine share


class Verdict(Struct, frozen=True, array_like=True):
    """How it went. `form`: without its hints, which `closings` holds in tokens. `opening`: a short whole text in
    tokens, if one was found."""

    form: Form | None = None
    opening: list[int] | None = None
    closings: Closings | None = None
    error: str | None = None
    param: str | None = None
    refused: bool = False  # another engine may do better
    passing: bool = False  # an error of this hour: another time it may go well
    busy: bool = False  # no verdict: the machine was too busy for one


class Answer(Struct, frozen=True, array_like=True):
    """The verdict on the job of this number."""

    number: int
    verdict: Verdict


class Broken(Exception):
    """The other side is gone, or sent what is no frame."""


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def read_frame(descriptor: int) -> bytes:
    """One frame. Raises Broken at the end of the stream."""
    return receive_frame(partial(os.read, descriptor))


def receive_frame(receive: Callable[[int], bytes]) -> bytes:
    """The same from what gives at most so many bytes, none at the end."""
    (size,) = struct.unpack(">I", _receive(receive, LENGTH))
    if size > MAX_FRAME_BYTES:
        raise Broken(f"a frame of {size} bytes")
    return _receive(receive, size)


def write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _receive(receive: Callable[[int], bytes], size: int) -> bytes:
    parts, missing = [], size
    while missing:
        data = receive(min(missing, 1 << 20))
        if not data:
            raise Broken("the stream has ended")
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
