"""schemathesis over the description of the API: whatever it thinks of, nothing is the server's fault."""

import shutil
import subprocess

import pytest
from clients_kit import Scripted


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("schemathesis") is None, reason="needs schemathesis")
def test_no_fault_of_the_server(server: Scripted) -> None:
    command = ["schemathesis", "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"]
    command += ["--phases", "fuzzing", "--max-examples", "20", "--seed", "1"]
    try:
        # An engine that was put to sleep answers 503, as it should: whoever can do that comes last.
        for which in ("--exclude-path", "--include-path"):
            done = subprocess.run([*command, which, "/sleep"], capture_output=True, text=True, timeout=280, check=False)
            assert done.returncode == 0, done.stdout[-4000:]
    finally:
        server.call("POST", "/wake_up", None)
