"""The offline benchmarks over an engine that only pretends, and once over a real one of random weights."""

import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from octavo.base.config import EngineConfig
from octavo.base.wire import EngineStats
from octavo.bench import latency, throughput
from octavo.bench.data import even
from octavo.bench.offline import Watch, timed
from octavo.cli import bench as bench_command
from octavo.cli.main import main


class FakeLLM:
    """Answers at once; its gauges move with every reading."""

    resolved = SimpleNamespace(
        device="cpu", dtype="float32", threads=1, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=99
    )

    def __init__(self, waste: float = 0.02, lost: int = 0):
        self.waste, self.lost, self.steps, self.calls = waste, lost, 0, []

    def generate(self, prompts, params, *, use_tqdm):
        assert use_tqdm is False
        self.calls.append((len(prompts), len(prompts[0]["prompt_token_ids"]), params[0].max_tokens))
        assert all(one.ignore_eos and one.temperature == 0 for one in params)
        time.sleep(0.1)
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * (one.max_tokens - self.lost))]) for one in params
        ]

    @property
    def stats(self):
        self.steps += 1
        return EngineStats(running=2, kv_usage=0.5, kv_waste=self.waste, steps=self.steps)


@pytest.fixture
def fake(monkeypatch):
    llm = FakeLLM()

    @contextmanager
    def opened(_engine):
        yield llm

    monkeypatch.setattr(throughput, "open_llm", opened)
    monkeypatch.setattr(latency, "open_llm", opened)
    return llm


def test_short_answers_are_an_error():
    with pytest.raises(RuntimeError, match="asked for 8 tokens, got 6"):
        timed(FakeLLM(lost=1), even(2, 3, 4, seed=0))


def test_the_watch_reads_while_the_engine_runs():
    llm = FakeLLM()
    with Watch(llm) as gauges:
        timed(llm, even(1, 3, 4, seed=0))
    assert len(gauges.waste) >= 2
    assert set(gauges.waste) == {0.02}
    assert set(gauges.running) == {2}


def test_the_table_and_the_mixed_set(fake):
    options = throughput.ThroughputOptions(batch_sizes=[1, 4], rounds=1, mixed_requests=3)
    rows, facts = throughput.measure(options, EngineConfig())
    found = {row.id: row for row in rows}
    assert found["batch-4-tok-s"].value == pytest.approx(240 / found["batch-4-request-s"].value, rel=1e-3)
    assert found["kv-waste"].value == 2.0
    assert found["kv-waste"].fraction == 0.5
    assert facts["dtype"] == "float32"
    assert [call[0] for call in fake.calls] == [1, 1, 4, 4, 3]
    assert fake.calls[0][1:] == (30, 60)
    assert throughput.verdict(rows) is None
    fake.waste = 0.05
    assert "5%" in (throughput.verdict(throughput.measure(options, EngineConfig())[0]) or "")


def test_latency_takes_the_first_token_off(fake):
    rows, _ = latency.measure(latency.LatencyOptions(num_iters=2, output_len=11), EngineConfig())
    found = {row.id.removeprefix("latency-1x32-11-"): row.value for row in rows}
    assert found["step-ms"] == pytest.approx((1e3 * found["p50-s"] - found["first-ms"]) / 10, abs=0.1)
    assert len(fake.calls) == 6


def test_the_command_keeps_its_numbers(fake, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_command.sys, "argv", ["octavo", "bench", "throughput", "some/model"])
    argv = ["bench", "throughput", "some/model", "--batch-sizes", "1", "--rounds", "1", "--mixed-requests", "2"]
    argv += ["--result-dir", str(tmp_path), "--output-json", str(tmp_path / "o.json")]
    assert main(argv) == 0
    assert "1 at once, output" in capsys.readouterr().out
    assert json.loads((tmp_path / "o.json").read_text())["kv-waste"] == 2.0
    (path,) = tmp_path.glob("*/*.json")
    report = json.loads(path.read_text())
    assert report["command"] == "octavo bench throughput some/model"
    assert report["rows"][0]["id"] == "model float32/batch-1-tok-s"
    fake.waste = 0.5
    assert main([*argv[:-2], "--result-dir", ""]) == 1
    assert "KV waste is 50%" in capsys.readouterr().err


def test_a_real_engine_of_random_weights(tmp_path):
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "vocab_size": 10_240,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "o.json"
    argv = ["bench", "throughput", str(tmp_path), "--load-format", "dummy", "--device", "cpu", "--threads", "1"]
    argv += ["--batch-sizes", "1", "3", "--rounds", "1", "--output-len", "8", "--mixed-requests", "0"]
    assert main([*argv, "--result-dir", "", "--output-json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["batch-3-tok-s"] > 0
    assert found["device"] == "cpu"
