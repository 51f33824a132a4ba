"""`octavo doctor`: each of the commonest troubles is seen and answered with what to do."""

import json
import os
import re
import socket
import subprocess
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import doctor, doctor_host
from octavo.cli.doctor_host import Section
from octavo.cli.main import main

SMI = "| NVIDIA-SMI 535.104   Driver Version: 535.104.05   CUDA Version: 12.2 |"


def answers(monkeypatch: pytest.MonkeyPatch, smi: str | None, apps: str = "") -> None:
    """nvidia-smi as it would answer; None: it is not there."""

    def run(command: list[str], **_: Any) -> Any:
        if smi is None:
            raise FileNotFoundError
        return types.SimpleNamespace(stdout=apps if len(command) > 1 else smi, returncode=0)

    monkeypatch.setattr(subprocess, "run", run)


def test_a_driver_older_than_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, SMI)
    monkeypatch.setattr(doctor_host, "_torch_cuda", lambda: (13, 0))
    section = doctor_host.driver_section(tmp_path)
    assert section.facts["nvidia"] == "driver 535.104.05, good for CUDA 12.2"
    assert any("newer driver" in failure for failure in section.failures)
    monkeypatch.setattr(doctor_host, "_torch_cuda", lambda: (12, 8))  # within one major version all is well
    assert doctor_host.driver_section(tmp_path).failures == []


def test_a_container_without_the_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, None)
    assert doctor_host.driver_section(tmp_path).facts["nvidia"] == "no GPU"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert "--gpus all" in doctor_host.driver_section(tmp_path).failures[0]


def test_who_holds_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, SMI, "4242, python, 60000\n")
    monkeypatch.setattr(doctor_host, "_torch_cuda", lambda: None)
    section = doctor_host.driver_section(tmp_path)
    assert section.facts["process 4242"] == "python, 60000 MiB"
    assert "--gpu-memory-utilization" in section.warnings[0]


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        section = doctor_host.network_section(port)
        assert f"port {port} is taken by" in section.failures[0]
        assert "another --port" in section.failures[0]
    assert doctor_host.network_section(port).facts[f"port {port}"] == "free"


def test_certificates_and_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/bundle.pem")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hidden@proxy:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    section = doctor_host.network_section(1)
    assert any("SSL_CERT_FILE names /no/such/bundle.pem" in warning for warning in section.warnings)
    assert any("NO_PROXY" in warning for warning in section.warnings)
    assert "hidden" not in str(section)


def test_a_small_container(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (group / "memory.max").write_text(str(2 << 30))
    (group / "memory.current").write_text(str(1 << 30))
    (group / "cpu.max").write_text("100000 100000\n")
    section = doctor_host.container_section(tmp_path)
    text = " ".join(section.warnings)
    assert "2 GiB of memory" in text
    assert (os.cpu_count() or 1) < 2 or "one core" in text


def test_kernels_that_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.kernels.cpu import build

    monkeypatch.setattr(build, "library_name", lambda: "_native.not-there.so")
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert "install g++" in doctor_host.build_section().warnings[0]


def test_triton_wants_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_host, "_torch_cuda", lambda: (13, 0))
    monkeypatch.setattr(doctor_host.shutil, "which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    assert any("install gcc" in warning for warning in doctor_host.build_section().warnings)


def test_clock_and_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_host.time, "time", lambda: 1000.0)
    monkeypatch.setattr(doctor_host.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 30))
    section = doctor_host.clock_section([tmp_path / "not/there", tmp_path])
    assert len(section.warnings) == 2
    assert "years behind" in section.warnings[0]
    assert "1 GiB are left" in section.warnings[1]


def test_few_files_and_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 65_536))  # a server raises its own
    assert doctor.limit_section().warnings == []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert any("ulimit -Hn" in warning for warning in doctor.limit_section().warnings)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert any("cannot be written" in warning for warning in doctor.cache_section().warnings)


@pytest.mark.parametrize(
    ("warnings", "failures", "code", "last"),
    [
        ([], [], 0, "All well."),
        (["slow"], [], 0, "1 thing to look at"),
        (["slow", "old"], ["gone"], 1, "1 thing to mend before a server works, 2 things to look at"),
    ],
)
def test_a_script_can_ask(
    warnings: list[str],
    failures: list[str],
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "SECTIONS", (lambda: Section("one", {}, warnings, failures),))
    monkeypatch.setattr(doctor, "network_section", lambda _: Section("network"))
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == last
    assert all(f"  X {each}" in out for each in failures)
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)[0]["failures"] == failures


def test_what_a_server_cannot_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name in ("torch", "rich") else real(name))
    section = doctor.library_section()
    assert section.failures == ["torch is missing: pip install torch"]
    assert "rich is missing: pip install rich" in section.warnings


def test_every_library_it_needs_is_looked_for() -> None:
    project = tomllib.loads((Path(doctor.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=; ]", each)[0] for each in project["dependencies"]} == set(doctor.LIBRARIES)


def test_an_odd_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PYTHONS", ())
    assert "3.11 or 3.12" in doctor.python_section().warnings[0]


@pytest.mark.parametrize("make", doctor.SECTIONS)
def test_every_section_works_here(make: Callable[[], Any]) -> None:
    section = make()
    assert section.title
    assert all(isinstance(value, str) for value in section.facts.values())


@pytest.mark.parametrize(("built", "word"), [(object(), "native, within layers"), (None, "reference")])
def test_operations_say_what_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, built: object, word: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("octavo.kernels.cpu.loader.native", lambda: built)
    facts = doctor.operation_section().facts
    assert {facts[name] for name in ("rms_norm", "qkv_prologue", "paged_attention", "normed_linear")} == {word}
    assert facts["draw"] == "reference"
