"""The outputs of one request, from the reader task to whoever awaits them."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from octavo.base import scores
from octavo.base.errors import EngineDead
from octavo.base.wire import TokenOutput

MAX_BACKLOG = 1 << 20
"""Most unread numbers (tokens, and those of their log-probabilities) of one stream, then it is ended."""

Listener = Callable[[TokenOutput], bool]
"""Called in the reader task with tokens and at most their log-probabilities; False if it cannot take them now."""

TOO_SLOW = "the reader of this request fell too far behind"


class Mailbox:
    """Outputs that nobody has read yet, joined into one. Written by the client's reader task."""

    __slots__ = ("_failure", "_fault", "_lines", "_size", "_unread", "_waiter", "finished", "listener")

    def __init__(self) -> None:
        self.finished = False  # the last output is in, or none will come
        self._unread: TokenOutput | None = None
        self._lines = bytearray()  # log-probabilities behind those of `_unread`
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._failure: str | None = None
        self._fault: Exception | None = None
        self.listener: Listener | None = None

    def put(self, output: TokenOutput) -> bool:
        """Add an output. False if the reader is too far behind: then the stream has ended with an error."""
        if self._unread is None:
            self._unread = output
        else:
            self._unread = _join(self._unread, output)
            self._lines += output.logprobs
        self._size += _cost(output)
        self.finished = output.finish is not None
        return self._settle(output.id)

    def put_tokens(self, id: str, tokens: list[int], logprobs: bytes = b"") -> bool:
        """Add tokens with at most their log-probabilities, which a listener may take; the same as `put` otherwise."""
        if self._unread is not None:
            self._unread.tokens.extend(tokens)
            self._lines += logprobs
        else:
            output = TokenOutput(id, tokens, logprobs=logprobs)
            # Only past a reader who waits: one who is still busy with earlier tokens must not be overtaken.
            waits = self._waiter is not None and not self._waiter.done()
            if waits and self.listener is not None and self._heard(self.listener, output):
                return True
            self._unread = output
        self._size += len(tokens) + len(logprobs) // scores.BYTES
        return self._settle(id)

    def _heard(self, listener: Listener, output: TokenOutput) -> bool:
        """A fault of the listener is its stream's own: `get` raises it."""
        try:
            return listener(output)
        except Exception as error:
            self.listener = None
            self._fault = error
            self._wake()
            return True

    def _settle(self, id: str) -> bool:
        full = self._size > MAX_BACKLOG and not self.finished
        if full:
            self._unread = TokenOutput(id, [], "error", error=TOO_SLOW, error_code=408)
            self._lines.clear()
            self.finished = True
        self._wake()
        return not full

    def fail(self, cause: str) -> None:
        """The engine is dead: what has arrived can still be read, then EngineDead is raised."""
        if not self.finished:
            self._failure = cause
            self.finished = True
            self._wake()

    def end(self) -> None:
        """Nobody will read any more."""
        self.finished = True
        self._unread = self.listener = None
        self._lines.clear()
        self._wake()

    async def get(self) -> TokenOutput | None:
        """What came since the last call, None after the end. Raises EngineDead."""
        while self._unread is None:
            if self._fault is not None:
                raise self._fault
            if self._failure is not None:
                raise EngineDead(self._failure)
            if self.finished:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output, self._unread, self._size = self._unread, None, 0
        if self._lines:
            output = msgspec.structs.replace(output, logprobs=output.logprobs + self._lines)
            self._lines = bytearray()
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream:
    """An async iterator of TokenOutput for one request; an item may hold the tokens of several steps.

    It ends after the output with `finish`. To close it, or to drop it, aborts the request.
    """

    def __init__(self, request_id: str, mailbox: Mailbox, abort: Callable[[str], None]) -> None:
        self.id = request_id
        self._mailbox = mailbox
        self._abort = abort
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> TokenOutput:
        output = await self._mailbox.get()
        if output is None:
            raise StopAsyncIteration
        return output

    def listen(self, listener: Listener) -> None:
        """Let plain tokens that come while nothing is unread go to `listener` and not to the iterator."""
        self._mailbox.listener = listener

    @property
    def finished(self) -> bool:
        """Whether all outputs have arrived; some may still wait to be read."""
        return self._mailbox.finished

    def close(self) -> None:
        """Abort the request unless it has finished. Safe to call again."""
        running = not self._mailbox.finished
        self._mailbox.end()
        if running:
            self._abort(self.id)

    def __del__(self) -> None:
        # A collector may run in any thread, and after the loop.
        if not self._mailbox.finished:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._abort, self.id)


def _join(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    """Both as one output, the log-probabilities of `second` aside; `first` is no longer to be used."""
    first.tokens.extend(second.tokens)
    return msgspec.structs.replace(
        second,
        tokens=first.tokens,
        logprobs=first.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        queued_s=max(first.queued_s, second.queued_s),
    )


def _cost(output: TokenOutput) -> int:
    return len(output.tokens) + (len(output.logprobs) + len(output.prompt_logprobs)) // scores.BYTES
