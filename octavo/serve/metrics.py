"""What ``/metrics`` says: vLLM's names and meanings with ``octavo:`` in front, and what vLLM does not measure.

Nothing a client sends becomes a label, except as one of a bounded set of names the operator has given.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from octavo.base.wire import FINISH_REASONS, SLEEP_STATES, EngineStats
from octavo.engine.life import Survival
from octavo.serve.series import OTHER, Count, Counts, Gauges, Info, Page, Reading, Tallies, Tally, Totals

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_USAGES = 100  # keys, and adapters, that are counted by name; the rest together as "other"
WHOLE = frozenset({"stop", "length"})  # ends after which a sequence has its full length

# vLLM's bounds, so that dashboards made for it fit; finer ones before them where a small model is faster.
_STEP = (
    *(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PHASE = (
    *(0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 1_000_000)
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, 1, 2, 5, 10)
_SHORT = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

FIGURES = {
    "grammar_compile_seconds": "Waited for constraints to be compiled.",
    "grammar_compiles": "Constraints that had to be compiled.",
    "grammar_cache_hits": "Constraints that were known already.",
    "grammar_mask_seconds": "Spent on filling masks of allowed tokens, beside the device's work.",
}
"""Counters that features of the engine keep (EngineStats.figures)."""


class Usage(NamedTuple):
    """The counts of one key or one adapter."""

    prompt_tokens: Count
    cached_tokens: Count
    generation_tokens: Count
    ttft: Tally
    e2e: Tally
    requests: dict[str, Count]  # by finish reason


class Metrics:
    """All series of one server. `model` is its first served name."""

    def __init__(
        self,
        model: str,
        stats: Callable[[], EngineStats],
        survival: Callable[[], Survival] = Survival,
        *,
        compat: bool = False,
    ) -> None:
        self._stats = stats
        self._survival = survival
        self._page = Page(model, compat=compat)
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self.phases: dict[str, float] = {}  # seconds of each phase of the start
        self._cache: dict[str, str] = {}
        self._build: dict[str, str] = {}
        self._computed = 0
        self._made = 0
        self._engine_families()
        self._token_families()
        self._time_families()
        self._server_families()
        self._usages = {name: _Split(self._page, name) for name in ("key", "adapter")}

    # --- what the server tells it

    def usages(self, key: str, adapter: str = "") -> tuple[Usage, ...]:
        """Where the use of one request is counted beside the totals: its key's name, its adapter's; "" is none."""
        return tuple(self._usages[name].of(value) for name, value in (("key", key), ("adapter", adapter)) if value)

    def asked(self, n: int, max_tokens: int) -> None:
        """A request for `n` choices of at most `max_tokens` tokens each went to the engine."""
        self.params_n.observe(n)
        self.params_max_tokens.observe(max_tokens)

    def finished(self, reason: str) -> None:
        """Counts the one end of a sequence; anything unknown is an error."""
        self._finished.get(reason, self._finished["error"]).inc()

    def http(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one HTTP answer; `route` is a path of the route table or "other"."""
        self._http.of(route, method if method in METHODS else "OTHER", f"{status // 100}xx").inc()
        self._http_time.of(route).observe(seconds)

    def refused(self, status: int, code: str, key: str = "") -> None:
        """Counts a request that was answered with an error; `code` is one of the server's own words."""
        self._errors.of(code).inc()
        if status in (429, 503):
            self._rejections.of(code).inc()
        if status == 429 and key:
            self._key_rejections.of(key).inc()

    def step(self, stats: EngineStats) -> None:
        """Figures of the step that has just ended."""
        tokens = stats.prompt_tokens - self._computed + stats.generation_tokens - self._made
        self._computed, self._made = stats.prompt_tokens, stats.generation_tokens
        if tokens > 0:  # an engine begun anew counts from nought
            self.iteration_tokens.observe(tokens)

    def started(self, phases: dict[str, float], cache: dict[str, str], build: dict[str, str]) -> None:
        """What start-up took and settled: seconds of each phase, facts of the KV cache and of the server."""
        self.phases, self._cache, self._build = phases, cache, build

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return self._page.write().encode() + generate_latest(self._process)

    # --- families

    def _engine_families(self) -> None:
        """The engine's own figures, read when Prometheus asks."""

        def one(name: str) -> Callable[[], list[Reading]]:
            return lambda: [((), float(getattr(self._stats(), name)))]

        def lived(name: str) -> Callable[[], list[Reading]]:
            return lambda: [((), float(getattr(self._survival(), name)))]

        def waiting() -> Iterator[Reading]:
            stats = self._stats()
            yield ("capacity",), stats.waiting
            yield ("deferred",), stats.figures.get("grammar_waiting", 0)

        def all_waiting() -> list[Reading]:
            return [((), sum(value for _, value in waiting()))]

        def sources() -> Iterator[Reading]:
            stats = self._stats()
            yield ("local_compute",), stats.prompt_tokens
            yield ("local_cache_hit",), stats.prefix_hits

        def rest() -> Iterator[Reading]:
            for level, name in enumerate(SLEEP_STATES):
                yield (name,), float(self._stats().asleep == level)

        by_reason, by_source, by_state = ("reason",), ("source",), ("sleep_state",)
        self._page.add(
            Gauges("num_requests_running", "Sequences in the batch.", one("running"), vllm=True),
            Gauges("num_requests_waiting", "Sequences that wait for their first step.", all_waiting, vllm=True),
            Gauges(
                "num_requests_waiting_by_reason",
                "Of them: for room, and for a constraint to be compiled.",
                waiting,
                by_reason,
                vllm=True,
            ),
            Gauges("kv_cache_usage_perc", "Share of KV blocks in use; 1 is full.", one("kv_usage"), vllm=True),
            Gauges("kv_cache_waste_perc", "Share of reserved KV slots that hold nothing.", one("kv_waste")),
            Gauges("engine_sleep_state", "1 for the state that holds.", rest, by_state, vllm=True),
            Info("cache_config_info", "How the KV cache was cut.", lambda: self._cache, vllm=True),
            Info("build_info", "What runs here.", lambda: self._build),
            Totals("prefix_cache_queries", "Prompt tokens looked up there.", one("prefix_queries"), vllm=True),
            Totals("prefix_cache_hits", "Prompt tokens found there.", one("prefix_hits"), vllm=True),
            Totals("num_preemptions", "Sequences put back for lack of blocks.", one("preemptions"), vllm=True),
            Totals("prompt_tokens_by_source", "Prompt tokens computed, and found.", sources, by_source, vllm=True),
            Totals("engine_steps", "Steps of the engine.", one("steps")),
            Totals("engine_step_failures", "Steps that raised; their requests had an error.", one("failures")),
            Totals("corrupted_requests", "Sequences ended by logits that are no numbers.", one("corrupted"), vllm=True),
        )
        for name, text in FIGURES.items():
            self._page.add(Totals(name, text, self._figure(name)))
        self._page.add(
            Totals("engine_restarts", "Times the engine's process was started again.", lived("restarts")),
            Totals("requests_replayed", "Sequences that went on in another process of the engine.", lived("replayed")),
            Totals("requests_failed_by_crash", "Sequences ended because the engine crashed.", lived("failed")),
            Gauges(
                "engine_restart_seconds",
                "Seconds from the end of the engine's last process until the next took requests.",
                lived("last_restart_s"),
            ),
        )

    def _figure(self, name: str) -> Callable[[], list[Reading]]:
        return lambda: [((), self._stats().figures.get(name, 0.0))]

    def _token_families(self) -> None:
        self.prompt_tokens = self._count("prompt_tokens", "Prompt tokens of requests that began to answer.")
        self.cached_tokens = self._count("prompt_tokens_cached", "Those found in the prefix cache.")
        self.generation_tokens = self._count("generation_tokens", "Tokens generated.")
        success = Counts("request_success", "Sequences ended.", ("finished_reason",), vllm=True)
        self._page.add(success)
        self._finished = {reason: success.of(reason) for reason in FINISH_REASONS}
        self.iteration_tokens = self._tally("iteration_tokens_total", "Tokens of one step.", _TOKENS[:14])
        self.request_prompt = self._tally("request_prompt_tokens", "Prompt tokens a sequence.", _TOKENS)
        self.request_output = self._tally("request_generation_tokens", "Tokens a sequence.", _TOKENS)
        self.request_computed = self._tally(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed a sequence, cache hits not counted.", _TOKENS
        )
        self.longest_output = self._tally(
            "request_max_num_generation_tokens", "Tokens of a request's longest choice.", _TOKENS
        )
        self.params_n = self._tally("request_params_n", "Choices asked for.", _CHOICES)
        self.params_max_tokens = self._tally("request_params_max_tokens", "Most tokens allowed.", _TOKENS)
        self.preemptions = self._tally("request_num_preemptions", "Times a sequence was put back.", _PREEMPTIONS)

    def _time_families(self) -> None:
        self.ttft = self._tally("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        gaps = Tallies("inter_token_latency_seconds", "Time between two tokens.", _STEP, vllm=True)
        self._page.add(gaps, gaps.named("time_per_output_token_seconds"))  # what it was called before
        self.itl = gaps.of()
        self.per_token = self._tally(
            "request_time_per_output_token_seconds", "A sequence's mean time between tokens.", _STEP
        )
        self.e2e = self._tally("e2e_request_latency_seconds", "Arrival to last token.", _PHASE)
        self.queued = self._tally("request_queue_time_seconds", "Waiting for the first step.", _PHASE)
        self.inference = self._tally("request_inference_time_seconds", "First step to last token.", _PHASE)
        self.prefill = self._tally("request_prefill_time_seconds", "First step to first token.", _PHASE)
        self.decode = self._tally("request_decode_time_seconds", "First token to last token.", _PHASE)

    def _server_families(self) -> None:
        self.tokenize = self._tally("tokenize_time_seconds", "Template and tokenizer, a request.", _SHORT, vllm=False)
        self.lag = self._tally("event_loop_lag_seconds", "How late the event loop is.", _SHORT, vllm=False)
        self._http = Counts("http_requests", "HTTP requests by known route.", ("route", "method", "status"))
        self._http_time = Tallies("http_request_duration_seconds", "Until the last byte.", _PHASE, ("route",))
        self._errors = Counts("request_errors", "Requests answered with an error, by its code.", ("code",))
        self._rejections = Counts("admission_rejections", "Requests not admitted.", ("reason",), vllm=True)
        self._key_rejections = Counts("key_rejections", "Requests answered 429, by key.", ("key",))
        phases = Gauges("startup_phase_seconds", "Seconds of each phase of the start.", self._read_phases, ("phase",))
        self._page.add(self._http, self._http_time, self._errors, self._rejections, self._key_rejections, phases)

    def _read_phases(self) -> Iterator[Reading]:
        for name, seconds in self.phases.items():
            yield (name,), seconds

    def _count(self, name: str, text: str, *, vllm: bool = True) -> Count:
        family = Counts(name, text, vllm=vllm)
        self._page.add(family)
        return family.of()

    def _tally(self, name: str, text: str, bounds: tuple[float, ...], *, vllm: bool = True) -> Tally:
        family = Tallies(name, text, bounds, vllm=vllm)
        self._page.add(family)
        return family.of()


class _Split:
    """The families that count use by one label."""

    def __init__(self, page: Page, label: str) -> None:
        labels = (label,)
        self._prompt = Counts(f"{label}_prompt_tokens", f"Prompt tokens by {label}.", labels)
        self._cached = Counts(f"{label}_prompt_tokens_cached", f"Those found in the prefix cache, by {label}.", labels)
        self._generation = Counts(f"{label}_generation_tokens", f"Tokens generated, by {label}.", labels)
        self._ttft = Tallies(
            f"{label}_time_to_first_token_seconds", f"Arrival to first token, by {label}.", _TTFT, labels
        )
        self._e2e = Tallies(
            f"{label}_e2e_request_latency_seconds", f"Arrival to last token, by {label}.", _PHASE, labels
        )
        self._requests = Counts(f"{label}_requests", f"Sequences ended, by {label}.", (label, "finished_reason"))
        self._known: dict[str, Usage] = {}
        page.add(self._prompt, self._cached, self._generation, self._requests, self._ttft, self._e2e)

    def of(self, value: str) -> Usage:
        """The counts of one key or adapter."""
        if value not in self._known and len(self._known) >= MAX_USAGES:
            value = OTHER
        usage = self._known.get(value)
        if usage is None:
            usage = self._known[value] = Usage(
                self._prompt.of(value),
                self._cached.of(value),
                self._generation.of(value),
                self._ttft.of(value),
                self._e2e.of(value),
                {reason: self._requests.of(value, reason) for reason in FINISH_REASONS},
            )
        return usage
