"""A response that is made in the background: its events, for readers that come and go."""

import asyncio
from collections.abc import AsyncIterator

from octavo.base.errors import Overloaded, UserError
from octavo.serve.calls import Call, Service
from octavo.serve.openai.answer import bounded_call
from octavo.serve.responses.builder import ResponseBuilder
from octavo.serve.sse import EventStream

MAX_JOBS = 256
MAX_EVENT_BYTES = 16 << 20  # of one response; the oldest go first


class ResponseJob:
    """One running response. Event number i has the sequence number i."""

    def __init__(self, owner: str, builder: ResponseBuilder, *, keeps_events: bool) -> None:
        self.owner = owner
        self.builder = builder
        self.cancelled = False
        self.error: Exception | None = None
        self.begun = asyncio.Event()  # something has come, or the end
        self._keeps = keeps_events
        self._events: list[bytes] = []
        self._first = 0
        self._bytes = 0
        self._ended = False
        self._more = asyncio.Event()

    @property
    def name(self) -> str:
        """Of the job."""
        return job_name(self.builder.response["id"])

    @property
    def events(self) -> bytes:
        """All events, or nothing if the first ones are gone."""
        return b"".join(self._events) if self._keeps and not self._first else b""

    def add(self, out: bytes) -> None:
        """Events have come."""
        self.begun.set()
        if not self._keeps or not out:
            return
        events = [event + b"\n\n" for event in out.split(b"\n\n")[:-1]]
        self._events += events
        self._bytes += len(out)
        while self._bytes > MAX_EVENT_BYTES:
            self._bytes -= len(self._events.pop(0))
            self._first += 1
        self._wake()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self.begun.set()
        self._wake()

    async def follow(self, start: int) -> AsyncIterator[bytes]:
        """Events from number `start` on, those that are there and those that come. UserError if they are gone."""
        if not self._keeps:
            raise not_streamed()
        while True:
            if start < self._first:
                raise UserError("The events after that one are no longer kept.", param="starting_after")
            ready = self._events[start - self._first :]
            if ready:
                start += len(ready)
                yield b"".join(ready)
            elif self._ended:
                return
            else:
                await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


async def send_events(call: Call, events: AsyncIterator[bytes]) -> None:
    """Sends the events of a job, or of one that has ended. The client may leave; the response goes on without it."""
    stream = EventStream(call)
    async with bounded_call(call), stream.kept_alive():
        async for out in events:
            await stream.write(out)
    await stream.finish(end=b"")


def job_name(id: str) -> str:
    """The name of a response's job."""
    return f"response:{id}"


def find_job(service: Service, owner: str, id: str) -> ResponseJob | None:
    """The running job of a response, if it is the caller's."""
    job = service.jobs.get(job_name(id))
    return job if isinstance(job, ResponseJob) and job.owner == owner else None


def check_room(service: Service) -> None:
    """Overloaded when enough runs in the background."""
    if service.jobs.count("response:") >= MAX_JOBS:
        raise Overloaded("Too many responses run in the background. Try again later.")


def not_streamed() -> UserError:
    """For a response that was not made with stream: true."""
    return UserError(
        "Only a response created with background: true and stream: true can be streamed again.",
        param="stream",
        code="invalid_value",
    )
