"""What a process does before it is told what it is for."""

import subprocess
import sys
import threading

import pytest

from octavo.engine import ahead, spare
from octavo.engine.interpreter import SWITCH_S, taking_turns


@pytest.fixture
def imported(monkeypatch):
    names = []
    monkeypatch.setattr(ahead, "import_module", names.append)
    monkeypatch.setattr(ahead, "import_torch", lambda: names.append("torch"))
    return names


def test_where_there_is_a_gpu_its_modules_come_too(imported, monkeypatch):
    monkeypatch.setattr(ahead, "find_spec", lambda _: True)
    monkeypatch.setattr(ahead, "find_driver", lambda: True)
    monkeypatch.setattr(ahead, "start_driver", lambda: True)
    monkeypatch.setattr(ahead, "start_triton", lambda: True)
    ahead.prepare(gpu=True)
    assert imported == ["torch", *ahead.MODULES, *ahead.GPU_MODULES]


@pytest.mark.parametrize("broken", ["find_driver", "start_driver", "start_triton", "find_spec"])
def test_without_one_they_do_not(broken, imported, monkeypatch):
    for name in ("find_driver", "start_driver", "start_triton"):
        monkeypatch.setattr(ahead, name, lambda name=name: name != broken)
    monkeypatch.setattr(ahead, "find_spec", lambda _: broken != "find_spec")
    ahead.prepare(gpu=True)
    assert imported == ["torch", *ahead.MODULES]


def test_for_a_cpu_no_driver_is_looked_for(imported, monkeypatch):
    monkeypatch.setattr(ahead, "find_driver", lambda: pytest.fail("nobody asked for a GPU"))
    ahead.prepare(gpu=False)
    assert imported == ["torch", *ahead.MODULES]


def test_trouble_aside_is_no_trouble():
    def fails():
        raise OSError("no such library")

    assert not ahead.Aside(fails).result()
    gate = threading.Event()
    slow = ahead.Aside(lambda: gate.wait(10))
    gate.set()
    assert slow.result()


def test_importing_it_costs_nothing():
    code = "import sys, octavo.engine.ahead; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_says_that_no_gpu_is_meant(monkeypatch):
    made = []
    monkeypatch.setattr(spare, "_spare", None)
    monkeypatch.setattr(spare.subprocess, "Popen", lambda command, **_: made.append(command))
    spare.prepare("cpu")
    spare.prepare("auto")
    assert [spare.FOR_CPU in command for command in made] == [True, False]


def test_triton_looks_for_its_backends_in_its_own_folder():
    pytest.importorskip("triton")
    code = (
        "import os, sys\n"
        "from octavo.engine.ahead import Aside, start_triton\n"
        "Aside(start_triton).result()\n"
        "from triton.backends import backends\n"
        "assert 'nvidia' in backends and 'torch' not in sys.modules\n"
        "assert os.environ['TRITON_BACKENDS_IN_TREE'] == '1'\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_threads_of_the_process_wait_less_for_the_interpreter():
    code = (
        "import sys\n"
        "from octavo.engine import proc\n"
        "from octavo.engine.interpreter import SWITCH_S\n"
        "assert sys.getswitchinterval() > SWITCH_S\n"
        "assert proc.main() == proc.EXIT_CONFIG and sys.getswitchinterval() == SWITCH_S\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("own", [0.005, 0.0001])
def test_threads_of_another_process_only_for_a_while(own):
    before = sys.getswitchinterval()
    sys.setswitchinterval(own)
    try:
        with taking_turns():
            assert sys.getswitchinterval() == pytest.approx(min(own, SWITCH_S), rel=0.05)
        assert sys.getswitchinterval() == pytest.approx(own, rel=0.05)
    finally:
        sys.setswitchinterval(before)
