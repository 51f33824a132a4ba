"""Words that must not be in some places: features in the two loops, and doors for foreign code anywhere."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"
FEATURES = ("lora", "grammar", "eagle", "ngram", "image", "sleep", "quant", "connector")
LOOPS = ("sched/scheduler.py", "worker/runner.py")

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"),
    ("os", "system"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
}


@pytest.mark.parametrize("name", [name for name in LOOPS if (PACKAGE / name).exists()])
def test_the_loops_name_no_feature(name):
    text = (PACKAGE / name).read_text(encoding="utf-8").lower()
    found = [word for word in FEATURES if word in text]
    assert not found, f"{name} names {found}: a feature belongs in its own file"


def dangers(source: str, where: str = "") -> list[str]:
    """Doors through which a file or a request could bring code, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = f"{where}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            found += [f"{line}: import {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(f"{line}: from {node.module}")
        elif isinstance(node, ast.Call):
            found += [f"{line}: {name}" for name in _called(node)]
    return found


def _called(node: ast.Call) -> list[str]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
        return [function.id]
    found = []
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        name = (function.value.id, function.attr)
        found += [".".join(name)] if name in FORBIDDEN_ATTRIBUTES else []
    for keyword in node.keywords:
        value = keyword.value
        is_true = isinstance(value, ast.Constant) and value.value is True
        if keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and is_true:
            found.append(f"{keyword.arg}=True")
    return found


def test_no_door_for_foreign_code():
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    found = [hit for path in paths for hit in dangers(path.read_text("utf-8"), str(path.relative_to(ROOT)))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "exec('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "import yaml\nyaml.load('x')",
    ],
)
def test_the_door_finder_finds(source):
    assert dangers(source)


def test_the_door_finder_lets_the_harmless_through():
    assert not dangers("import json\nmodel.eval()\njson.load(f)\nre.compile('x')\nyaml.safe_load(x)")


def test_no_unfinished_work():
    """Nothing that ships is a stub: notes of work to do live in issues."""
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, "\n".join(found)


def test_scripts_are_sound_shell():
    for path in [ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh")]:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
