"""Long prompts in slices while others run, so that nobody's next token waits for a whole prompt."""

from octavo.sched.gates.base import Past
from octavo.sched.limits import Slicing
from octavo.sched.request import Request

LEAST = 128  # tokens of a slice however deep the past: fewer fill no tile of attention's
GRAIN = 64  # tokens by which slices grow


class LongPrefillGate:
    """Bounds what one request may compute beside others.

    Without reach and beside: vLLM's ``long_prefill_token_threshold``. With a reach, slices shrink as the request's past
    grows, so that they take about as long. What those who decode have behind them makes their step long anyway, and a
    slice may take its share of that; prompts that are deep in their past share it among them.
    """

    def __init__(self, slicing: Slicing) -> None:
        self._slicing = slicing
        self._running = 0
        self._deep = 0  # prompts of this step that are past the reach
        self._deep_before = 0
        self._past: Past = int
        self._size: float | None = None  # of a slice without a past, in this step

    def open(self, num_running: int, past: Past) -> None:
        """Remembers who runs."""
        self._running = num_running
        self._past = past
        self._size = None
        self._deep_before, self._deep = self._deep, 0

    def allow(self, request: Request, num_tokens: int) -> int:
        """A slice, if there is anybody else."""
        runs = request.row >= 0  # and so is sure of one token already
        if not self._slicing.tokens or self._running == runs:
            return num_tokens
        return min(num_tokens, self._slice(request.computed) - runs)

    def spend(self, request: Request, num_tokens: int) -> None:
        """A limit for each request; nothing is used up."""
        del num_tokens
        self._deep += self._is_deep(request.computed)

    def _is_deep(self, past: int) -> bool:
        return 0 < self._slicing.reach <= past

    def _slice(self, past: int) -> int:
        tokens, reach = self._slicing.tokens, self._slicing.reach
        if not reach:
            return tokens
        if self._size is None:
            self._size = max(tokens, self._slicing.beside * self._past()) if self._slicing.beside else tokens
        size = self._size / max(1, self._deep_before) if self._is_deep(past) else self._size
        shrunk = int(size * reach / (reach + past)) // GRAIN * GRAIN
        return max(shrunk, min(LEAST, tokens))
