"""What a server says of its requests: series by key, access lines, parameters, traces; over HTTP, in all dialects."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_live import Live, backend, config
from prometheus_client.parser import text_string_to_metric_families

from octavo.serve.tracing import Visit

KEYS = ["sk-first-secret", "sk-second-secret"]
MESSAGES = [{"role": "user", "content": "hello private words"}]


class Traces:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []

    def write(self, visit: Visit) -> None:
        self.visits.append(visit)

    def close(self) -> None:
        pass

    def wait(self, count: int) -> list[Visit]:
        """The visits once there are so many: an answer is written down after it has gone, its trace last."""
        end = time.monotonic() + 10
        while len(self.visits) < count and time.monotonic() < end:
            time.sleep(0.005)
        return self.visits


@pytest.fixture(scope="module")
def seen() -> Iterator[tuple[Live, Traces]]:
    traces = Traces()
    with Live(config(api_key=KEYS, metrics_compat="vllm", enable_log_requests=True), backend()) as live:
        live.service.recorder._tracer = traces
        yield live, traces


def samples(live: Live, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    text = live.get("/metrics", authorization=f"Bearer {KEYS[0]}").body.decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_use_is_told_by_key_and_no_key_is_told(seen: tuple[Live, Traces]) -> None:
    live, _ = seen
    for key, count in zip(KEYS, (3, 5)):
        answer = live.post(
            "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": count}, authorization=f"Bearer {key}"
        )
        assert answer.status == 200
    assert live.quiet()
    made = samples(live, "octavo:key_generation_tokens_total")
    assert sorted(made.values()) == [3, 5]
    assert sum(samples(live, "octavo:key_requests_total").values()) == 2
    assert sum(samples(live, "vllm:generation_tokens_total").values()) == 8
    text = live.get("/metrics", authorization=f"Bearer {KEYS[0]}").body.decode()
    assert "secret" not in text
    assert "private" not in text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "stream": True}),
        ("/v1/completions", {"prompt": "hello private words", "max_tokens": 4}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4, "model": "tiny", "stream": True}),
        ("/v1/responses", {"input": "hello private words", "max_output_tokens": 4, "store": False}),
    ],
)
def test_every_dialect_leaves_a_line_and_a_trace(
    seen: tuple[Live, Traces], caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any]
) -> None:
    live, traces = seen
    caplog.set_level(logging.INFO, "octavo")
    traces.visits.clear()
    answer = live.post(path, body, authorization=f"Bearer {KEYS[1]}", x_request_id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    assert live.quiet()
    (visit,) = traces.wait(1)
    journey = visit.journey
    assert (visit.request_id, visit.route, visit.status) == ("mine-1", path, 200)
    marks = [journey.arrival, journey.read, journey.prepared, journey.submitted, journey.scheduled, journey.first]
    assert 0 < marks[0] <= marks[1] <= marks[2] <= marks[3] <= marks[4] <= marks[5] <= journey.last <= visit.end
    assert journey.output_tokens == 4
    lines = [record for record in caplog.records if record.name == "octavo.access"]
    assert len(lines) == 1
    assert lines[0].fields["output_tokens"] == 4  # type: ignore[attr-defined]
    assert any("max_tokens 4" in record.getMessage() for record in caplog.records if record.name == "octavo.requests")
    logged = " ".join(f"{record.getMessage()} {record.__dict__.get('fields')}" for record in caplog.records)
    assert "private" not in logged
    assert "secret" not in logged


def test_a_refusal_has_its_code_in_line_trace_and_series(
    seen: tuple[Live, Traces], caplog: pytest.LogCaptureFixture
) -> None:
    live, traces = seen
    caplog.set_level(logging.INFO, "octavo")
    traces.visits.clear()
    assert live.post("/v1/completions", {"prompt": "a"}, authorization="Bearer wrong").status == 401
    assert live.post("/v1/completions", {"prompt": "a", "model": "no"}, authorization=f"Bearer {KEYS[0]}").status == 404
    assert [visit.journey.code for visit in traces.wait(2)] == ["invalid_api_key", "model_not_found"]
    errors = samples(live, "octavo:request_errors_total")
    assert {dict(labels)["code"] for labels in errors} >= {"invalid_api_key", "model_not_found"}
    assert "wrong" not in caplog.text


def test_an_error_inside_a_stream_is_counted_though_its_status_was_200(seen: tuple[Live, Traces]) -> None:
    live, traces = seen
    traces.visits.clear()
    live.engine.fail_after, live.engine.fail_code = 2, 400
    body = {"messages": MESSAGES, "max_tokens": 9, "stream": True}
    live.post("/v1/chat/completions", body, authorization=f"Bearer {KEYS[0]}")
    live.engine.fail_after, live.engine.fail_code = None, 500
    (visit,) = traces.wait(1)
    assert visit.status == 200
    assert visit.journey.code
    assert visit.journey.finish == ["error"]
