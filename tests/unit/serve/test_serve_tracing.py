"""Traces against a collector that stands in for the real one: an HTTP server that decodes OTLP."""

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from octavo.base.errors import ConfigError
from octavo.base.wire import Sampling
from octavo.serve import tracing
from octavo.serve.journey import Journey
from octavo.serve.tracing import NoTracer, Visit, make_tracer, stages

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.bodies = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def journey() -> Journey:
    made = Journey(arrival=100.0, key="team-a")
    made.read, made.prepared, made.submitted = 100.1, 100.2, 100.25
    made.scheduled, made.first, made.last = 100.5, 101.0, 103.0
    made.model, made.sequences, made.sampling = "m", 1, Sampling(1, 50, temperature=0.5)
    made.prompt_tokens, made.output_tokens, made.finish = 12, 40, ["stop"]
    return made


def test_a_span_a_stage_under_the_callers_trace(collector: http.server.ThreadingHTTPServer) -> None:
    pytest.importorskip("opentelemetry.sdk")
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    tracer = make_tracer(f"http://127.0.0.1:{collector.server_port}")
    headers = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"authorization", b"Bearer sk-secret")]
    tracer.write(Visit("req-1", "POST", "/v1/chat/completions", 200, journey(), 103.1, headers))
    tracer.close()
    ((path, body),) = collector.bodies  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    assert b"secret" not in body
    resource = trace.ExportTraceServiceRequest.FromString(body).resource_spans[0]
    assert any(
        each.key == "service.name" and each.value.string_value == "octavo" for each in resource.resource.attributes
    )
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    assert set(spans) == {"llm_request", "receive", "tokenize", "queue", "prefill", "decode", "send"}
    root = spans["llm_request"]
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == PARENT
    assert all(span.parent_span_id == root.span_id for span in spans.values() if span is not root)
    decode = spans["decode"]
    assert decode.end_time_unix_nano - decode.start_time_unix_nano == pytest.approx(2e9, rel=1e-3)
    told = {each.key: each.value for each in root.attributes}
    assert told["gen_ai.usage.completion_tokens"].int_value == 40
    assert told["gen_ai.request.id"].string_value == "req-1"
    assert told["gen_ai.operation.name"].string_value == "chat"
    assert told["gen_ai.latency.time_to_first_token"].double_value == pytest.approx(1.0)
    assert told["gen_ai.latency.time_in_queue"].double_value == pytest.approx(0.25)
    assert told["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "stop"


def test_a_request_that_died_early_has_the_stages_it_passed() -> None:
    early = Journey(arrival=5.0)
    early.read = 5.5
    assert [name for name, _, _ in stages(early, 6.0)] == ["receive"]
    assert list(stages(Journey(arrival=5.0), 6.0)) == []


def test_without_an_endpoint_nothing_is_imported() -> None:
    assert isinstance(make_tracer(None), NoTracer)


@pytest.mark.parametrize(
    "endpoint", ["grpc://collector:4317", "collector:4317", "http://", "http://[::1", "http://h:99999"]
)
def test_endpoints_that_cannot_be_used(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="OTLP over HTTP"):
        make_tracer(endpoint)


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(tracing, "OtlpTracer", missing)
    with pytest.raises(ConfigError, match=r"pip install octavo\[otel\]"):
        make_tracer("http://127.0.0.1:4318")


def test_an_overlong_trace_header_is_passed_over() -> None:
    assert tracing._carrier([(b"tracestate", b"x" * 1000), (b"traceparent", b"00-a-b-01")]) == {
        "traceparent": "00-a-b-01"
    }


def test_a_collector_that_is_gone_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.sdk")
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as closed:
        port = closed.server_port
    caplog.set_level("WARNING", "octavo.traces")
    tracer = make_tracer(f"http://127.0.0.1:{port}")
    for index in range(50):
        tracer.write(Visit(f"req-{index}", "POST", "/v1/completions", 200, journey(), 103.1, []))
    begin = time.monotonic()
    tracer.close()
    assert time.monotonic() - begin < tracing.CLOSE_S + 2
    said = [record for record in caplog.records if record.name == "octavo.traces"]
    assert len(said) == 1
    assert "traces do not arrive" in said[0].getMessage()
