"""EngineClient: an engine in a process of its own, used from asyncio.

Requests go out over one socket, outputs of all requests come back over another, a frame a step; one task reads
them and hands each to the stream of its request. When the process ends, the next one is started, and the open
requests go on there from the tokens that were delivered: their streams only pause.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import psutil

from octavo.base import ipc
from octavo.base.clock import SystemClock
from octavo.base.config import EngineConfig, RecoveryConfig
from octavo.base.errors import EngineDead, EngineError, Overloaded, TooLarge, UserError
from octavo.base.wire import (
    Abort,
    Control,
    ControlReply,
    EngineOutput,
    EngineRequest,
    EngineStats,
    Ready,
    StepOutputs,
    TokenOutput,
    Vocabulary,
)
from octavo.engine.epoch import Epoch
from octavo.engine.journal import CRASHED, Entry, Journal
from octavo.engine.life import Life, State, Survival
from octavo.engine.plain import Plain
from octavo.engine.proc import REAL_ASSEMBLY, Launch
from octavo.engine.replay import FULL_WAIT_S, Replay
from octavo.engine.stream import Stream
from octavo.engine.supervisor import RestartPolicy, Supervisor
from octavo.engine.watchdog import BUSY_S, LOOK_S, Watchdog

log = logging.getLogger(__name__)

START_TIMEOUT_S = 3600.0
CONTROL_TIMEOUT_S = 30.0
CLOSE_GRACE_S = 5.0


class EngineClient:
    """Made by `launch`. All methods belong to the event loop it was made in."""

    def __init__(self, epoch: Epoch, orders: Launch, recovery: RecoveryConfig, start_timeout_s: float) -> None:
        self.ready = epoch.ready
        self.stats = EngineStats()
        self.on_step: Callable[[EngineStats], None] = _nobody_asks
        self.survival = Survival()
        self._epoch = epoch
        self._orders = orders
        self._recovery = recovery
        self._start_timeout_s = start_timeout_s
        self._life = Life(SystemClock())
        self._life.run()
        self._journal = Journal()
        self._replay = Replay(self._journal, self._dispatch, self._refuse, self._count_replayed)
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}
        self._vocabulary: Vocabulary | None = None  # told to the engine
        self._tell_vocabulary: Callable[[], Vocabulary] | None = None  # not told yet
        self._unsent_aborts: list[str] = []
        self._control_ids = itertools.count(1)
        self._watchdog = self._new_watchdog(epoch)
        supervisor = Supervisor(self._start, RestartPolicy(recovery.max_engine_restarts), self._fallen, self._risen)
        self._tasks = [asyncio.create_task(self._run(supervisor)), asyncio.create_task(self._watch())]

    @classmethod
    async def launch(
        cls,
        config: EngineConfig,
        *,
        recovery: RecoveryConfig = RecoveryConfig(),  # noqa: B008 - frozen
        log_level: str = "info",
        log_format: str = "text",
        start_timeout_s: float = START_TIMEOUT_S,
        assembly: str = REAL_ASSEMBLY,
    ) -> "EngineClient":
        """Start the process and wait until it takes requests.

        Raises ConfigError with the engine's own line when it cannot start as it was asked to, EngineError when it
        dies without a word. `assembly` is for tests: "module:attribute" of another engine/assemble.py.
        """
        orders = Launch(config=config, log_level=log_level, log_format=log_format, assembly=assembly)
        return cls(await Epoch.start(orders, start_timeout_s), orders, recovery, start_timeout_s)

    @property
    def pid(self) -> int:
        """Of the engine's process that runs, or ran last."""
        return self._epoch.pid

    @property
    def restarting(self) -> bool:
        """Whether the engine's process has ended and the next does not take requests yet."""
        return self._life.state is State.RESTARTING

    @property
    def still_s(self) -> float:
        """Seconds for which requests have been open and no step has come back; 0 without requests."""
        return self._life.still_s if self._journal else 0.0

    def check(self) -> None:
        """Raises EngineDead once the engine will not answer again."""
        self._life.check_alive()

    def submit(self, request: EngineRequest) -> Stream:
        """Send a request; its outputs come from the Stream. While the engine restarts, it waits.

        Raises EngineDead, Unavailable while draining, Overloaded when the engine does not keep up reading,
        TooLarge, and UserError for an id that is in use.
        """
        self._life.check_open()
        if request.id in self._journal:
            raise UserError(f"a request with the id {request.id[:80]!r} is running already", param="request_id")
        entry = Entry(request)
        if request.riders:
            self.provide_now()
        if not self.restarting:
            try:
                if not self._dispatch(entry):
                    raise Overloaded("the engine does not keep up with the requests")
            except ipc.FrameTooLong:
                raise TooLarge("the request is too large", param="prompt") from None
        if not self._journal:
            self._life.began_work()
            self._watchdog.heard()
        self._journal.open(entry)
        return Stream(request.id, entry.mailbox, self._abort_one)

    def provide(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Says what the tokens stand for, for features of the engine that must know; asked before the first request
        that such a feature rides on."""
        self._tell_vocabulary = vocabulary

    def provide_now(self) -> None:
        """Tell the engine what the tokens stand for, once, if there is anything to tell. Raises EngineDead,
        EngineError."""
        if self._tell_vocabulary is None:
            return
        self._life.check_alive()
        vocabulary = self._tell_vocabulary()
        if not self.restarting and not self._epoch.send(vocabulary):
            raise EngineError("the engine does not read what it is sent")
        self._vocabulary, self._tell_vocabulary = vocabulary, None

    def provide_later(self, after_s: float) -> None:
        """`provide_now` in a while, so that whoever asks a new server first need not wait for it."""

        def tell() -> None:
            with contextlib.suppress(EngineError):  # of the first request that needs it
                self.provide_now()

        asyncio.get_running_loop().call_later(after_s, tell)

    def abort(self, ids: Iterable[str]) -> None:
        """End requests at the engine's next step; their streams end too. Unknown ids are passed over."""
        wanted = [*self._unsent_aborts, *ids]
        self._unsent_aborts = []
        if not wanted or self._life.cause:
            return
        wanted = [id for id in wanted if not self._abort_unsent(id)]
        if self.restarting or not wanted:
            return
        if not self._epoch.send(Abort(wanted)):
            self._unsent_aborts = wanted  # the next frame from the engine shows that it reads again

    async def control(
        self, command: str, *, timeout_s: float = CONTROL_TIMEOUT_S, **args: str | int | float | bool | None
    ) -> Any:
        """Call a command of engine/control.py. Raises EngineError with its message, EngineDead, or on a timeout."""
        self._life.check_alive()
        if self.restarting:
            raise EngineError("the engine is being restarted")
        number = next(self._control_ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            if not self._epoch.send(Control(number, command, args)):
                raise EngineError("the engine does not keep up with its messages")
            answer = await asyncio.wait_for(reply, timeout_s)
        except TimeoutError:
            raise EngineError(f"the engine gave no answer to {command} in {timeout_s:.0f} s") from None
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
        self._replay.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._epoch.end(0.0 if died_first else grace_s)

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- one process after the other

    async def _run(self, supervisor: Supervisor) -> None:
        try:
            cause = await supervisor.run(self._epoch, self._take)
        except Exception as error:
            log.exception("the engine is no longer watched over")
            cause = f"the engine could not be started again: {type(error).__name__}"
        if self._die(cause):
            log.error("%s", cause)

    async def _start(self) -> Epoch:
        return await Epoch.start(self._orders, self._start_timeout_s)

    def _fallen(self, cause: str) -> None:
        """The process has ended. What was open waits for the next one."""
        self._life.fall()
        self._unsent_aborts = []
        for entry in self._journal.crash(self._replay.stop()):
            self.survival.failed += 1
            entry.mailbox.put(TokenOutput(entry.request.id, [], "error", error=CRASHED))
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineError(cause))

    async def _risen(self, epoch: Epoch, after_s: float) -> None:
        """The next process is ready: it gets what every engine gets, then the open requests."""
        self._epoch, self.ready = epoch, epoch.ready
        self.stats = msgspec.structs.replace(self.stats, asleep=0)  # a new engine is awake
        self._watchdog = self._new_watchdog(epoch)
        while self._vocabulary is not None and not epoch.send(self._vocabulary):
            await asyncio.sleep(FULL_WAIT_S)
        self._life.run()
        self._life.began_work()
        self.abort(())
        self.survival.restarts += 1
        self.survival.last_restart_s = after_s
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in epoch.ready.phases.items())
        log.warning(
            "the engine was started again in %.2f s (%s); %d requests go on", after_s, phases, len(self._journal)
        )
        self._replay.start()

    def _dispatch(self, entry: Entry) -> bool:
        entry.sent = self._epoch.send(entry.resumed())
        return entry.sent

    def _refuse(self, entry: Entry) -> None:
        """With its tokens the request has grown too long for a message."""
        self._close(entry.request.id)
        entry.mailbox.put(TokenOutput(entry.request.id, [], "error", error="the request is too large", error_code=413))

    def _count_replayed(self) -> None:
        self.survival.replayed += 1

    # --- whether it moves

    def _new_watchdog(self, epoch: Epoch) -> Watchdog:
        busy_s = self._recovery.engine_stall_timeout or BUSY_S.get(epoch.ready.device, max(BUSY_S.values()))
        process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(epoch.pid)

        def cpu_s() -> float | None:
            with contextlib.suppress(psutil.Error):
                if process is not None:  # compilers that it waits for included
                    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
                    return sum(each.user + each.system for each in times)
            return None

        return Watchdog(SystemClock(), busy_s, cpu_s)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.restarting or not self._journal or self._replies:  # a command may take as long as it must
                self._watchdog.heard()
            cause = self._watchdog.look()
            if cause is not None and not self.restarting:
                self._epoch.condemn(cause)

    # --- what the engine says

    def _take(self, messages: list[EngineOutput]) -> None:
        """To a stream that has got tokens by several of these they come as one output, so that whoever is behind
        catches up."""
        self._watchdog.heard()
        plain = Plain()
        for message in messages:
            self._take_one(message, plain)
        for id in list(plain.tokens):
            self._deliver_tokens(id, plain)
        if self._unsent_aborts:
            self.abort(())

    def _take_one(self, message: EngineOutput, plain: Plain) -> None:
        """`plain` collects tokens that can wait to be delivered."""
        match message:
            case StepOutputs():
                self.stats = message.stats
                self._life.moved(message.stats.steps)
                self.on_step(message.stats)
                for output in message.outputs:
                    if output.id in plain.tokens:
                        self._deliver_tokens(output.id, plain)
                    self._deliver(output)
                plain.add(message)
            case ControlReply():
                reply = self._replies.get(message.id)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case Ready():
                log.warning("the engine said Ready twice")

    def _deliver(self, output: TokenOutput) -> None:
        entry = self._journal.get(output.id)
        if entry is None:
            return  # closed on our side; the abort is under way
        entry.note(output)
        if self._replay.trial.ids and output.tokens:
            self._replay.trial.acquit(output.id)
        self._settle(entry, entry.mailbox.put(output))

    def _deliver_tokens(self, id: str, plain: Plain) -> None:
        entry, tokens, lines = self._journal.get(id), plain.tokens.pop(id), plain.lines.pop(id, b"")
        if entry is None:
            return
        entry.note_tokens(tokens)
        if self._replay.trial.ids:
            self._replay.trial.acquit(id)
        self._settle(entry, entry.mailbox.put_tokens(id, tokens, lines))

    def _settle(self, entry: Entry, delivered: bool) -> None:
        id = entry.request.id
        if not delivered:
            log.warning("request %s is ended: its reader is too slow", id)
            self.abort([id])
        if entry.mailbox.finished:
            self._close(id)

    def _abort_one(self, request_id: str) -> None:
        entry = self._close(request_id)
        if entry is not None and entry.sent:
            self.abort([request_id])

    def _close(self, request_id: str) -> Entry | None:
        self._replay.trial.acquit(request_id)
        return self._journal.close(request_id)

    def _abort_unsent(self, request_id: str) -> bool:
        """True if no engine has the request, so that nobody else would say its end."""
        entry = self._journal.get(request_id)
        if entry is None or entry.sent:
            return False
        self._close(request_id)
        entry.mailbox.put(TokenOutput(request_id, [], "abort"))
        return True

    def _die(self, cause: str) -> bool:
        """True the first time: every open stream and call is told at once."""
        if not self._life.die(cause):
            return False
        for entry in self._journal:
            entry.mailbox.fail(cause)
            self._journal.close(entry.request.id)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineDead(cause))
        return True


def _nobody_asks(stats: EngineStats) -> None:
    """What hears of steps until somebody wants to."""
    del stats
