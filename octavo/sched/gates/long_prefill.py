"""Long prompts in slices while others run, so that nobody's next token waits for a whole prompt."""

from octavo.sched.request import Request

LEAST = 128  # tokens of a slice however deep the past: fewer fill no tile of attention's


class LongPrefillGate:
    """At most `threshold` tokens of one request in a step, unless it is alone; 0: no limit.

    vLLM's ``long_prefill_token_threshold``; with a `reach`, slices shrink as the request's past grows: at that many
    tokens a slice holds half as many, so that it takes about as long.
    """

    def __init__(self, threshold: int, reach: int = 0) -> None:
        self._threshold = threshold
        self._reach = reach
        self._running = 0

    def open(self, num_running: int) -> None:
        """Remembers who runs."""
        self._running = num_running

    def allow(self, request: Request, num_tokens: int) -> int:
        """A slice, if there is anybody else."""
        runs = request.row >= 0  # and so is sure of one token already
        if not self._threshold or self._running == runs:
            return num_tokens
        return min(num_tokens, self._slice(request.computed) - runs)

    def spend(self, request: Request, num_tokens: int) -> None:
        """A limit for each request; nothing is used up."""

    def _slice(self, past: int) -> int:
        if not self._reach:
            return self._threshold
        shrunk = self._threshold * self._reach // (self._reach + past) // LEAST * LEAST
        return max(shrunk, min(LEAST, self._threshold))
