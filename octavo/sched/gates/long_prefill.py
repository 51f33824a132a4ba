"""Long prompts in slices while others run, so that nobody's next token waits for a whole prompt."""

from octavo.sched.request import Request


class LongPrefillGate:
    """At most `threshold` tokens of one request in a step, unless it is alone; 0: no limit.

    vLLM's ``long_prefill_token_threshold``.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._running = 0

    def open(self, num_running: int) -> None:
        """Remembers who runs."""
        self._running = num_running

    def allow(self, request: Request, num_tokens: int) -> int:
        """A slice, if there is anybody else."""
        runs = request.row >= 0  # and so is sure of one token already
        if not self._threshold or self._running == runs:
            return num_tokens
        return min(num_tokens, self._threshold - runs)

    def spend(self, request: Request, num_tokens: int) -> None:
        """A limit for each request; nothing is used up."""
