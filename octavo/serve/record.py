"""What is written down about a request once it is over: its counts, a line in the log, a trace."""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.types import Scope

from octavo.base.config import ServeConfig
from octavo.base.wire import EngineRequest, Sampling
from octavo.serve.journey import Journey
from octavo.serve.metrics import Metrics
from octavo.serve.tracing import Visit, make_tracer
from octavo.text.collect import Collector

access = logging.getLogger("octavo.access")
requests = logging.getLogger("octavo.requests")

PROBES = frozenset({"/health", "/ready", "/ping", "/metrics", "/version"})
"""Asked every few seconds: a line at level debug, and no trace."""


class Recorder:
    """One server's book of requests."""

    def __init__(self, metrics: Metrics, config: ServeConfig) -> None:
        """Raises ConfigError for a traces endpoint that cannot be used."""
        self._metrics = metrics
        self._tracer = make_tracer(config.otlp_traces_endpoint)
        self._lines = not config.disable_uvicorn_access_log
        self._params = config.enable_log_requests
        self._max_chars = config.max_log_len

    def over(self, scope: Scope, request_id: str, route: str, status: int, journey: Journey) -> None:
        """The last byte has gone out, or will not. `route` is a path of the route table or "other"."""
        end, method = time.monotonic(), scope["method"]
        self._metrics.http(route, method, status, end - journey.arrival)
        if journey.code:
            self._metrics.refused(status, journey.code, journey.key)
        probe = route in PROBES
        level = logging.DEBUG if probe else logging.INFO
        if self._lines and access.isEnabledFor(level):
            self._line(level, scope, route, status, journey, end - journey.arrival)
        if not probe:
            self._tracer.write(Visit(request_id, method, route, status, journey, end, scope["headers"]))

    def _line(self, level: int, scope: Scope, route: str, status: int, journey: Journey, seconds: float) -> None:
        """The route, not the address: a query string may hold what nobody should read."""
        client = (scope.get("client") or ("-",))[0]
        fields: dict[str, Any] = {
            "client": client,
            "method": scope["method"],
            "route": route,
            "status": status,
            "seconds": round(seconds, 4),
        }
        text = f"{scope['method']} {route} {status} in {seconds:.3f} s"
        if journey.key:
            fields["key"] = journey.key
        if journey.code:
            fields["error"] = journey.code
            text += f", {journey.code}"
        if journey.first:
            fields |= {
                "model": journey.model,
                "prompt_tokens": journey.prompt_tokens,
                "cached_tokens": journey.cached_tokens,
                "output_tokens": journey.output_tokens,
                "queue_seconds": round(journey.queued_s, 4),
                "ttft_seconds": round(journey.first - journey.arrival, 4),
                "finish": journey.finish,
            }
            text += (
                f", {journey.prompt_tokens} + {journey.output_tokens} tokens, "
                f"first after {journey.first - journey.arrival:.3f} s"
            )
        access.log(level, text, extra={"fields": fields})

    def asked(self, sequences: Sequence[EngineRequest], collectors: Sequence[Collector]) -> None:
        """With --enable-log-requests: the parameters of a request, and at level debug its prompt."""
        if not self._params or not requests.isEnabledFor(logging.INFO):
            return
        first = sequences[0]
        requests.info(
            "received %s: %d sequences, %d prompt tokens, %s",
            first.id,
            len(sequences),
            len(first.tokens),
            ", ".join(f"{name} {value}" for name, value in _given(first.sampling)),
        )
        if requests.isEnabledFor(logging.DEBUG):
            requests.debug("prompt of %s: %s", first.id, collectors[0].prompt_text[: self._max_chars])

    def close(self) -> None:
        """Sends the traces that are left."""
        self._tracer.close()


def _given(sampling: Sampling) -> Iterator[tuple[str, Any]]:
    """The rules that are not as they are without a word."""
    usual = Sampling(sampling.seed, sampling.max_tokens)
    for name in sampling.__struct_fields__:
        value = getattr(sampling, name)
        if name in ("seed", "max_tokens") or value != getattr(usual, name):
            yield name, value
