"""Where a response's events go: to a stream, into a whole answer, or to a job."""

from octavo.serve import inner
from octavo.serve.calls import Call
from octavo.serve.errors import ErrorDetail, failure
from octavo.serve.responses.builder import ResponseBuilder
from octavo.serve.responses.job import ResponseJob
from octavo.serve.sse import WAITING, EventStream
from octavo.serve.turns import TurnReader


class ResponseSink:
    """Builds the response from chat's chunks. What is made of the events is for those below."""

    def __init__(self, builder: ResponseBuilder) -> None:
        self.builder = builder
        self.failed = False
        self.reader = TurnReader()

    async def data(self, payload: bytes) -> None:
        """One chunk of chat's."""
        out = b"" if self.builder.begun else self.builder.begin()
        await self.out(out + b"".join([self.builder.feed(step) for step in self.reader.feed(payload)]))

    async def idle(self) -> None:
        """Nothing has come for a while."""

    async def error(self, error: ErrorDetail) -> None:
        """The response has failed in its middle."""
        self.failed = True
        await self.out(self.builder.fail(error, self.reader.usage))

    def finish(self) -> bytes:
        """The last events."""
        return b"" if self.failed else self.builder.finish(self.reader.usage)

    async def out(self, events: bytes) -> None:
        """Takes events."""


class ReplySink(ResponseSink):
    """Keeps nothing but the response; a failure is raised."""

    async def error(self, error: ErrorDetail) -> None:
        raise inner.raised(error)


class StreamSink(ResponseSink):
    """Sends the events to the client. The answer begins with the first, so that what fails before has its status."""

    def __init__(self, call: Call, builder: ResponseBuilder) -> None:
        super().__init__(builder)
        self._events = EventStream(call)

    async def idle(self) -> None:
        await self._events.write(WAITING)

    async def out(self, events: bytes) -> None:
        if events:
            await self._events.write(events)

    async def close(self, events: bytes) -> None:
        """Sends the last events and ends the stream; this dialect has no [DONE]."""
        await self._events.finish(events, end=b"")


class JobSink(ResponseSink):
    """Hands the events to a job."""

    def __init__(self, job: ResponseJob) -> None:
        super().__init__(job.builder)
        self._job = job

    async def out(self, events: bytes) -> None:
        self._job.add(events)

    def fail(self, exc: Exception) -> bytes:
        """The events of a response that failed before or in its stream."""
        begun = b"" if self.builder.begun else self.builder.begin()
        return begun + self.builder.fail(failure(exc).error, self.reader.usage)
