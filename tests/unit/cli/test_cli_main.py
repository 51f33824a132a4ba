import os
import subprocess
import sys

import pytest

from octavo.base.errors import EngineDead, ModelFileError, NotFound
from octavo.cli import main as cli
from octavo.cli.main import COMMANDS, SUMMARIES, main, one_line


def cpu_seconds(*argv: str) -> float:
    """Processor time of one run: unlike the clock it does not count who else uses the machine."""
    child = subprocess.Popen([sys.executable, "-m", "octavo", *argv], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["bench", "serve", "--help"], ["version"]])
def test_help_takes_less_than_a_fifth_of_a_second(argv):
    assert min(cpu_seconds(*argv) for _ in range(5)) < 0.2


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom octavo.cli.main import main\nmain(['--help'])\n"
        "print({'torch', 'msgspec', 'aiohttp', 'starlette', 'yaml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("name", [name for name in SUMMARIES if name != "version"])
def test_every_command_has_help_without_torch(name):
    """The contract of the registry of commands."""
    assert name in COMMANDS
    code = (
        f"import sys\nfrom octavo.cli.main import main\nassert main(['{name}', '--help']) == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_exit_codes_and_one_line(capsys):
    assert main(["--help"]) == 0
    assert main([]) == 2
    assert main(["version"]) == 0
    assert main(["version", "two"]) == 2
    assert main(["servv"]) == 2
    assert main(["serve"]) == 2
    assert main(["bench", "throughputt"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "octavo: unexpected argument 'two'",
        "octavo: unknown command 'servv'; did you mean serve?",
        "octavo: which model? octavo serve MODEL takes a folder, a .gguf file or a hub name",
        "octavo: unknown benchmark 'throughputt'; did you mean throughput?",
    ]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ModelFileError("a.gguf", "truncated"), 1, "octavo: a.gguf: truncated"),
        (NotFound("no such model"), 1, "octavo: no such model"),
        (EngineDead("gone\nwith lines"), 1, "octavo: gone with lines"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("oops"), 1, "octavo: ZeroDivisionError: oops (this is a bug; OCTAVO_DEBUG=1 shows where)"),
    ],
)
def test_errors_end_in_one_line(monkeypatch, capsys, error, code, words):
    def fail(_argv):
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.delenv("OCTAVO_DEBUG", raising=False)
    assert main(["serve"]) == code
    assert capsys.readouterr().err.strip() == words
    if not isinstance(error, KeyboardInterrupt):
        monkeypatch.setenv("OCTAVO_DEBUG", "1")
        with pytest.raises(type(error)):
            main(["serve"])


def test_control_characters_of_a_file_do_not_reach_the_terminal():
    assert one_line(ModelFileError("x\x1b[2J", "a\nb")) == "x?[2J: a b"


def test_help_topics(capsys):
    assert main(["serve", "--help=cache"]) == 0
    section = capsys.readouterr().out
    assert "OCTAVO_BLOCK_SIZE" in section
    assert "--port" not in section
    assert main(["serve", "--help=--max-model-len"]) == 0
    assert "--max-model-len N" in capsys.readouterr().out
    assert main(["serve", "--help=all"]) == 0
    assert capsys.readouterr().out.count("OCTAVO_") > 25
    assert main(["serve", "--help=cach"]) == 2
    assert "did you mean cache" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m octavo serve --help=all | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
