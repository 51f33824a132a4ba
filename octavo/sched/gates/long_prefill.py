"""Long prompts in slices while others run, so that nobody's next token waits for a whole prompt."""

from octavo.sched.gates.base import HOLD, Gate, Past
from octavo.sched.limits import Slicing
from octavo.sched.request import Request

LEAST = 64  # tokens of a slice however deep the past: fewer fill no tile of attention's
GRAIN = 64  # tokens by which slices grow


class LongPrefillGate(Gate):
    """Bounds what one request may compute beside others.

    Without reach and beside: vLLM's ``long_prefill_token_threshold``. With a reach, slices shrink as the request's past
    grows, so that they take about as long. What those who decode have behind them makes their step long anyway, and a
    slice may take its share of that. Of prompts that no slice ends, one at a time has slices, the first in line: it is
    done sooner than if they went side by side, and a step has one of them to wait for.
    """

    def __init__(self, slicing: Slicing) -> None:
        self._slicing = slicing
        self._running = 0
        self._turn = ""  # whose slice this step has
        self._past: Past = int
        self._size: float | None = None  # of a slice without a past, in this step

    def open(self, num_running: int, past: Past) -> None:
        """Remembers who runs."""
        self._running = num_running
        self._past = past
        self._size = None
        self._turn = ""

    def allow(self, request: Request, num_tokens: int) -> int:
        """A slice, if there is anybody else."""
        runs = request.row >= 0  # and so is sure of one token already
        if not self._slicing.tokens or self._running == runs:
            return num_tokens
        slice_ = self._slice(request.computed) - runs
        if num_tokens <= slice_:
            return num_tokens
        if self._slicing.reach and self._turn not in ("", request.id):
            return HOLD if runs else min(slice_, LEAST)
        return slice_

    def spend(self, request: Request, num_tokens: int) -> None:
        """A prompt that this does not end has this step's slice."""
        if request.computed + num_tokens + 1 < request.known:
            self._turn = self._turn or request.id

    def _slice(self, past: int) -> int:
        tokens, reach = self._slicing.tokens, self._slicing.reach
        if not reach:
            return tokens
        if self._size is None:
            self._size = max(tokens, self._slicing.beside * self._past()) if self._slicing.beside else tokens
        shrunk = int(self._size * reach / (reach + past)) // GRAIN * GRAIN
        return max(shrunk, min(LEAST, tokens))
