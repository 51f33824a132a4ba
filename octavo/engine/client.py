"""EngineClient: an engine in a process of its own, used from asyncio.

Requests go out over one socket, outputs of all requests come back over another, a frame a step; one task reads
them and hands each to the stream of its request.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Iterable
from typing import Any

import zmq
import zmq.asyncio

from octavo.base import ipc
from octavo.base.clock import SystemClock
from octavo.base.config import EngineConfig
from octavo.base.errors import ConfigError, EngineDead, EngineError, Overloaded, TooLarge, UserError
from octavo.base.wire import (
    Abort,
    Control,
    ControlReply,
    EngineOutput,
    EngineRequest,
    EngineStats,
    Fatal,
    Ready,
    Shutdown,
    StepOutputs,
    Vocabulary,
)
from octavo.engine.life import Life
from octavo.engine.proc import EXIT_CONFIG, REAL_ASSEMBLY, Launch
from octavo.engine.process import EngineProcess
from octavo.engine.stream import Mailbox, Stream

log = logging.getLogger(__name__)

START_TIMEOUT_S = 3600.0
CONTROL_TIMEOUT_S = 30.0
CLOSE_GRACE_S = 5.0
EXIT_WAIT_S = 10.0  # after a last word, for the exit code that says whose fault it was
MAX_STEPS_AT_ONCE = 64  # frames taken before anyone else has a turn
LAST_FRAMES_S = 0.2  # for what a dead process sent before it died


class EngineClient:
    """Made by `launch`. All methods belong to the event loop it was made in."""

    def __init__(self, process: EngineProcess, link: "_Link", ready: Ready) -> None:
        self.ready = ready
        self.stats = EngineStats()
        self._process = process
        self._link = link
        self._life = Life(SystemClock())
        self._life.run()
        self._mailboxes: dict[str, Mailbox] = {}
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}
        self._unsent_aborts: list[str] = []
        self._control_ids = itertools.count(1)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    @classmethod
    async def launch(
        cls,
        config: EngineConfig,
        *,
        log_level: str = "info",
        log_format: str = "text",
        start_timeout_s: float = START_TIMEOUT_S,
        assembly: str = REAL_ASSEMBLY,
    ) -> "EngineClient":
        """Start the process and wait until it takes requests.

        Raises ConfigError with the engine's own line when it cannot start as it was asked to, EngineError when it
        dies without a word. `assembly` is for tests: "module:attribute" of another engine/assemble.py.
        """
        link = _Link()
        launch = Launch(
            config=config,
            inbox=link.folder.address("in"),
            outbox=link.folder.address("out"),
            key=link.key,
            parent=os.getpid(),
            log_level=log_level,
            log_format=log_format,
            assembly=assembly,
        )
        process: EngineProcess | None = None
        try:
            process = await EngineProcess.start(launch)
            ready = await _wait_ready(process, link, start_timeout_s)
        except BaseException:
            if process is not None:
                await asyncio.shield(process.end(0.0))
            link.close()
            raise
        return cls(process, link, ready)

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._process.pid

    @property
    def open_streams(self) -> int:
        return len(self._mailboxes)

    @property
    def dropped_frames(self) -> int:
        """Frames on our socket that no engine of ours sent."""
        return self._link.receiver.dropped

    @property
    def still_s(self) -> float:
        """Seconds for which requests have been open and no step has come back; 0 without requests."""
        return self._life.still_s if self._mailboxes else 0.0

    def check(self) -> None:
        """Raises EngineDead once the engine will not answer again."""
        self._life.check_alive()

    def submit(self, request: EngineRequest) -> Stream:
        """Send a request; its outputs come from the Stream.

        Raises EngineDead, Unavailable while draining, Overloaded when the engine does not keep up reading,
        TooLarge, and UserError for an id that is in use.
        """
        self._life.check_open()
        if request.id in self._mailboxes:
            raise UserError(f"a request with the id {request.id[:80]!r} is running already", param="request_id")
        try:
            if not self._link.sender.send(request, wait=False):
                raise Overloaded("the engine does not keep up with the requests")
        except ipc.FrameTooLong:
            raise TooLarge("the request is too large", param="prompt") from None
        if not self._mailboxes:
            self._life.began_work()
        mailbox = self._mailboxes[request.id] = Mailbox()
        return Stream(request.id, mailbox, self._abort_one)

    def provide(self, vocabulary: Vocabulary) -> None:
        """What the tokens stand for, for features of the engine that must know. Raises EngineDead, EngineError."""
        self._life.check_alive()
        if not self._link.sender.send(vocabulary, wait=False):
            raise EngineError("the engine does not read what it is sent")

    def abort(self, ids: Iterable[str]) -> None:
        """End requests at the engine's next step; their streams end too. Unknown ids are passed over."""
        wanted = [*self._unsent_aborts, *ids]
        self._unsent_aborts = []
        if wanted and not self._life.cause and not self._link.sender.send(Abort(wanted), wait=False):
            self._unsent_aborts = wanted  # the next frame from the engine shows that it reads again

    async def control(self, command: str, **args: str | int | float | bool | None) -> Any:
        """Call a command of engine/control.py. Raises EngineError with its message, EngineDead, or on a timeout."""
        self._life.check_alive()
        number = next(self._control_ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            if not self._link.sender.send(Control(number, command, args), wait=False):
                raise EngineError("the engine does not keep up with its messages")
            answer = await asyncio.wait_for(reply, CONTROL_TIMEOUT_S)
        except TimeoutError:
            raise EngineError(f"the engine gave no answer to {command} in {CONTROL_TIMEOUT_S:.0f} s") from None
        finally:
            self._replies.pop(number, None)
        if answer.error is not None:
            raise EngineError(answer.error)
        return answer.value

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        self._life.drain()

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop the engine: ask, then terminate, then kill. Open streams get EngineDead. Safe to call again."""
        died_first = not self._die("the engine was shut down")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link.closed:
            return
        if not died_first:
            self._link.sender.send(Shutdown(), wait=False)
        await self._process.end(grace_s)
        self._link.close()

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- the two tasks

    async def _read(self) -> None:
        while True:
            self._take_all(await self._link.receiver.receive())
            if self._unsent_aborts:
                self.abort(())

    async def _watch(self) -> None:
        how = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._tasks[0]), LAST_FRAMES_S)
        if self._die(f"the engine's process ended {how}"):
            log.error("%s", self._life.cause)

    def _take_all(self, first: EngineOutput) -> None:
        """This message and those behind it that are there already: to a stream that has got tokens by several steps
        they come as one output, so that whoever is behind catches up."""
        plain: dict[str, list[int]] = {}
        message: EngineOutput | None = first
        for left in range(MAX_STEPS_AT_ONCE, 0, -1):
            if message is None:
                break
            self._take(message, plain)
            message = self._link.receiver.receive_now() if left > 1 else None
        for id, tokens in plain.items():
            self._deliver_tokens(id, tokens)

    def _take(self, message: EngineOutput, plain: dict[str, list[int]]) -> None:
        """`plain` collects tokens that can wait to be delivered."""
        match message:
            case StepOutputs():
                self.stats = message.stats
                self._life.moved(message.stats.steps)
                for output in message.outputs:
                    if output.id in plain:
                        self._deliver_tokens(output.id, plain.pop(output.id))
                    self._deliver(output)
                for id, token in zip(message.ids, message.tokens):
                    if id in plain:
                        plain[id].append(token)
                    else:
                        plain[id] = [token]
            case ControlReply():
                reply = self._replies.get(message.id)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case Fatal():
                log.error("the engine stopped: %s", message.message)
                self._die(f"the engine stopped: {message.message}")
            case Ready():
                log.warning("the engine said Ready twice")

    def _deliver(self, output: Any) -> None:
        mailbox = self._mailboxes.get(output.id)
        if mailbox is None:
            return  # closed on our side; the abort is under way
        if not mailbox.put(output):
            self._cut_off(output.id)
        elif mailbox.finished:
            del self._mailboxes[output.id]

    def _deliver_tokens(self, id: str, tokens: list[int]) -> None:
        mailbox = self._mailboxes.get(id)
        if mailbox is not None and not mailbox.put_tokens(id, tokens):
            self._cut_off(id)

    def _cut_off(self, id: str) -> None:
        log.warning("request %s is ended: its reader is too slow", id)
        self.abort([id])
        del self._mailboxes[id]

    def _abort_one(self, request_id: str) -> None:
        if self._mailboxes.pop(request_id, None) is not None:
            self.abort([request_id])

    def _die(self, cause: str) -> bool:
        """True the first time: every open stream and call is told at once."""
        if not self._life.die(cause):
            return False
        for mailbox in self._mailboxes.values():
            mailbox.fail(cause)
        self._mailboxes.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineDead(cause))
        return True


class _Link:
    """The parent's ends of the two sockets, and the private folder they lie in."""

    def __init__(self) -> None:
        self.closed = False
        self.folder = ipc.RuntimeDir()
        self.key = ipc.new_key()
        self._context = zmq.asyncio.Context()
        self.receiver: ipc.AsyncReceiver[EngineOutput] = ipc.AsyncReceiver(
            self._context, self.folder.address("out"), self.key, EngineOutput
        )
        self.sender = ipc.Sender(zmq.Context.shadow(self._context.underlying), self.folder.address("in"), self.key)

    def close(self) -> None:
        self.closed = True
        self.receiver.close()
        self.sender.close()
        self._context.destroy(linger=0)
        self.folder.remove()


async def _wait_ready(process: EngineProcess, link: _Link, timeout_s: float) -> Ready:
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
