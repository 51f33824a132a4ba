"""The tests of the kernels in Gluon, gone through on the CPU: some of their grid, which a Hopper GPU runs whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
EVERY = 19  # of the grid's cases one: a number that no parameter's count divides
MORE = 3


@pytest.mark.parametrize(
    "name",
    ["test_triton_early.py", "test_triton_attention_early.py", "test_triton_attention_twins.py", "gluon_cases.py"],
)
@pytest.mark.parametrize(
    "every", [EVERY, pytest.param(MORE, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])], ids=["some", "more"]
)
def test_the_grid(name, every) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "CUDA_VISIBLE_DEVICES": "",
        "GLUON_EVERY": str(1 if name == "gluon_cases.py" else every),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gluon_plugin", "-p", "no:cacheprovider", str(HERE / name)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
