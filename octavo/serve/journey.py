"""Where a request has been: when it passed each stage, and what it used. Read once, at its end, by log and tracer.

A request stands for one HTTP call with all its sequences. Times are monotonic seconds; 0 means: not reached.
"""

import time
from dataclasses import dataclass, field

from octavo.base.params import MAX_N
from octavo.base.wire import EngineRequest, Sampling, TokenOutput
from octavo.serve.metrics import WHOLE, Metrics, Usage


@dataclass(slots=True)
class Journey:
    """The stages of one request: arrival, read, prepared, submitted, scheduled, first token, last token."""

    arrival: float = field(default_factory=time.monotonic)
    read: float = 0.0  # the body is in and checked
    prepared: float = 0.0  # it is a prompt of tokens
    submitted: float = 0.0  # the engine has it
    scheduled: float = 0.0  # its first sequence is in a step
    first: float = 0.0
    last: float = 0.0
    key: str = ""  # the name of the key it came with, empty where there is none to tell
    adapter: str = ""
    model: str = ""
    sequences: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    sampling: Sampling | None = None
    finish: list[str] = field(default_factory=list)  # reasons in the order of the ends; MAX_N at most
    code: str = ""  # of the error that answered it

    @property
    def queued_s(self) -> float:
        """Seconds in the engine's queue."""
        return max(0.0, self.scheduled - self.submitted) if self.scheduled else 0.0

    def enter(self, requests: list[EngineRequest]) -> None:
        """Its sequences go to the engine now."""
        self.submitted = time.monotonic()
        self.sequences += len(requests)
        self.sampling = requests[0].sampling

    def ended(self, reason: str) -> None:
        """A sequence has ended."""
        if len(self.finish) < MAX_N:
            self.finish.append(reason)


class Timer:
    """Times of one sequence: first token, gaps, end. Three observations a step, whatever the number of tokens."""

    __slots__ = ("_done", "_first", "_journey", "_last", "_metrics", "_prompt", "_scheduled", "_usages", "tokens")

    def __init__(self, metrics: Metrics, journey: Journey, usages: tuple[Usage, ...], prompt_tokens: int) -> None:
        self._metrics = metrics
        self._journey = journey
        self._usages = usages
        self._prompt = prompt_tokens
        self._first = self._last = self._scheduled = 0.0
        self.tokens = 0
        self._done = False

    def feed(self, output: TokenOutput, now: float) -> None:
        """An output with tokens arrived at `now`."""
        metrics, count = self._metrics, len(output.tokens)
        if self.tokens:
            metrics.itl.observe((now - self._last) / count, count)
        else:
            self._begin(output, now)
        metrics.generation_tokens.value += count
        for usage in self._usages:
            usage.generation_tokens.value += count
        self.tokens += count
        self._last = now

    def _begin(self, output: TokenOutput, now: float) -> None:
        metrics, journey = self._metrics, self._journey
        ttft, cached = now - journey.arrival, output.cached_tokens
        self._first = now
        self._scheduled = min(now, journey.submitted + output.queued_s)
        if not journey.first:
            journey.first, journey.scheduled = now, self._scheduled
        journey.prompt_tokens += self._prompt
        journey.cached_tokens += cached
        metrics.ttft.observe(ttft)
        metrics.queued.observe(output.queued_s)
        metrics.prompt_tokens.inc(self._prompt)
        metrics.cached_tokens.inc(cached)
        metrics.request_computed.observe(self._prompt - cached)
        metrics.prefill.observe(now - self._scheduled)
        for usage in self._usages:
            usage.prompt_tokens.inc(self._prompt)
            usage.cached_tokens.inc(cached)
            usage.ttft.observe(ttft)

    def finish(self, reason: str, now: float, preemptions: int = 0) -> None:
        """The end, once; later calls do nothing, so that a late abort does not count twice."""
        if self._done:
            return
        self._done = True
        metrics, journey = self._metrics, self._journey
        journey.ended(reason)
        journey.last = max(journey.last, self._last)
        journey.output_tokens += self.tokens
        metrics.finished(reason)
        for usage in self._usages:
            usage.requests.get(reason, usage.requests["error"]).inc()
        if reason not in WHOLE:
            return
        metrics.e2e.observe(now - journey.arrival)
        metrics.request_prompt.observe(self._prompt)
        metrics.request_output.observe(self.tokens)
        metrics.preemptions.observe(preemptions)
        for usage in self._usages:
            usage.e2e.observe(now - journey.arrival)
        if self.tokens:
            metrics.inference.observe(self._last - self._scheduled)
            metrics.decode.observe(self._last - self._first)
        if self.tokens > 1:
            metrics.per_token.observe((self._last - self._first) / (self.tokens - 1))
