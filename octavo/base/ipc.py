"""Messages between the processes of one machine: msgpack structs over ZeroMQ, one frame a message.

A frame is the 16-byte key of this start, then the message. Whoever reads binds and whoever writes connects, so a
stranger can at most send frames; without the key, too long, in parts or not of the wire's types, they are counted
and dropped. The sockets lie in a folder that only this user may enter. Nothing is ever unpickled.
"""

import asyncio
import fcntl
import hmac
import logging
import os
import secrets
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

log = logging.getLogger(__name__)

KEY_BYTES = 16
MAX_FRAME_BYTES = 128 << 20
"""Longest frame in bytes. A request of 2^24 tokens, the longest allowed, takes at most 84 million."""

_PREFIX = "octavo-"
_LOCK = "lock"
_MAX_BASE_PATH = 64  # a socket's whole path may have 103 bytes on some systems, 107 on Linux
_MAX_SWEPT = 1000

T = TypeVar("T")


class FrameTooLong(ValueError):
    """A message that would not fit in a frame."""


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class RuntimeDir:
    """A private folder (mode 0700) for sockets, removed with `remove`.

    It holds a locked file while its process lives; folders that a killed process left behind have none and go.
    """

    def __init__(self) -> None:
        wanted = os.environ.get("XDG_RUNTIME_DIR")
        usable = wanted and os.access(wanted, os.W_OK | os.X_OK) and len(os.fsencode(wanted)) < _MAX_BASE_PATH
        base = Path(wanted if wanted and usable else tempfile.gettempdir())
        if len(os.fsencode(base)) >= _MAX_BASE_PATH:
            base = Path("/tmp")
        _sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        # Under its name only once it is locked: another process that starts now would sweep the folder away.
        unlocked = self.path / "unlocked"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self.path / _LOCK)

    def address(self, name: str) -> str:
        """The ZeroMQ address of the socket `name` (at most 15 characters) in this folder."""
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        """Delete the folder and give up the lock. Safe to call again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(base: Path) -> None:
    """Remove our own folders under `base` whose process is gone."""
    for folder in islice(base.glob(_PREFIX + "*"), _MAX_SWEPT):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or not yet locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)


class Sender:
    """The writing end. Not for use by two threads."""

    def __init__(self, context: "zmq.Context[Any]", address: str, key: bytes, high_water: int = 10_000) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.socket(context, zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, high_water)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._key = key
        self._buffer = bytearray()

    def send(self, message: msgspec.Struct, *, wait: bool = True) -> bool:
        """Queue a message. False if the peer is so far behind that the queue is full and `wait` is false.

        Raises FrameTooLong before anything is sent.
        """
        self._buffer[:] = self._key
        self._encoder.encode_into(message, self._buffer, KEY_BYTES)
        if len(self._buffer) > MAX_FRAME_BYTES:
            size, self._buffer = len(self._buffer), bytearray()
            raise FrameTooLong(f"a message of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        try:
            self._socket.send(self._buffer, flags=0 if wait else zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """Close; messages not yet sent get `linger_s` seconds to leave."""
        self._socket.close(linger=int(linger_s * 1000))


class _Frames(Generic[T]):
    """Checks and decodes frames; what does not pass is counted and dropped."""

    def __init__(self, key: bytes, kind: Any) -> None:
        self._key = key
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self.dropped = 0

    def decode(self, parts: list[bytes]) -> T | None:
        if len(parts) == 1 and hmac.compare_digest(parts[0][:KEY_BYTES], self._key):
            try:
                return self._decoder.decode(memoryview(parts[0])[KEY_BYTES:])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # the 1st, 2nd, 4th ...: a flood must not fill the log
            log.warning("dropped %d frames that were not ours or not well formed", self.dropped)
        return None


class Receiver(Generic[T]):
    """The reading end, for a loop of its own. `kind` is the union of the structs that may come."""

    def __init__(self, context: "zmq.Context[Any]", address: str, key: bytes, kind: Any) -> None:
        self._socket = context.socket(zmq.PULL)
        _bind(self._socket, address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._frames: _Frames[T] = _Frames(key, kind)

    @property
    def dropped(self) -> int:
        """Frames that were not for us or not well formed."""
        return self._frames.dropped

    def receive(self, timeout_s: float | None = 0.0) -> T | None:
        """The next message that is waiting, else None after `timeout_s` seconds; None waits for ever.

        A dropped frame gives None too, so that a flood of them cannot hold the caller here.
        """
        if not self._poller.poll(None if timeout_s is None else int(timeout_s * 1000)):
            return None
        try:
            parts = self._socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._frames.decode(parts)

    def close(self) -> None:
        self._socket.close(linger=0)


class AsyncReceiver(Generic[T]):
    """The reading end, for an asyncio loop; all messages that are there can be had in one turn of it."""

    def __init__(self, context: zmq.asyncio.Context, address: str, key: bytes, kind: Any) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.shadow(context.underlying).socket(zmq.PULL)
        _bind(self._socket, address)
        self._frames: _Frames[T] = _Frames(key, kind)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def dropped(self) -> int:
        """Frames that were not for us or not well formed."""
        return self._frames.dropped

    async def receive(self) -> T:
        """The next well-formed message."""
        while True:
            message = self.receive_now()
            if message is not None:
                return message
            await self._news()

    def receive_now(self) -> T | None:
        """The next well-formed message that is there already."""
        while True:
            state: Any = self._socket.getsockopt(zmq.EVENTS)
            if not state & zmq.POLLIN:
                return None  # to try and fail costs twice as much
            try:
                parts = self._socket.recv_multipart(flags=zmq.NOBLOCK)
            except zmq.Again:
                return None
            message = self._frames.decode(parts)
            if message is not None:
                return message

    async def _news(self) -> None:
        """Until the socket has news. It tells of them once: only one that was read empty may be waited for."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.FD, self._wake)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)


def _bind(socket: Any, address: str) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 10_000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.bind(address)
