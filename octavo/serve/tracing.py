"""OpenTelemetry traces: a span a request with a child for each stage, sent over OTLP/HTTP by the library's thread.

Spans are made when a request is over, from the times its journey holds, so tracing costs a running request nothing.
The library is an extra (``pip install octavo[otel]``), imported when an endpoint is set. Attribute names are those of
vLLM and of OpenTelemetry's conventions for generative AI. No prompt and no answer goes into a span.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from octavo import __version__
from octavo.base.address import http_parts
from octavo.base.errors import ConfigError
from octavo.serve.journey import Journey

log = logging.getLogger("octavo.traces")

CLOSE_S = 2.0
COMPLAIN_S = 60.0
MAX_VISITS = 4096  # requests whose spans are still to be made; more are not traced
TRACES_PATH = "/v1/traces"
MAX_TRACE_HEADER_BYTES = 512
_CONTEXT = frozenset({b"traceparent", b"tracestate"})
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
}

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Visit:
    """An HTTP request that is over. `end` is monotonic; `headers` are the request's."""

    request_id: str
    method: str
    route: str
    status: int
    journey: Journey
    end: float
    headers: Iterable[tuple[bytes, bytes]]


class Tracer(Protocol):
    """Where finished requests are told."""

    def write(self, visit: Visit) -> None:
        """Hands on what is known of a request. Never waits, never raises."""
        ...

    def close(self) -> None:
        """Sends what is left, for a short while at most."""
        ...


class NoTracer:
    """Nobody asks."""

    def write(self, visit: Visit) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is left."""


def make_tracer(endpoint: str | None) -> Tracer:
    """The tracer for an endpoint. Raises ConfigError for one that cannot be used and where the library is missing."""
    if endpoint is None:
        return NoTracer()
    parts = http_parts(endpoint)
    if parts is None:
        raise ConfigError("--otlp-traces-endpoint takes OTLP over HTTP: http://HOST:4318/v1/traces")
    try:
        return OtlpTracer(endpoint if parts.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH)
    except ImportError:
        raise ConfigError("--otlp-traces-endpoint needs OpenTelemetry: pip install octavo[otel]") from None


class OtlpTracer:
    """Spans in batches to a collector. The library's variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, ...) hold."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [_Complaints()], False
        named = Resource({"service.name": "octavo", "service.version": __version__})
        self._provider = TracerProvider(resource=named.merge(_from_environment()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._inside = set_span_in_context
        self._server = SpanKind.SERVER
        self._failed = StatusCode.ERROR
        self._visits: queue.Queue[Visit | None] = queue.Queue(MAX_VISITS)
        self._thread = threading.Thread(target=self._work, daemon=True, name="octavo-traces")
        self._thread.start()

    def write(self, visit: Visit) -> None:
        """The spans are made in a thread: seven of them take the library a good part of a millisecond."""
        with contextlib.suppress(queue.Full):
            self._visits.put_nowait(visit)

    def close(self) -> None:
        # The library tries a collector that does not answer for half a minute, whatever time it is given.
        with contextlib.suppress(queue.Full):
            self._visits.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (visit := self._visits.get()) is not None:
            try:
                self._tell(visit)
            except Exception:
                log.exception("a trace was lost")
        self._provider.shutdown()

    def _tell(self, visit: Visit) -> None:
        """One root span under the caller's, if it sent one, and a span a stage."""
        shift = time.time_ns() - time.monotonic_ns()

        def at(moment: float) -> int:
            return int(moment * 1e9) + shift

        journey = visit.journey
        root = self._tracer.start_span(
            "llm_request",
            context=self._extract(_carrier(visit.headers)),
            kind=self._server,
            attributes=attributes(visit),
            start_time=at(journey.arrival),
        )
        if not root.is_recording():
            return
        inside = self._inside(root)
        for name, begin, end in stages(journey, visit.end):
            self._tracer.start_span(name, context=inside, start_time=at(begin)).end(at(end))
        if visit.status >= 500:
            root.set_status(self._failed)
        root.end(at(visit.end))


def stages(journey: Journey, end: float) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end of each stage that the request has passed or died in."""
    marks = (
        ("receive", journey.arrival, journey.read),
        ("tokenize", journey.read, journey.prepared),
        ("queue", journey.submitted, journey.scheduled),
        ("prefill", journey.scheduled, journey.first),
        ("decode", journey.first, journey.last),
        ("send", journey.last, end),
    )
    for name, begin, until in marks:
        if begin and until:
            yield name, begin, max(begin, until)


def attributes(visit: Visit) -> Attributes:
    """What the root span says."""
    journey, sampling = visit.journey, visit.journey.sampling
    found: Attributes = {
        "http.request.method": visit.method,
        "http.route": visit.route,
        "http.response.status_code": visit.status,
        "gen_ai.request.id": visit.request_id,
        "gen_ai.provider.name": "octavo",
    }
    if visit.route in _OPERATIONS:
        found["gen_ai.operation.name"] = _OPERATIONS[visit.route]
    if journey.code:
        found["error.type"] = journey.code
    if journey.key:
        found["octavo.key"] = journey.key
    if journey.model:
        found["gen_ai.request.model"] = found["gen_ai.response.model"] = journey.model
    if sampling is not None:
        found |= {
            "gen_ai.request.n": journey.sequences,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
        }
    if journey.first:
        found |= _latencies(journey)
    return found


def _latencies(journey: Journey) -> Attributes:
    last = journey.last or journey.first
    return {
        "gen_ai.usage.prompt_tokens": journey.prompt_tokens,
        "gen_ai.usage.completion_tokens": journey.output_tokens,
        "gen_ai.usage.input_tokens": journey.prompt_tokens,
        "gen_ai.usage.output_tokens": journey.output_tokens,
        "gen_ai.usage.cached_tokens": journey.cached_tokens,
        "gen_ai.usage.num_sequences": journey.sequences,
        "gen_ai.response.finish_reasons": list(journey.finish),
        "gen_ai.latency.time_in_queue": journey.queued_s,
        "gen_ai.latency.time_to_first_token": journey.first - journey.arrival,
        "gen_ai.latency.e2e": last - journey.arrival,
        "gen_ai.latency.time_in_model_prefill": journey.first - journey.scheduled,
        "gen_ai.latency.time_in_model_decode": last - journey.first,
        "gen_ai.latency.time_in_model_inference": last - journey.scheduled,
    }


def _carrier(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The W3C trace context of a request; longer headers than it may have are passed over."""
    return {
        name.decode("ascii"): value.decode("latin-1")
        for name, value in headers
        if name in _CONTEXT and len(value) <= MAX_TRACE_HEADER_BYTES
    }


class _Complaints(logging.Handler):
    """What the library says of its collector, in our log, once a minute: it says it every few seconds."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = -COMPLAIN_S

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._last >= COMPLAIN_S:
            self._last = now
            log.warning("traces do not arrive: %s", record.getMessage()[:300])


def _from_environment() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()
