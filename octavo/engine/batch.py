"""Running many requests to their ends on an in-process engine, without ever overfilling its queue."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from octavo.base.config import SchedulerConfig
from octavo.base.errors import EngineDead, EngineError, UserError
from octavo.base.wire import EngineRequest, TokenOutput
from octavo.engine.inproc import InprocClient
from octavo.engine.interrupt import deferred_interrupt

OVERLOADED = 429

Take = Callable[[TokenOutput], bool]
"""Called with each output; True to end that request early (a stop string)."""


class BatchRunner:
    """Feeds requests as the engine's waiting line has room, and passes their outputs on."""

    def __init__(self, client: InprocClient, limits: SchedulerConfig) -> None:
        self._client = client
        # More in line than fit in a step or two gain nothing.
        self._most = min(limits.max_waiting, 2 * client.ready.max_num_seqs)
        self._most_tokens = limits.max_waiting_tokens
        self._untouched: dict[str, int] = {}  # requests sent that have no output yet: their prompt tokens
        self._running: dict[str, EngineRequest] = {}

    def run(self, requests: Sequence[EngineRequest], take: Take) -> None:
        """Returns when all have ended. Raises UserError or EngineError for the first that cannot be served.

        However it ends, by Ctrl-C too (which waits for the end of a step), nothing of these requests stays in the
        engine.
        """
        queue = deque(requests)
        with deferred_interrupt() as check, self._cleared():
            while queue or self._running:
                check()
                self._feed(queue)
                for output in self._client.step():
                    self._pass_on(output, queue, take)

    def _feed(self, queue: deque[EngineRequest]) -> None:
        tokens = sum(self._untouched.values())
        while queue and len(self._untouched) < self._most:
            tokens += len(queue[0].tokens)
            if self._untouched and tokens > self._most_tokens:
                return
            request = queue.popleft()
            self._untouched[request.id] = len(request.tokens)
            self._running[request.id] = request
            self._client.submit(request)

    def _pass_on(self, output: TokenOutput, queue: deque[EngineRequest], take: Take) -> None:
        request = self._running.get(output.id)
        if request is None:
            return
        self._untouched.pop(output.id, None)
        if output.finish == "error":
            del self._running[output.id]
            if output.error_code == OVERLOADED and self._running:
                queue.appendleft(request)  # preempted requests filled the line meanwhile
                return
            raise _as_exception(output)
        early = take(output)
        if output.finish is not None:
            del self._running[output.id]
        elif early:
            del self._running[output.id]
            self._client.abort([output.id])

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        alive = True
        try:
            yield
        except EngineDead:
            alive = False
            raise
        finally:
            left = list(self._running)
            self._running.clear()
            self._untouched.clear()
            if alive:
                self._clear(left)

    def _clear(self, ids: list[str]) -> None:
        self._client.abort(ids)
        while self._client.has_work:  # steps in flight, and the last outputs of what was aborted
            self._client.step()


def _as_exception(output: TokenOutput) -> Exception:
    message = output.error or "the request could not be finished"
    if output.error_code >= 500:
        return EngineError(message)
    return UserError(message, param=output.error_param, code=output.error_name)
