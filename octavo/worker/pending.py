"""The result of a step that the device may not have finished: a future over one enqueued copy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import StepResult
from octavo.platform.base import Event
from octavo.worker.landing import Landed
from octavo.worker.prompt_logprobs import PromptSpans, split
from octavo.worker.sample.logprobs import lines_of
from octavo.worker.staging import Ints


@dataclass(slots=True)
class Outputs:
    """Host tensors that the event fills, and what the host needs to read them."""

    tokens: Landed | None  # [S]
    spoiled: npt.NDArray[np.bool_] | None  # [S], rows whose input was not sound: their token is -1 whatever was drawn
    logprobs: Landed | None  # of all sampled rows, or of those in `wanted`
    wanted: list[int]
    tops: list[int]
    prompt: Tensor | None
    spans: PromptSpans | None


class StepPending:
    """Ready when the event has passed. `result` may be called again and gives the same object."""

    def __init__(self, step: int, event: Event, outputs: Outputs) -> None:
        self._step = step
        self._event = event
        self._outputs = outputs
        self._result: StepResult | None = None

    def done(self) -> bool:
        if self._result is not None:
            return True
        try:
            return self._event.query()
        except RuntimeError:
            return True  # result() tells what went wrong

    def result(self) -> StepResult:
        """Wait and give the result. Raises EngineError if the device reported a failure."""
        if self._result is None:
            try:
                self._event.synchronize()
            except RuntimeError as error:
                raise failure(self._step, error) from error
            self._result = self._read()
        return self._result

    def _read(self) -> StepResult:
        out = self._outputs
        tokens = [] if out.tokens is None else out.tokens.read_list()
        if out.spoiled is not None:
            tokens = np.where(out.spoiled, -1, tokens).tolist()
        logprobs = [] if out.logprobs is None else self._lines(out.logprobs.read(), tokens)
        prompt = {} if out.prompt is None or out.spans is None else split(out.prompt.numpy(), out.spans)
        return StepResult(step=self._step, tokens=tokens, logprobs=logprobs, prompt_logprobs=prompt)

    def _lines(self, described: Ints, tokens: list[int]) -> list[bytes]:
        """A line of log-probabilities for each token, empty for who wants none or has no token."""
        out = self._outputs
        lines = lines_of(described if len(described) == len(out.wanted) else described[out.wanted], out.tops)
        if len(lines) == len(tokens) and -1 not in tokens:
            return lines
        told = dict(zip(out.wanted, lines))
        return [b"" if token == -1 else told.get(index, b"") for index, token in enumerate(tokens)]


class FailedPending:
    """A step that could not be enqueued."""

    def __init__(self, error: EngineError) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        """Raises the step's EngineError."""
        raise self.error


def failure(step: int, error: Exception) -> EngineError:
    """One line about what broke a step; the cause hangs on it for the log."""
    if isinstance(error, EngineError):
        return error
    text = str(error).strip().splitlines()
    wrapped = EngineError(f"step {step} failed: {type(error).__name__}: {text[0][:200] if text else ''}")
    wrapped.__cause__ = error
    return wrapped
