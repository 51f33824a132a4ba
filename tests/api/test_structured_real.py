"""benchmarks/structured.py on a real model: OCTAVO_TEST_MODEL names it (the demo model will do)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = os.environ.get("OCTAVO_TEST_MODEL", "")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not MODEL, reason="OCTAVO_TEST_MODEL names no model")
@pytest.mark.parametrize("part", ["json", "seed", "tools", "room", "hostile"])
def test_every_answer_is_valid_or_refused_with_a_reason(part: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "structured.py"), "--model", MODEL, "--only", part]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
