"""The npm packages openai, ai and @anthropic-ai/sdk. NODE_MODULES names the folder in which they are installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clients_kit import Scripted, after_tool, calls

FOLDER = Path(__file__).parent / "node"
MODULES = os.environ.get("NODE_MODULES", "")


@pytest.mark.skipif(not (shutil.which("node") and MODULES), reason="needs node and NODE_MODULES")
@pytest.mark.parametrize("script", sorted(path.name for path in FOLDER.glob("*.mjs")))
def test_script(server: Scripted, tmp_path: Path, script: str) -> None:
    server.say(after_tool(calls("look", place="Ulm"), "It is fine."))
    (tmp_path / "node_modules").symlink_to(MODULES)
    shutil.copy(FOLDER / script, tmp_path)
    done = subprocess.run(
        ["node", script, server.url], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("ok")
