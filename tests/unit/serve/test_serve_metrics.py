"""Series, metrics, the times of a request, and what of it is logged."""

import asyncio
import io
import json
import logging

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from octavo.base import log as logs
from octavo.base.config import ServeConfig
from octavo.base.wire import EngineRequest, EngineStats, Sampling, TokenOutput
from octavo.serve import record
from octavo.serve.journey import Journey, Timer
from octavo.serve.metrics import MAX_USAGES, Metrics
from octavo.serve.pulse import Line
from octavo.serve.record import Recorder
from octavo.serve.series import MAX_CHILDREN, Counts, Gauges, Shown, Tallies

# What vLLM's V1 engine exports that has a meaning on one host without adapters, drafts, media and connectors.
VLLM_GAUGES = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("cache_config_info", "engine_sleep_state"),
}
VLLM_COUNTERS = {
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_by_source"),
    *("prompt_tokens_cached", "generation_tokens", "request_success", "admission_rejections", "corrupted_requests"),
}
VLLM_HISTOGRAMS = {
    *("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_params_n"),
    *("request_max_num_generation_tokens", "request_params_max_tokens", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "time_per_output_token_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_num_preemptions"),
    "request_prefill_kv_computed_tokens",
}


def made(compat: bool = False, stats: EngineStats | None = None) -> Metrics:
    metrics = Metrics("m", lambda: stats or EngineStats(), compat=compat)
    metrics.started({"load_weights": 1.5}, {"block_size": "16", "num_gpu_blocks": "99"}, {"version": "0"})
    return metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by name and sorted labels, as a scraper reads them."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def kinds(metrics: Metrics, prefix: str) -> dict[str, str]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {each.name.removeprefix(prefix): each.type for each in families if each.name.startswith(prefix)}


@pytest.mark.parametrize("prefix", ["octavo:", "vllm:"])
def test_every_vllm_name_is_there_with_its_kind(prefix: str) -> None:
    found = kinds(made(compat=True), prefix)
    assert {name for name in VLLM_GAUGES if found.get(name) == "gauge"} == VLLM_GAUGES
    assert {name for name in VLLM_COUNTERS if found.get(name) == "counter"} == VLLM_COUNTERS
    assert {name for name in VLLM_HISTOGRAMS if found.get(name) == "histogram"} == VLLM_HISTOGRAMS
    if prefix == "vllm:":
        assert set(found) == VLLM_GAUGES | VLLM_COUNTERS | VLLM_HISTOGRAMS


def test_compat_is_off_by_default_and_carries_the_engine_label() -> None:
    assert not kinds(made(), "vllm:")
    found = samples(made(compat=True, stats=EngineStats(running=3)))
    assert found["vllm:num_requests_running{engine=0,model_name=m}"] == 3
    assert found["octavo:num_requests_running{model_name=m}"] == 3
    assert found["vllm:cache_config_info{block_size=16,engine=0,model_name=m,num_gpu_blocks=99}"] == 1


def test_a_sequence_is_timed_stage_by_stage() -> None:
    metrics, journey = made(), Journey(arrival=10.0, key="team-a")
    journey.submitted = 10.5
    timer = Timer(metrics, journey, metrics.usages("team-a", "adapter-1"), prompt_tokens=20)
    timer.feed(TokenOutput("r", [1], cached_tokens=16, queued_s=0.5), 12.0)
    timer.feed(TokenOutput("r", [2, 3]), 12.2)
    timer.feed(TokenOutput("r", [4], finish="stop"), 12.4)
    timer.finish("stop", 12.4, preemptions=2)
    timer.finish("abort", 13.0)
    found = samples(metrics)

    def total(name: str) -> tuple[float, float]:
        return found[f"octavo:{name}_count{{model_name=m}}"], found[f"octavo:{name}_sum{{model_name=m}}"]

    assert total("time_to_first_token_seconds") == (1, 2.0)
    assert total("request_queue_time_seconds") == (1, 0.5)
    assert total("request_prefill_time_seconds") == (1, 1.0)
    assert total("request_decode_time_seconds") == (1, pytest.approx(0.4))
    assert total("request_inference_time_seconds") == (1, pytest.approx(1.4))
    assert total("inter_token_latency_seconds") == (3, pytest.approx(0.4))
    assert total("time_per_output_token_seconds") == total("inter_token_latency_seconds")
    assert total("request_time_per_output_token_seconds") == (1, pytest.approx(0.4 / 3))
    assert total("e2e_request_latency_seconds") == (1, pytest.approx(2.4))
    assert total("request_num_preemptions") == (1, 2)
    assert total("request_prefill_kv_computed_tokens") == (1, 4)
    assert found["octavo:key_generation_tokens_total{key=team-a,model_name=m}"] == 4
    assert found["octavo:adapter_prompt_tokens_total{adapter=adapter-1,model_name=m}"] == 20
    assert found["octavo:key_requests_total{finished_reason=stop,key=team-a,model_name=m}"] == 1
    assert found["octavo:request_success_total{finished_reason=abort,model_name=m}"] == 0
    assert (journey.scheduled, journey.first, journey.last) == (11.0, 12.0, 12.4)
    assert (journey.cached_tokens, journey.output_tokens, journey.finish) == (16, 4, ["stop"])


def test_steps_fill_the_batch_histogram_and_a_new_engine_starts_over() -> None:
    metrics = made()
    for prompt, generated in ((100, 0), (100, 8), (100, 16), (30, 0), (30, 2)):
        metrics.step(EngineStats(prompt_tokens=prompt, generation_tokens=generated))
    found = samples(metrics)
    assert found["octavo:iteration_tokens_total_count{model_name=m}"] == 4
    assert found["octavo:iteration_tokens_total_sum{model_name=m}"] == 118


def test_labels_are_bounded() -> None:
    counts = Counts("x", "text", ("code",))
    for index in range(MAX_CHILDREN + 50):
        counts.of(f"code-{index}").inc()
    lines = "".join(Shown(counts, "x", ()).write()).splitlines()[2:]
    assert len(lines) == MAX_CHILDREN + 1
    assert lines[-1] == 'x_total{code="other"} 50.0'
    metrics = made()
    for index in range(MAX_USAGES + 20):
        metrics.usages(f"key-{index}")[0].generation_tokens.inc()
    found = samples(metrics)
    assert found["octavo:key_generation_tokens_total{key=other,model_name=m}"] == 20
    assert metrics.usages("") == ()


def test_labels_are_escaped_and_features_counters_shown() -> None:
    figures = {"grammar_compile_seconds": 0.25, "grammar_waiting": 2, "odd": 1.0}
    metrics = made(stats=EngineStats(waiting=3, figures=figures))
    metrics.usages('a"b\nc')[0].generation_tokens.inc()
    found = samples(metrics)
    assert found['octavo:key_generation_tokens_total{key=a"b\nc,model_name=m}'] == 1
    assert found["octavo:grammar_compile_seconds_total{model_name=m}"] == 0.25
    assert found["octavo:num_requests_waiting_by_reason{model_name=m,reason=deferred}"] == 2
    assert found["octavo:num_requests_waiting_by_reason{model_name=m,reason=capacity}"] == 3
    assert found["octavo:num_requests_waiting{model_name=m}"] == 5
    assert not any("odd" in name for name in found)
    assert found["octavo:startup_phase_seconds{model_name=m,phase=load_weights}"] == 1.5


def test_the_text_is_the_librarys() -> None:
    """Line for line what prometheus_client writes of the same numbers, labels that need care among them."""
    from prometheus_client import Counter, Gauge, Histogram

    registry = CollectorRegistry()
    value, bounds = 'a"b\\c\nd 100%s', (0.001, 0.5, 1, 2_000)
    theirs = Histogram("h", "Some text.", ["model_name", "key"], buckets=bounds, registry=registry)
    mine = Tallies("h", "Some text.", bounds, ("key",))
    for number in (0.0001, 0.3, 1.0, 7.5, 1e7):
        theirs.labels("m", value).observe(number)
        mine.of(value).observe(number)
    Counter("c", "Some text.", ["model_name", "key"], registry=registry).labels("m", value).inc(2.5)
    counts = Counts("c", "Some text.", ("key",))
    counts.of(value).inc(2.5)
    Gauge("g", "Some text.", ["model_name", "key"], registry=registry).labels("m", value).set(0.125)
    gauges = Gauges("g", "Some text.", lambda: [((value,), 0.125)], ("key",))
    text = "".join(
        part for each in (mine, counts, gauges) for part in Shown(each, each.name, [("model_name", "m")]).write()
    )

    def read(text: str) -> list[object]:
        families = text_string_to_metric_families(text)
        return [
            (each.name, each.documentation, each.type, [(one.name, one.labels, one.value) for one in each.samples])
            for each in families
            if not each.name.endswith("_created")
        ]

    assert read(text) == read(generate_latest(registry).decode())


class Fixed(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def test_the_line_of_figures() -> None:
    line = Line(EngineStats(), 0.0)
    stats = EngineStats(running=2, steps=9, prompt_tokens=500, generation_tokens=80, prefix_queries=100, prefix_hits=25)
    text = line.next(stats, 10.0)
    assert "prompt throughput: 50.0 tokens/s" in text
    assert "generation throughput: 8.0 tokens/s" in text
    assert "Running: 2 reqs" in text
    assert "hit rate: 25.0%" in text
    assert line.next(stats, 20.0) == ""


@pytest.fixture
def lines():  # type: ignore[no-untyped-def]
    """The JSON lines that were logged so far."""
    logger, out = logging.getLogger("octavo"), io.StringIO()
    before = logger.handlers[:], logger.level, logger.propagate
    logs.set_up("debug", "json", out)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def scope(path: str = "/v1/completions") -> dict:  # type: ignore[type-arg]
    headers = [(b"authorization", b"Bearer sk-secret")]
    query = b"api_key=sk-secret"
    return {"method": "POST", "path": path, "query_string": query, "headers": headers, "client": ("10.0.0.9", 1)}


def test_an_access_line_says_what_happened_and_no_secret(lines) -> None:  # type: ignore[no-untyped-def]
    recorder, journey = Recorder(made(), ServeConfig()), Journey(key="team-a")
    journey.model, journey.prompt_tokens, journey.output_tokens = "m", 7, 3
    journey.first = journey.last = journey.arrival + 0.25
    journey.finish = ["stop"]

    async def serve() -> None:
        logs.REQUEST_ID.set("id-1")
        recorder.over(scope(), "id-1", "/v1/completions", 200, journey)

    asyncio.run(serve())
    (line,) = lines()
    assert line["request_id"] == "id-1"
    assert line["level"] == "info"
    assert (line["route"], line["status"], line["key"], line["client"]) == (
        "/v1/completions",
        200,
        "team-a",
        "10.0.0.9",
    )
    assert (line["prompt_tokens"], line["output_tokens"], line["finish"]) == (7, 3, ["stop"])
    assert line["ttft_seconds"] == 0.25
    assert "secret" not in json.dumps(line)


def test_probes_are_quiet_and_lines_can_be_turned_off(lines) -> None:  # type: ignore[no-untyped-def]
    Recorder(made(), ServeConfig()).over(scope(), "i", "/metrics", 200, Journey())
    assert [line["level"] for line in lines()] == ["debug"]
    Recorder(made(), ServeConfig(disable_uvicorn_access_log=True)).over(scope(), "i", "/v1/models", 200, Journey())
    assert len(lines()) == 1


class Prompted:
    prompt_text = "the secret plan\nin two lines"


@pytest.mark.parametrize(("asked", "level", "shown"), [(False, 10, 0), (True, 20, 1), (True, 10, 2)])
def test_prompts_only_when_asked(lines, asked: bool, level: int, shown: int) -> None:  # type: ignore[no-untyped-def]
    recorder = Recorder(made(), ServeConfig(enable_log_requests=asked, max_log_len=10))
    record.requests.setLevel(level)
    try:
        recorder.asked([EngineRequest("r-1", [1, 2], Sampling(1, 5))], [Prompted()])  # type: ignore[list-item]
    finally:
        record.requests.setLevel(logging.NOTSET)
    found = lines()
    assert len(found) == shown
    text = json.dumps(found)
    assert ("the secret" in text) == (shown == 2)
    assert "plan" not in text


def test_an_error_is_counted_by_its_code() -> None:
    metrics = made()
    recorder, journey = Recorder(metrics, ServeConfig()), Journey(key="team-a")
    journey.code = "rate_limited"
    recorder.over(scope(), "i", "/v1/completions", 429, journey)
    found = samples(metrics)
    assert found["octavo:request_errors_total{code=rate_limited,model_name=m}"] == 1
    assert found["octavo:admission_rejections_total{model_name=m,reason=rate_limited}"] == 1
    assert found["octavo:key_rejections_total{key=team-a,model_name=m}"] == 1
