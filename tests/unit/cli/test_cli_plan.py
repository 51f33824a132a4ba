"""`octavo plan` and `octavo doctor` over a config alone."""

import json
import subprocess
import sys

import pytest

from octavo.base.human import format_bytes
from octavo.cli import doctor, doctor_host
from octavo.cli.main import main

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, dims, fp32


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def plan(capsys, model, *argv):
    code = main(["plan", model, "--load-format", "dummy", "--json", *argv])
    return code, json.loads(capsys.readouterr().out)


def test_the_sums_are_right(model, capsys):
    code, found = plan(capsys, model, "--device", "cpu", "--memory", "1GiB", "--length", "1k", "100")
    assert code == 0
    assert found["dtype"] == "float32"
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["kv_bytes_per_token"] == TOKEN_BYTES
    assert found["max_model_len"] == 4096
    assert found["concurrency"]["1000"] == pytest.approx(found["kv_blocks"] / 63, rel=0.01)
    assert set(found["concurrency"]) == {"100", "1000", "4096"}


def test_a_gpu_that_is_not_here(model, capsys):
    code, found = plan(capsys, model, "--device", "cuda", "--memory", "8GiB")
    assert code == 0
    assert found["device"] == "cuda"
    assert found["memory_bytes"] == 8 << 30
    assert found["dtype"] == "bfloat16"
    budget = 0.92 * (8 << 30) - found["weight_bytes"] - found["working_bytes"]
    assert found["kv_cache_bytes"] == pytest.approx(budget, rel=0.01)


def test_what_does_not_fit_is_told(model, capsys):
    code, found = plan(capsys, model, "--device", "cpu", "--kv-cache-memory-bytes", "1k")
    assert code == 1
    assert not found["fits"]
    assert "no room for the KV cache" in found["problem"]
    assert main(["plan", model, "--load-format", "dummy", "--kv-cache-memory-bytes", "1k", "--device", "cpu"]) == 1
    assert "Does not fit: no room" in capsys.readouterr().out


def test_a_context_is_fitted(model, capsys):
    code, found = plan(capsys, model, "--device", "cpu", "--kv-cache-memory-bytes", str(20 * 16 * TOKEN_BYTES))
    assert code == 0
    assert found["max_model_len"] == 19 * 16 + 1  # one block is never given out, the last token needs no place
    assert any("max_model_len" in note and "4096" in note for note in found["notes"])


def test_the_page_reads(model, capsys):
    assert main(["plan", model, "--load-format", "dummy", "--device", "cpu", "--memory", "1GiB"]) == 0
    out = capsys.readouterr().out
    assert "requests at once" in out
    assert format_bytes(TOKEN_BYTES) + " a token" in out


def test_no_torch(model):
    code = (
        "import sys\nfrom octavo.cli.main import main\n"
        f"main(['plan', {model!r}, '--load-format', 'dummy', '--device', 'cpu'])\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_bad_models(tmp_path, capsys):
    assert main(["plan"]) == 2
    assert main(["plan", str(tmp_path / "none")]) == 2
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Qwen4ForCausalLM"]}))
    assert main(["plan", str(tmp_path), "--load-format", "dummy"]) in (1, 2)
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "did you mean" in errors[2]


def test_doctor_reports_and_advises(monkeypatch, capsys):
    monkeypatch.setenv("OCTAVO_MAX_MODEL_LENGTH", "1")
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(doctor_host, "port_in_use", lambda _: False)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "OCTAVO_MAX_MODEL_LENGTH is not a variable" in out
    assert "secret" not in out
    assert "HF_HUB_OFFLINE is set" in out
    assert "paged_attention" in out
    assert main(["doctor", "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)
    titles = [section["title"] for section in sections]
    assert not any(section["failures"] for section in sections)
    assert titles[:3] == ["python", "libraries", "machine"]
    assert len(titles) == len(set(titles)) == len(doctor.SECTIONS) + 1


def test_doctor_sees_what_is_missing(monkeypatch):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: {"uvloop": None, "torch": "2.9.1"}.get(name, real(name)))
    section = doctor.library_section()
    assert section.failures == []
    assert "uvloop is missing: pip install uvloop" in section.warnings
    assert any("torch 2.9.1 is untested" in warning for warning in section.warnings)


QWEN3_8B = {
    **CONFIG,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def test_a_folder_with_nothing_but_a_config(tmp_path, capsys):
    """The sums of a well-known model: 8.19 billion parameters, 144 KiB of KV a token in bf16."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    assert main(["plan", str(tmp_path), "--device", "cuda", "--memory", "24GiB", "--json", "--length", "8k"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 8_190_735_360
    assert found["weight_bytes"] == 2 * found["parameters"]
    assert found["kv_bytes_per_token"] == 36 * 2 * 8 * 128 * 2
    spare = int(0.92 * (24 << 30)) - found["weight_bytes"] - found["working_bytes"]
    assert found["kv_tokens"] == pytest.approx(spare / found["kv_bytes_per_token"], rel=0.02)
    assert found["concurrency"]["8000"] == pytest.approx(found["kv_tokens"] / 8000, rel=0.02)
    assert main(["plan", str(tmp_path), "--device", "cuda", "--memory", "12GiB"]) == 1
    assert "Does not fit" in capsys.readouterr().out


def test_a_hub_name_brings_configs_only(tmp_path, monkeypatch):
    from octavo.weights import locate

    asked = []

    def fetch(repo, **options):
        asked.append((repo, options["weights"]))
        return tmp_path

    monkeypatch.setattr(locate, "fetch_repo", fetch)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["plan", "somebody/a-model", "--memory", "1GiB", "--device", "cpu"]) == 0
    assert asked == [("somebody/a-model", False)]
