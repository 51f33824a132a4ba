"""Sequences in the engine, turned into steps of text. Streams and whole answers both read from here.

One `Piece` is what one engine step added to one choice; pieces that are ready together come together, so that an
endpoint makes one send of them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from octavo.base.errors import OctavoError, Unavailable
from octavo.base.wire import EngineRequest, EngineStats, Ready, TokenOutput
from octavo.engine.life import Survival
from octavo.serve.errors import DeadlineExceeded, from_status
from octavo.serve.journey import Journey, Timer
from octavo.serve.metrics import Metrics
from octavo.text.collect import Collector, TextDelta

ENDING = "The server ends before this request is done"
"""Why tasks that answer are cancelled at the end of a drain."""

AT_ONCE = 32  # pieces: to write one with twenty log-probabilities takes some 15 microseconds


class OutputStream(Protocol):
    """Outputs of one sequence, in order; the last one has a finish reason."""

    def __aiter__(self) -> AsyncIterator[TokenOutput]: ...

    def listen(self, listener: Callable[[TokenOutput], bool]) -> None:
        """Tokens that come with nothing to them may go to `listener`, which answers False when it cannot take them.
        Whatever it is not given comes out of the iterator."""
        ...

    def close(self) -> None:
        """Aborts the sequence if it has not ended."""
        ...


class Engine(Protocol):
    """What the server needs of an engine client; EngineClient and FakeEngine have it."""

    on_step: Callable[[EngineStats], None]  # told the figures of each step

    @property
    def ready(self) -> Ready:
        """What start-up settled."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Figures of the last step."""
        ...

    @property
    def still_s(self) -> float:
        """Seconds for which it has had work and done no step."""
        ...

    @property
    def restarting(self) -> bool:
        """Whether requests wait for its next process."""
        ...

    @property
    def survival(self) -> Survival:
        """What it has lived through."""
        ...

    def submit(self, request: EngineRequest) -> OutputStream:
        """Starts a sequence. Raises Overloaded, Unavailable, EngineDead."""
        ...

    async def control(self, command: str, *, timeout_s: float = ..., **args: str | int | float | bool | None) -> Any:
        """Calls a command of engine/control.py. Raises EngineError with its message."""
        ...

    def check(self) -> None:
        """Raises EngineDead when the engine will not answer again."""
        ...

    async def close(self) -> None:
        """Ends the engine."""
        ...


@dataclass(slots=True)
class Piece:
    """What one engine step added to one choice; `index` counts the sequences as given."""

    index: int
    delta: TextDelta


class Generation:
    """The sequences of one HTTP request. Use as ``async with``; leaving it ends whatever still runs."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        sequences: Sequence[tuple[EngineRequest, Collector]],
        journey: Journey,
        n: int = 1,
    ) -> None:
        """`n`: choices a prompt."""
        self._engine = engine
        self._metrics = metrics
        self._sequences = sequences
        self._journey = journey
        self._n = n
        usages = metrics.usages(journey.key, journey.adapter)
        self._timers = [Timer(metrics, journey, usages, len(request.tokens)) for request, _ in sequences]
        self._streams: list[OutputStream] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._heard_end = False

    async def __aenter__(self) -> "Generation":
        self._journey.enter([request for request, _ in self._sequences])
        self._metrics.asked(self._n, self._sequences[0][0].sampling.max_tokens)
        try:
            for request, _ in self._sequences:
                self._streams.append(self._engine.submit(request))
        except BaseException:
            self._close("error")
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        self._close("error" if isinstance(exc, OctavoError) else "abort")

    def steps(self) -> AsyncIterator[list[Piece]]:
        """Pieces until every sequence has ended. Raises what the engine reports as an error."""
        return self._single() if len(self._streams) == 1 else self._merged()

    def listen(self, ready: Callable[[], bool], show: Callable[[Piece], object]) -> None:
        """While `ready`, pieces of plain tokens of a lone sequence go to `show`, and not through `steps`: as soon as
        they come, without a turn of the task that reads the steps."""
        if len(self._streams) > 1:
            return
        feed, timer, now = self._sequences[0][1].feed, self._timers[0], time.monotonic

        def hear(output: TokenOutput) -> bool:  # each token of each stream comes by here
            if not ready():
                return False
            delta = feed(output)
            if delta.finish_reason is None:
                timer.feed(output, now())
                show(Piece(0, delta))
            else:
                show(self._note(0, output, delta))
                self._heard_end = True
            return True

        self._streams[0].listen(hear)

    async def _single(self) -> AsyncIterator[list[Piece]]:
        async for output in self._streams[0]:
            piece = await self._take(0, output)
            yield [piece]
            if piece.delta.finish_reason is not None:
                return
        if not self._heard_end:
            raise Unavailable("The engine ended this request early.")

    async def _merged(self) -> AsyncIterator[list[Piece]]:
        ready: list[Piece] = []
        wake = asyncio.Event()
        self._pumps = [asyncio.create_task(self._pump(index, ready, wake)) for index in range(len(self._streams))]
        while self._pumps:
            await (asyncio.sleep(0) if wake.is_set() else wake.wait())  # others have a turn
            wake.clear()
            pieces, ready[:] = list(ready), []
            broken = [i for i, pump in enumerate(self._pumps) if pump.done() and (pump.cancelled() or pump.exception())]
            if broken:
                self._pumps[broken[0]].result()  # raises what holds this frame: no name here may hold it in turn
            self._pumps = [pump for pump in self._pumps if not pump.done()]
            for first in range(0, len(pieces), AT_ONCE):
                if first:
                    await asyncio.sleep(0)
                yield pieces[first : first + AT_ONCE]

    async def _pump(self, index: int, ready: list[Piece], wake: asyncio.Event) -> None:
        try:
            async for output in self._streams[index]:
                piece = await self._take(index, output)
                ready.append(piece)
                if piece.delta.finish_reason is not None:
                    return
                wake.set()
            raise Unavailable("The engine ended this request early.")
        finally:
            # The task counts as done only after this frame; wake its reader then.
            asyncio.get_running_loop().call_soon(wake.set)

    async def _take(self, index: int, output: TokenOutput) -> Piece:
        if output.finish == "error":
            message = output.error or "The engine could not finish this request."
            raise from_status(output.error_code, message, output.error_param, output.error_name, output.retry_after_s)
        if output.finish == "abort":
            raise Unavailable("The server ended this request.")
        request, collector = self._sequences[index]
        if request.sampling.prompt_logprobs >= 0 and not collector.num_output_tokens:
            # It names a token for each rank of each position.
            return self._note(index, output, await asyncio.to_thread(collector.feed, output))
        return self._note(index, output, collector.feed(output))

    def _note(self, index: int, output: TokenOutput, delta: TextDelta) -> Piece:
        now, timer = time.monotonic(), self._timers[index]
        if output.tokens:
            timer.feed(output, now)
        if delta.finish_reason is not None:
            timer.finish(delta.finish_reason, now, output.preemptions)
            if delta.needs_abort:
                self._streams[index].close()
        return Piece(index, delta)

    def _close(self, reason: str) -> None:
        for pump in self._pumps:
            if not pump.cancel() and not pump.cancelled():
                pump.exception()  # taken, since the first one has been raised already
        self._pumps = []  # what ended them holds their frames, and those hold this
        for stream in self._streams:
            stream.close()
        now = time.monotonic()
        for timer in self._timers:
            timer.finish(reason, now)
        longest = max(timer.tokens for timer in self._timers)
        if longest:
            self._metrics.longest_output.observe(longest)


@asynccontextmanager
async def bounded(receive: Receive, limit: float, left: float) -> AsyncIterator[None]:
    """Ends the body when the client goes away (ClientDisconnect), `left` seconds are over (DeadlineExceeded), or the
    task is cancelled with ENDING (Unavailable)."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(left):
            yield
    except asyncio.CancelledError as error:
        if not gone and error.args != (ENDING,):
            raise
        task.uncancel()
        raise (ClientDisconnect() if gone else Unavailable(f"{ENDING}.")) from None
    except TimeoutError:
        raise DeadlineExceeded(f"The request took longer than {limit:g} s.", code="request_timeout") from None
    finally:
        watcher.cancel()
