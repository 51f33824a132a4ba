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

TakeTokens = Callable[[list[str], list[int], list[bytes]], list[str]]
"""Called with requests that got one token each and at most a line of log-probabilities; those to end early."""


class BatchRunner:
    """Feeds requests as the engine's waiting line has room, and passes their outputs on."""

    def __init__(self, client: InprocClient, limits: SchedulerConfig) -> None:
        self._client = client
        # More in line than fit in a step or two gain nothing.
        self._most = min(limits.max_waiting, 2 * client.ready.max_num_seqs)
        self._most_tokens = limits.max_waiting_tokens
        self._untouched: dict[str, int] = {}  # requests sent that have no output yet: their prompt tokens
        self._running: dict[str, EngineRequest] = {}

    def run(self, requests: Sequence[EngineRequest], take: Take, take_tokens: TakeTokens | None = None) -> None:
        """Returns when all have ended. Raises UserError or EngineError for the first that cannot be served.

        Without `take_tokens` all outputs go to `take`.

        However it ends, by Ctrl-C too (which waits for the end of a step), nothing of these requests stays in the
        engine.
        """
        queue = deque(requests)
        with deferred_interrupt() as check, self._cleared():
            while queue or self._running:
                check()
                self._feed(queue)
                step = self._client.step()
                for output in step.outputs if take_tokens else step.each():
                    self._pass_on(output, queue, take)
                if take_tokens and step.ids:
                    self._end_early(take_tokens(step.ids, step.tokens, step.logprobs))

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
            self._end_early([output.id])

    def _end_early(self, ids: list[str]) -> None:
        for id in ids:
            del self._running[id]
        if ids:
            self._client.abort(ids)

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
        if ids:
            self._client.abort(ids)
        while self._client.has_work:  # steps in flight, and the last outputs of what was aborted
            self._client.step()


def _as_exception(output: TokenOutput) -> Exception:
    message = output.error or "the request could not be finished"
    if output.error_code >= 500:
        return EngineError(message)
    return UserError(message, param=output.error_param, code=output.error_name)
