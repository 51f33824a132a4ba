"""The work of a batch: its lines through their endpoints, many at once, each answer into the journal.

It yields: a line begins only when nothing waits in the engine's queue, and it goes there behind all others.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path

import msgspec

from octavo.base.errors import UserError
from octavo.serve import inner
from octavo.serve.batches.journal import Journal
from octavo.serve.batches.lines import BatchLine, id_of, parse_line, read_lines
from octavo.serve.calls import Call, Handler, Reply, Service
from octavo.serve.openai import chat, completions
from octavo.serve.quota import Meter
from octavo.serve.responses import create as responses

TARGETS: dict[str, Handler] = {
    "/v1/chat/completions": chat.create,
    "/v1/completions": completions.create,
    "/v1/responses": responses.create,
}
READ_LINES = 64
POLL_S = 0.02
RETRY_S = 0.5
BUSY = (429, 503)  # the server's trouble and not the line's


class Work:
    """One run over one file. `endpoint` None lets each line name its own."""

    def __init__(
        self,
        service: Service,
        source: Path,
        journal: Journal,
        *,
        endpoint: str | None = None,
        owner: str = "",
        tenant: str = "",
        deadline: float = float("inf"),
        check_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`deadline`: wall-clock seconds after which no line begins. `check_room`: raises when the disk is full."""
        self.journal = journal
        self.stopped = False  # no line begins any more
        self.expired = False
        self._service = service
        self._source = source
        self._endpoint = endpoint
        self._owner = owner
        self._tenant = tenant
        self._deadline = deadline
        self._check_room = check_room
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0  # lines that the server, or the key's limits, have no room for now

    async def run(self) -> bool:
        """Does what is left. False when the server stopped it before the end: it can be run again.

        Raises what `check_room` raises: without room for its answer, a line is not done.
        """
        try:
            async with asyncio.TaskGroup() as group:
                async for number, line in self._lines():
                    if number in self.journal:
                        self._note_id(line)
                        continue
                    await self._turn()
                    if self.stopped or self._paused or self.expired:
                        self._service.batch_slots.release()
                        break
                    task = group.create_task(self._answer(number, line))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return not self._paused

    def stop(self) -> None:
        """Ends it: lines that run are dropped."""
        self.stopped = True
        for task in self._tasks:
            task.cancel()

    @property
    def _paused(self) -> bool:
        return self._service.draining or not self._service.alive

    async def _lines(self) -> AsyncIterator[tuple[int, bytes | None]]:
        with self._source.open("rb") as file:
            lines = read_lines(file, self._service.limits.max_body_bytes)
            while some := await asyncio.to_thread(lambda: list(islice(lines, READ_LINES))):
                for each in some:
                    yield each

    async def _turn(self) -> None:
        """Waits for a free place and an idle queue. On return the place is taken."""
        while self._waiting and not (self.stopped or self._paused):  # the next would fare no better
            await asyncio.sleep(POLL_S)
        await self._service.batch_slots.acquire()
        service = self._service
        # The figures are the last step's: with nothing admitted there is no next step that could bring them up to date.
        while service.stats().waiting and service.limits.open and not (self.stopped or self._paused):
            await asyncio.sleep(POLL_S)
        self.expired = time.time() > self._deadline

    async def _answer(self, number: int, line: bytes | None) -> None:
        place = _Place(self._service.batch_slots)
        meter = self._service.meter_of(self._owner, self._tenant)
        try:
            try:
                request = self._request(line)
            except UserError as exc:
                self._write(number, _refusal(id_of(line), number, exc), ok=False)
                return
            reply = await self._ask(request, place, meter)
            if reply is not None:
                self._write(number, _row(request.custom_id, reply), ok=reply.status < 400)
        finally:
            meter.end()
            place.leave()

    def _request(self, line: bytes | None) -> BatchLine:
        request = parse_line(line, self._service.limits.max_body_bytes, self._service.config.serve.limits)
        if request.custom_id in self._seen:
            raise UserError("custom_id is that of an earlier line.", param="custom_id", code="duplicate_custom_id")
        self._seen.add(request.custom_id)
        if request.url not in TARGETS:
            raise UserError(f"url must be one of {', '.join(TARGETS)}.", param="url", code="invalid_url")
        if self._endpoint is not None and request.url != self._endpoint:
            raise UserError(f"url must be the batch's endpoint, {self._endpoint}.", param="url", code="mismatched_url")
        return request

    async def _ask(self, request: BatchLine, place: "_Place", meter: Meter) -> Reply | None:
        """The answer; None when the server ends before there is one. What the key may not take now is asked for again,
        and no batch of another key waits for that."""
        while not (self._paused or self.stopped):
            reply = await inner.whole(self._call(meter), TARGETS[request.url], bytes(request.body))
            if reply.status not in BUSY:
                return reply
            meter.end()
            place.leave()
            self._waiting += 1
            try:
                await asyncio.sleep(RETRY_S)
            finally:
                self._waiting -= 1
            await place.take()
        return None

    def _call(self, meter: Meter) -> Call:
        return Call(
            self._service,
            {"type": "http", "headers": []},
            inner.never,
            _refuse,
            uuid.uuid4().hex,
            self._tenant,
            owner=self._owner,
            background=True,
            meter=meter,
        )

    def _write(self, number: int, row: bytes, *, ok: bool) -> None:
        self._check_room(len(row))
        self.journal.add(number, row, ok=ok)

    def _note_id(self, line: bytes | None) -> None:
        """A line answered before counts when ids are compared."""
        found = id_of(line)
        if found is not None:
            self._seen.add(found)


class _Place:
    """One of the places for lines that run, taken at first."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._held = True

    async def take(self) -> None:
        await self._slots.acquire()
        self._held = True

    def leave(self) -> None:
        if self._held:
            self._slots.release()
        self._held = False


def _row(custom_id: str, reply: Reply) -> bytes:
    response = {"status_code": reply.status, "request_id": uuid.uuid4().hex, "body": msgspec.Raw(reply.body)}
    return msgspec.json.encode(
        {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": None}
    )


def _refusal(custom_id: str | None, number: int, exc: UserError) -> bytes:
    error = {"code": exc.code or "invalid_request", "message": exc.message[:400], "param": exc.param, "line": number}
    return msgspec.json.encode(
        {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": None, "error": error}
    )


async def _refuse(_: object) -> None:
    raise AssertionError("a line's answer goes into the journal")
