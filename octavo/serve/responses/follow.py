"""Sends the events of a background response to whoever follows it."""

from collections.abc import AsyncIterator

from octavo.serve.calls import Call
from octavo.serve.openai.answer import bounded_call
from octavo.serve.sse import EventStream


async def send_events(call: Call, events: AsyncIterator[bytes]) -> None:
    """The client may leave; the response goes on without it."""
    stream = EventStream(call)
    async with bounded_call(call), stream.kept_alive():
        async for out in events:
            await stream.write(out)
    await stream.finish(end=b"")
