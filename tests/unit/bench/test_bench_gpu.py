"""The suite of one GPU: rows, limits, what is kept when a stage fails, hangs or dies, and the page made from it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.bench import report
from octavo.bench.gpu import drive
from octavo.bench.gpu.host import host_time, share_of
from octavo.bench.gpu.http_rows import between, gaps_within
from octavo.bench.gpu.page import decode_chart
from octavo.bench.gpu.peers import Peers, short
from octavo.bench.gpu.planning import step_seconds
from octavo.bench.gpu.process import Child
from octavo.bench.gpu.results import Results
from octavo.bench.gpu.rows import AIMS, JOBS, LIMITS_OF, POINTS, Job, chosen
from octavo.bench.gpu.setting import Setting, model_config
from octavo.bench.hardware import machine
from octavo.bench.raw import Answer

ROOT = Path(__file__).parents[3]
ROWS = ["T1", "T3", "T5", "T6", "T8", "T9", "T11", "T12", "T13", "T14", "T15", "T17", "T29"]


def test_every_row_of_the_targets_is_there():
    assert set(ROWS) < {job.row for job in JOBS}
    assert set(ROWS) <= set(POINTS)
    assert {"T5.16", "T5.64", "T6.16", "T6.64"} < set(POINTS)
    assert {point.partition(".")[0] for point in POINTS} - {"copy", "gemm"} <= {job.row for job in JOBS}
    assert sum(job.cap_s for job in chosen(["T9"])) < 60
    assert [job.id for job in chosen(["T9.8b", "P1"])] == ["T9.8b", "P1"]
    with pytest.raises(ValueError, match="no row T2"):
        chosen(["T2", "T1"])


def test_no_aim_is_beyond_its_limit():
    assert set(AIMS) < set(POINTS)
    for id, aim in AIMS.items():
        limit, less = POINTS[id].limit, POINTS[id].less
        assert limit is None or (aim >= limit if less else aim <= limit), id


def test_peers_of_the_h200():
    peers = Peers.read(ROOT / "benchmarks/peers/nvidia-h200.json")
    assert set(peers.points) <= set(POINTS)
    assert peers.text("T1") == "vLLM 0.26.0 23.1k; SGLang 0.5.17 22.7k; transformers 5.17.0 11.1k"
    assert peers.text("T29") is None
    assert [short(value) for value in (7.858, 631.999, 9160.2, 23111)] == ["7.86", "632", "9.16k", "23.1k"]
    assert Peers.read(ROOT / "benchmarks/peers/none.json").points == {}


def test_the_models_are_those_of_the_workloads():
    assert model_config("qwen3-8b")["vocab_size"] == 151_936
    load = Setting(folder="").mixed(256)
    assert (sum(map(len, load.prompts)), load.total_out) == (142_827, 133_966)


# --- stages that fail

FAKE_STAGE = """
import os, sys, time
import octavo.bench.gpu.child as child

class Stage:
    def __init__(self, setting): pass
    def opened(self):
        from contextlib import nullcontext
        if os.environ.get("FAKE_OPEN"): raise MemoryError("too little")
        return nullcontext()
    @property
    def jobs(self):
        return {"T1": self.good, "T5": self.bad, "T9": self.dies, "T14": self.hangs, "T29": self.good29}
    def good(self, report):
        print("a library says something")
        report("T1", 7.5, "note")
    def bad(self, report): report("T5", 1); raise ValueError("broken\\n twice")
    def dies(self, report): os._exit(9)
    def hangs(self, report): time.sleep(60)
    def good29(self, report): report("T29", 90)

sys.modules["fake_stage"] = sys.modules["__main__"]
child.STAGES = {"fake": "fake_stage:Stage"}
raise SystemExit(child.main())
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_child.py").write_text(FAKE_STAGE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setattr(drive, "Child", lambda orders: Child(orders, "fake_child"))


def run_fake(path, *, budget=60.0, cap=1.0):
    found = machine()
    results = Results(path, command="c", facts={"torch": "2"}, peers=Peers(), found=found)
    jobs = [Job(name, "fake", cap if name == "T14" else 20) for name in ("T1", "T5", "T9", "T14", "T29")]
    drive.run_all(jobs, Setting(folder="", tiny=True), time.monotonic() + budget, results)
    return results


@pytest.mark.usefixtures("fake")
def test_a_row_that_fails_hangs_or_dies_takes_no_other_along(tmp_path):
    path = tmp_path / "out.json"
    results = run_fake(path)
    assert {row.id: row.value for row in results.rows} == {"T1": 7.5, "T5": 1, "T29": 90}
    assert results.errors == {
        "T5": "ValueError: broken twice",
        "T9": "its process ended with exit code 9",
        "T14": "took longer than its 1 s",
    }
    kept = json.loads(path.read_text())
    assert set(kept) >= {"machine", "date", "command", "rows"}
    assert [row["id"] for row in kept["rows"]] == ["T1", "T5", "T29"]
    assert set(kept["rows"][0]) == {"id", "what", "value", "unit", "limit", "fraction", "peer"}
    assert kept["errors"] == results.errors
    assert kept["machine"]["torch"] == "2"


@pytest.mark.usefixtures("fake")
def test_a_stage_that_cannot_begin_and_a_budget_that_is_spent(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_OPEN", "1")
    results = run_fake(tmp_path / "a.json")
    assert set(results.errors.values()) == {"MemoryError: too little"}
    assert len(results.errors) == 5
    results = run_fake(tmp_path / "b.json", budget=1)
    assert set(results.errors.values()) == {"no time was left for it"}


def test_limits_peers_and_a_second_run(tmp_path):
    path = tmp_path / "r.json"
    h200 = SimpleNamespace(slug=LIMITS_OF)
    results = Results(None, command="a", facts={}, peers=Peers(points={"T1": {"vLLM 1": 20_000.0}}), found=h200)
    results.add("T1", 18_100)
    results.add("T9", 0.6)
    rate, first = results.rows
    assert (rate.limit, rate.fraction, rate.peer) == (36_200, 0.5, "vLLM 1 20.0k")
    assert (first.limit, first.fraction, first.peer) == (0.3, 0.5, None)
    for command, value in (("a", 1.0), ("b", 2.0)):
        again = Results(path, command=command, facts={}, peers=Peers(), found=machine())
        again.fail(["T3"], "no")
        again.add("T1", value)
        assert json.loads(path.read_text())["errors"] == {"T3": "no"}
        again.passed("T3")
    kept = report.read(path)
    assert (kept.command, [row.value for row in kept.rows], kept.errors) == ("a && b", [2.0], {})


# --- measures


def test_the_host_time_leaves_the_wait_out():
    class Executor:
        def forward(self, _plan):
            time.sleep(0.002)

        def sample(self, _riders):
            ready = time.perf_counter() + 0.02
            return SimpleNamespace(done=lambda: time.perf_counter() >= ready, result=lambda: None)

    executor = Executor()

    def run():
        for _ in range(6):
            executor.forward(SimpleNamespace(rows=[1, 2], num_tokens=[1, 1]))
            executor.sample({}).result()

    took = host_time(executor, run, 2)
    assert took.steps == 5
    assert 0.002 <= took.forward <= took.whole < 0.015
    assert took.sample < took.forward
    assert took.read < took.forward
    assert "forward" not in vars(executor)


def test_the_busy_share_is_the_union_of_what_ran():
    def event(ts, dur, cat="kernel"):
        return {"cat": cat, "ts": ts, "dur": dur}

    events = [event(0, 650), event(650, 100), event(700, 50), event(800, 100, "gpu_memcpy"), event(900, 100)]
    assert share_of([*events, event(750, 50, "cpu_op")]) == pytest.approx(250 / 300)
    with pytest.raises(RuntimeError):
        share_of([event(0, 9, "cpu_op")])


def test_gaps_inside_and_outside_of_spans():
    answers = [Answer(arrivals=[0.0, 1.0, 1.5, 4.0])]
    spans = [(1.2, 2.0), (1.8, 3.0)]
    assert gaps_within(answers, spans) == [0.5]
    assert between(spans, 0.5, 5.0) == [(0.5, 1.2), (3.0, 5.0)]
    assert gaps_within(answers, between(spans, 0.5, 5.0)) == [1.0, 2.5]


def test_planning_alone():
    assert 0 < step_seconds(8, prompt=20, steps=10) < 0.1


# --- the page


def test_the_chart_shows_every_engine_and_the_limit():
    rows = [
        report.row(f"T5{suffix}", "", rate, "tok/s", limit=4 * rate)
        for suffix, rate in (("", 900.0), (".16", 9000.0), (".64", 30_000.0))
    ]
    found = report.Report(machine={}, date="", command="", rows=rows)
    svg = decode_chart(found, Peers(points={"T5": {"vLLM <1>": 500.0}, "T5.16": {"vLLM <1>": 7000.0}}))
    assert svg is not None
    assert svg.count("<polyline") == 3
    assert "vLLM &lt;1&gt;" in svg
    assert "Octavo" in svg
    assert decode_chart(report.Report(machine={}, date="", command="", rows=[]), Peers()) is None


# --- a dry run of everything, on the tiny shape


def dry_run(tmp_path, rows, budget):
    out = tmp_path / "dry.json"
    argv = [sys.executable, "benchmarks/gpu.py", "--shapes", "tiny", "--device", "cpu", "--out", str(out)]
    argv += ["--only", rows, "--budget", str(budget)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    kept = json.loads(out.read_text())
    assert done.returncode == 0, (kept.get("errors"), done.stderr[-3000:])
    return {row["id"]: row["value"] for row in kept["rows"]}


def test_dry_run_of_kernels_and_offline_rows(tmp_path):
    values = dry_run(tmp_path, "probe,T8,T13.api,T14,T29,T1,T5", 100)
    assert {"copy", "gemm", "T8", "T8.mixed", "T13.api", "T14.plan", "T29", "T1", "T5", "T5.16", "T5.64"} <= set(values)
    assert "T14" in values
    assert all(value > 0 for value in values.values())


def test_dry_run_of_sleep_rows(tmp_path):
    values = dry_run(tmp_path, "S1,S2", 60)
    assert set(values) == {"S1", "S1.asleep", "S1.awake", "S1.first", "S2.awake", "S2.asleep"}


def test_dry_run_of_http_rows(tmp_path):
    values = dry_run(tmp_path, "T17,T12,T13,T15", 150)
    points = {"T12", "T12.16384", "T13", "T13.ttft", "T13.itl", "T13.client"}
    assert points | {"T15", "T15.idle", "T15.loaded", "T15.ttft", "T17", "T17.warm"} <= set(values)
    assert all(value > 0 for value in values.values())


@pytest.mark.slow
def test_dry_run_of_the_rest(tmp_path):
    values = dry_run(tmp_path, "T3,T6,T9,T11,P1", 200)
    first = {"T9", "T9.1024", "T9.8192", "T9.8b-128", "T9.8b-1024", "T9.8b-8192", "T11", "T11.8b-1024"}
    assert first | {"T3", "T6", "T6.16", "T6.64", "P1"} <= set(values)


def test_the_attention_row_measures_the_triton_kernel_on_sound_tables():
    """The step that T8 times gives the reference's result, so the kernel reads every token it is said to read."""
    pytest.importorskip("triton")
    import torch

    from octavo.bench.gpu.attention import decode_meta
    from octavo.kernels.ops import select

    lens = [1, 16, 37, 90]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    meta = decode_meta(lens, device)
    blocks = meta.block_table.unique().tolist()
    assert blocks == list(range(12)), "block 0, and each other block once"
    pool = torch.randn(12, 2, 2, 2, 16, 16, device=device)
    queries = torch.randn(4, 4, 16, device=device)
    arguments = (queries, pool[:, 1], meta, 0.25, None, None)
    truth = select(device, "reference").paged_attention(*arguments)
    torch.testing.assert_close(select(device, "triton").paged_attention(*arguments), truth, atol=1e-4, rtol=1e-4)
