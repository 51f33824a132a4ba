"""`octavo compile`: kernels for a GPU that is not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli_plan import CONFIG

from octavo.cli.compile import GPUS
from octavo.cli.main import main

ROOT = Path(__file__).parents[3]

# The rehearsal is tested by itself; here one kernel stands for all of them.
SCRIPT = """
import sys, torch
from octavo.cli.main import main
from octavo.kernels.triton.absent import compile_for
import octavo.kernels.triton.absent as absent
def then_shorten(target):
    compile_for(target)
    import octavo.worker.rehearsal as rehearsal
    from octavo.kernels.triton.norm import rms_norm
    def one(ops, part):
        assert part.resolved.device == "cuda" and part.resolved.dtype == "float16", part.resolved
        size = part.arch.hidden_size
        x = torch.empty((3, size), dtype=torch.float16, device="meta")
        yield rms_norm(x, torch.empty((size,), device="meta"), 1e-6)
    rehearsal.rehearse = one
absent.compile_for = then_shorten
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def test_kernels_are_made_without_weights_and_gpu(model, tmp_path):
    pytest.importorskip("triton")
    told = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "compile", model, "--gpu", "A10", "--dtype", "float16"],
        env={**kept, **told},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "cache" / "octavo" / "triton"
    assert done.stdout.startswith(f"1 kernels for A10 in {folder}, ")
    (made,) = (path for path in folder.rglob("*.json") if not path.name.startswith("__grp__"))
    assert json.loads(made.read_text())["target"]["arch"] == 86


def test_what_cannot_be_is_said(model, capsys, monkeypatch):
    assert main(["compile"]) == 2
    assert "which model" in capsys.readouterr().err
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["compile", model]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err
    monkeypatch.delenv("TRITON_INTERPRET")
    assert main(["compile", model, "--gpu", "abacus"]) == 2
    assert ", ".join(GPUS) in capsys.readouterr().err


def test_what_is_known_of_gpus_can_be():
    for capability, multiprocessors, kib, gigabytes in GPUS.values():
        assert (7, 0) <= capability < (13, 0)
        assert 16 <= multiprocessors <= 200
        assert 64 <= kib <= 227
        assert 8 <= gigabytes <= 300
