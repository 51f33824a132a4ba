"""Prometheus metrics under the names vLLM's users know, with ``octavo:`` in front. The code bounds all label sets."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.base.wire import FINISH_REASONS, EngineStats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# vLLM's buckets, so that dashboards made for it fit.
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 1_000_000)


class Metrics:
    """All series of one server, in a registry of its own. `model` is the first served name."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(model, stats))
        self.prompt_tokens = self._counter(model, "prompt_tokens", "Prompt tokens of requests that began to answer.")
        self.cached_tokens = self._counter(model, "prompt_tokens_cached", "Those found in the prefix cache.")
        self.generation_tokens = self._counter(model, "generation_tokens", "Tokens generated.")
        self.ttft = self._histogram(model, "time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self.queued = self._histogram(model, "request_queue_time_seconds", "Waiting for the first step.", _E2E)
        self.itl = self._histogram(model, "inter_token_latency_seconds", "Time between two tokens.", _ITL)
        self.e2e = self._histogram(model, "e2e_request_latency_seconds", "Arrival to last token.", _E2E)
        self.request_prompt = self._histogram(model, "request_prompt_tokens", "Prompt tokens a request.", _TOKENS)
        self.request_output = self._histogram(model, "request_generation_tokens", "Tokens a request.", _TOKENS)
        success = Counter(
            "octavo:request_success", "Sequences ended.", ["model_name", "finished_reason"], registry=self.registry
        )
        self._finished = {reason: success.labels(model, reason) for reason in FINISH_REASONS}
        self._http = Counter(
            "octavo:http_requests",
            "HTTP requests by known route.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self._http_time = Histogram(
            "octavo:http_request_duration_seconds",
            "Until the last byte.",
            ["route"],
            buckets=_E2E,
            registry=self.registry,
        )

    def finished(self, reason: str) -> None:
        """Counts the one end of a sequence; anything unknown is an error."""
        self._finished.get(reason, self._finished["error"]).inc()

    def http(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one HTTP answer; `route` is a path of the route table or "other"."""
        self._http.labels(route, method if method in METHODS else "OTHER", f"{status // 100}xx").inc()
        self._http_time.labels(route).observe(seconds)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self.registry)

    def _counter(self, model: str, name: str, text: str) -> Any:
        return Counter(f"octavo:{name}", text, ["model_name"], registry=self.registry).labels(model)

    def _histogram(self, model: str, name: str, text: str, buckets: tuple[float, ...]) -> Any:
        series = Histogram(f"octavo:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return series.labels(model)


class Timer:
    """Times of one sequence: first token, gaps, end. Cheap: three observations a step at most."""

    __slots__ = ("_arrival", "_done", "_last", "_metrics", "_prompt", "_tokens")

    def __init__(self, metrics: Metrics, arrival: float, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._prompt = prompt_tokens
        self._last = 0.0
        self._tokens = 0
        self._done = False

    def tokens(self, count: int, cached: int, queued_s: float, now: float) -> None:
        """`count` tokens arrived at `now` (monotonic seconds); `queued_s`: what the sequence waited in the engine."""
        metrics = self._metrics
        if self._tokens:
            gap = (now - self._last) / count
            for _ in range(count):
                metrics.itl.observe(gap)
        else:
            metrics.ttft.observe(now - self._arrival)
            metrics.queued.observe(queued_s)
            metrics.prompt_tokens.inc(self._prompt)
            metrics.cached_tokens.inc(cached)
        metrics.generation_tokens.inc(count)
        self._tokens += count
        self._last = now

    def finish(self, reason: str, now: float) -> None:
        """The end, once; later calls do nothing, so that a late abort does not count twice."""
        if self._done:
            return
        self._done = True
        self._metrics.finished(reason)
        if reason in {"stop", "length"}:
            self._metrics.e2e.observe(now - self._arrival)
            self._metrics.request_prompt.observe(self._prompt)
            self._metrics.request_output.observe(self._tokens)


class _EngineCollector(Collector):
    """The engine's own figures, read when Prometheus asks."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._model = model
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("num_requests_running", "Sequences in the batch.", stats.running),
            ("num_requests_waiting", "Sequences that wait for room.", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is full.", stats.kv_usage),
            ("kv_cache_waste_perc", "Share of reserved KV slots that hold nothing.", stats.kv_waste),
        ):
            gauge = GaugeMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there.", stats.prefix_hits),
            ("num_preemptions", "Sequences put back to wait for lack of KV blocks.", stats.preemptions),
            ("engine_steps", "Steps of the engine.", stats.steps),
            ("prompt_tokens_computed", "Prompt tokens computed, cache hits not counted.", stats.prompt_tokens),
        ):
            counter = CounterMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
