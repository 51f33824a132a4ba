"""One life of the engine's process: from its start to its end, with sockets and a key of its own.

The next epoch gets other sockets and another key, so nothing that this one still says can be taken for the next one's.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from octavo.base import ipc
from octavo.base.errors import ConfigError, EngineError
from octavo.base.wire import EngineOutput, Fatal, Ready, Shutdown
from octavo.engine.proc import EXIT_CONFIG, Launch
from octavo.engine.process import EngineProcess

log = logging.getLogger(__name__)

EXIT_WAIT_S = 10.0  # after a last word, for the exit code that says whose fault it was
LAST_FRAMES_S = 0.2  # for what a dead process sent before it died
SILENCE_S = 0.03  # so long without a frame, and there are no more

MAX_AT_ONCE = 64  # messages taken before anyone else has a turn

Take = Callable[[list[EngineOutput]], None]
"""Called with what the engine has said, as much as was there at once."""


class Epoch:
    """Made by `start`."""

    def __init__(self, process: EngineProcess, link: "Link", ready: Ready) -> None:
        self.ready = ready
        self._process = process
        self.link = link
        self._condemned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._frames = 0
        self._ending = False

    @classmethod
    async def start(cls, orders: Launch, timeout_s: float) -> "Epoch":
        """Start the process and wait until it takes requests. The addresses in `orders` are filled in here.

        Raises ConfigError with the engine's own line when it cannot start as it was asked to, EngineError when it
        dies without a word.
        """
        link = Link()
        process: EngineProcess | None = None
        try:
            process = EngineProcess(link.complete(orders))
            ready = await _wait_ready(process, link, timeout_s)
        except BaseException:
            if process is not None:
                await asyncio.shield(process.end(0.0))
            link.close()
            raise
        return cls(process, link, ready)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: msgspec.Struct) -> bool:
        """False if the engine does not keep up reading. Raises ipc.FrameTooLong."""
        return self.link.sender.send(message, wait=False)

    def condemn(self, cause: str) -> None:
        """It does not move any more: kill it, whatever it is doing."""
        if not self._condemned.done():
            self._condemned.set_result(cause)
        self._process.kill()

    async def run(self, take: Take) -> str:
        """Hand on what the engine says until its end; then why it ended. All that it said has been handed on."""
        reader = asyncio.create_task(self._read(take))
        gone = asyncio.create_task(self._process.wait())
        try:
            ends: set[asyncio.Future[Any]] = {gone, self._condemned, reader}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                return f"a message of the engine could not be taken: {type(reader.exception()).__name__}"
            if self._condemned.done():
                return self._condemned.result()
            await self._hear_out(reader)
            if self._condemned.done():
                return self._condemned.result()
            return f"the engine's process ended {gone.result()}"
        finally:
            for task in (reader, gone):
                task.cancel()
            await asyncio.gather(reader, gone, return_exceptions=True)

    async def end(self, grace_s: float) -> None:
        """Ask it to stop, then terminate, then kill. Safe to call again."""
        if self._ending:
            return
        self._ending = True
        if grace_s:
            with contextlib.suppress(zmq.ZMQError):
                self.link.sender.send(Shutdown(), wait=False)
        await self._process.end(grace_s)
        self.link.close()

    async def _read(self, take: Take) -> None:
        receiver = self.link.receiver
        while True:
            messages = [await receiver.receive()]
            while len(messages) < MAX_AT_ONCE and (more := receiver.receive_now()) is not None:
                messages.append(more)
            self._frames += len(messages)
            last = next((message for message in messages if isinstance(message, Fatal)), None)
            take(messages if last is None else messages[: messages.index(last)])
            if last is not None:
                if not self._condemned.done():
                    self._condemned.set_result(f"the engine stopped: {last.message}")
                return
            if len(messages) == MAX_AT_ONCE:
                await asyncio.sleep(0)  # others have a turn

    async def _hear_out(self, reader: "asyncio.Task[None]") -> None:
        loop = asyncio.get_running_loop()
        end, heard = loop.time() + LAST_FRAMES_S, -1
        while not reader.done() and heard != self._frames and loop.time() < end:
            heard = self._frames
            await asyncio.sleep(SILENCE_S)


class Link:
    """The parent's ends of the two sockets, and the private folder they lie in."""

    def __init__(self) -> None:
        self.folder = ipc.RuntimeDir()
        self.key = ipc.new_key()
        self._context = zmq.asyncio.Context()
        self.receiver: ipc.AsyncReceiver[EngineOutput] = ipc.AsyncReceiver(
            self._context, self.folder.address("out"), self.key, EngineOutput
        )
        self.sender = ipc.Sender(zmq.Context.shadow(self._context.underlying), self.folder.address("in"), self.key)

    def complete(self, orders: Launch) -> Launch:
        """The orders with our addresses in them."""
        return msgspec.structs.replace(
            orders,
            inbox=self.folder.address("in"),
            outbox=self.folder.address("out"),
            key=self.key,
            parent=os.getpid(),
        )

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()
        self._context.destroy(linger=0)
        self.folder.remove()


async def _wait_ready(process: EngineProcess, link: Link, timeout_s: float) -> Ready:
    said = asyncio.ensure_future(link.receiver.receive())
    gone = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({said, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not said.done() and gone.done():
            await asyncio.wait({said}, timeout=LAST_FRAMES_S)
        if said.done():
            message = said.result()
            if isinstance(message, Ready):
                return message
            text = message.message if isinstance(message, Fatal) else "the engine did not say Ready first"
            code = await process.exit_code(EXIT_WAIT_S)
            raise ConfigError(text) if code == EXIT_CONFIG else EngineError(text)
        if gone.done():
            raise EngineError(f"the engine's process ended {gone.result()} before it was ready")
        raise EngineError(f"the engine was not ready within {timeout_s:.0f} s")
    finally:
        for task in (said, gone):
            task.cancel()
        await asyncio.gather(said, gone, return_exceptions=True)
