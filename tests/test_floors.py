"""The building's rules, measured: imports go down only, no circles, no torch in the plan world, and sizes.

Floors and arrows are those of docs/map.md. An import inside a function or under TYPE_CHECKING makes no circle at
run time, but it still may not climb a floor.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("kv", "connect", "models", "weights", "nn", "dist", "kernels", "platform"),
    ("sched", "grammar", "worker"),
    ("text", "engine"),
    ("serve", "llm", "router"),
    ("cli", "bench"),
    ("testing",),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}

# Arrows allowed between rooms of one floor. Models, weights and nn stand in this order over dist and kernels;
# a chain lets its upper rooms skip a step.
CHAIN = ("models", "weights", "nn", "dist", "kernels", "platform")
ARROWS = {(upper, lower) for i, upper in enumerate(CHAIN) for lower in CHAIN[i + 1 :]} | {
    ("connect", "kv"),
    ("sched", "grammar"),
    ("cli", "bench"),
}
# What a model is, as data: it belongs to models but holds no torch, so the files' reader may ask for it.
DATA_MODULES = {"octavo.models.arch", "octavo.models.registry"}
# Floors that two rooms of the higher floors may use only in part.
FORBIDDEN = {
    "router": {"engine", "sched", "worker", "models", "weights", "nn", "kernels", "platform", "dist"},
    "text": {"sched", "worker", "nn", "kernels", "platform", "dist"},
    "sched": {"models", "weights", "nn", "dist", "kernels", "platform"},
    "grammar": {"models", "weights", "nn", "dist", "kernels", "platform"},
    "kv": {"models", "weights", "nn", "dist", "kernels", "platform"},
    "serve": {"worker", "nn", "kernels", "sched"},
    "llm": {"worker", "nn", "kernels", "sched"},
}
ROOTS = {"octavo", "octavo.__main__", "octavo.__init__"}
NO_TORCH = ("base", "kv", "sched", "grammar", "text", "router")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


@cache
def modules() -> dict[str, Path]:
    """Dotted name of every module in the tree, and its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(module: str, path: Path, *, at_start_only: bool) -> Iterator[tuple[str, int]]:
    """Modules of ours that `module` imports, with the line. `at_start_only` leaves out what runs later or never."""
    known = modules()
    for node in _nodes(tree(path), at_start_only):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written out in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target not in (module, "octavo"):
                yield target, node.lineno


def _nodes(node: ast.AST, at_start_only: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        never = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if at_start_only and (later or never):
            continue
        yield child
        yield from _nodes(child, at_start_only)


def room(module: str) -> str:
    """The top-level package or module under octavo."""
    return module.split(".")[1] if "." in module else module


def test_every_room_has_a_floor():
    rooms = {room(name) for name in modules() if name not in ROOTS}
    assert rooms <= set(LEVEL), f"not on the map: {sorted(rooms - set(LEVEL))}"


def test_imports_go_down_only():
    wrong = []
    for name, path in modules().items():
        if name in ROOTS:
            continue
        here = room(name)
        for target, line in imports(name, path, at_start_only=False):
            there = room(target)
            if there != here and not _allowed(here, there, target):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} may not import {target}")
    assert not wrong, "\n".join(wrong)


def _allowed(here: str, there: str, target: str) -> bool:
    if there in FORBIDDEN.get(here, ()):
        return target in DATA_MODULES
    if LEVEL[here] != LEVEL[there]:
        return LEVEL[here] > LEVEL[there]
    return (here, there) in ARROWS or target in DATA_MODULES


def test_nobody_imports_testing():
    wrong = [
        f"{name} -> {target}"
        for name, path in modules().items()
        for target, _ in imports(name, path, at_start_only=False)
        if room(target) == "testing" and room(name) != "testing"
    ]
    assert not wrong


def test_no_circle_among_modules():
    graph = {
        name: {target for target, _ in imports(name, path, at_start_only=True)} for name, path in modules().items()
    }
    assert _circles(graph) == []


def test_no_circle_among_rooms():
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        if name in ROOTS:
            continue
        for target, _ in imports(name, path, at_start_only=False):
            if target not in DATA_MODULES and room(target) != room(name):
                graph.setdefault(room(name), set()).add(room(target))
    assert _circles(graph) == []


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            cut = stack.index(node)
            if len(stack) - cut > 1:
                found.append(sorted(stack[cut:]))
            del stack[cut:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def test_the_circle_finder_finds_circles():
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


@pytest.mark.parametrize("name", [name for name in NO_TORCH if (PACKAGE / name).exists()])
def test_the_plan_world_imports_without_torch(name):
    """Every module of the room, in a fresh interpreter."""
    names = [module for module in modules() if room(module) == name]
    heavy = "{'torch', 'transformers', 'numpy.distutils', 'triton'} & sys.modules.keys()"
    code = f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\nprint(sorted({heavy}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_sizes():
    """Aims, held as limits until there is a reason written down for more."""
    long_files, long_functions = [], []
    for path in modules().values():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            long_files.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long_functions.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {length} lines")
    assert not long_files + long_functions, "\n".join(long_files + long_functions)
