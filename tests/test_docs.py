"""The documentation says what is there: flags are real, fields explained, made pages fresh, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.base.args import options_of
from octavo.base.config import OctavoConfig
from octavo.bench import report
from octavo.bench.gpu.drive import parser as gpu_parser
from octavo.cli.main import SUMMARIES
from octavo.cli.reference import commands, page

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
OTHER_FLAGS = {"--help", "--no-deps", "--version", "--check", "--config", "--url", "--shm-size"}
OTHER_FLAGS |= {
    "--build-arg",
    "--format",
    "--gpus",
    "--target",
    "--set",
    "--from-literal",
}  # docker's, kubectl's and helm's


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_every_documented_flag_is_real():
    real = {flag for command in commands() for option in options_of(command.roots) for flag in option.flags}
    suite = {flag for action in gpu_parser()._actions for flag in action.option_strings}
    wrong = []
    for path in PAGES:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", path.read_text("utf-8")):
            if flag not in real | OTHER_FLAGS | suite:
                wrong.append(f"{path.relative_to(ROOT)}: {flag}")
    assert not wrong, "\n".join(wrong)


def test_every_field_is_explained_and_in_the_reference():
    reference = (ROOT / "docs/reference/flags.md").read_text("utf-8")
    for option in options_of([OctavoConfig]):
        assert len(option.description) > 10, option.name
        assert f"`{option.flag}`" in reference
        assert f"`{option.variable}`" in reference


def test_made_pages_are_up_to_date():
    assert (ROOT / "docs/reference/flags.md").read_text("utf-8") == page(), "make docs"
    done = subprocess.run(
        [sys.executable, "scripts/pages.py", "--check"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_map_names_every_package():
    text = (ROOT / "docs/map.md").read_text("utf-8")
    rooms = {path.name for path in (ROOT / "octavo").iterdir() if (path / "__init__.py").exists()}
    missing = [name for name in sorted(rooms) if f"| `{name}` |" not in text]
    assert not missing


def test_every_command_is_in_the_guide():
    text = (ROOT / "docs/guide/cli.md").read_text("utf-8")
    assert not [name for name in SUMMARIES if name != "version" and f"octavo {name}" not in text]


def test_every_make_target_named_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {name for path in PAGES for name in re.findall(r"`make ([a-z]+)", path.read_text("utf-8"))}
    assert named
    assert named <= targets


def test_decisions_are_numbered_without_gaps():
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_python_of_the_readme_is_python():
    for source in re.findall(r"```python\n(.*?)```", "".join(path.read_text("utf-8") for path in PAGES), re.DOTALL):
        compile(source, "README", "exec")


README_ROWS = {
    "Qwen3-0.6B, 256 requests, offline": ("nvidia-h200", ["T1"]),
    "Qwen3-0.6B, decode at batch 1; 16; 64": ("nvidia-h200", ["T5", "T5.16", "T5.64"]),
    "Qwen3-0.6B over HTTP, 64 at once, 512 in, 256 out": ("nvidia-h200", ["T13"]),
    "Qwen3-8B, 256 requests, offline": ("nvidia-h200", ["T3"]),
    "Qwen3-8B, decode at batch 1; 16; 64": ("nvidia-h200", ["T6", "T6.16", "T6.64"]),
    **{
        start: ("cpu-amd-epyc-2c-avx512", [*(f"Octavo, decode at batch {n}, {name}" for n in (1, 16, 64)), prefill])
        for start, name in (("Q4_0", "Q4_0"), ("Q8_0", "Q8_0"), ("Q4_K_M, the default", "Q4_K_M"))
        for prefill in [f"prefill of 1,024 tokens, {name}"]
    },
}


@pytest.mark.parametrize("start", README_ROWS)
def test_the_figures_of_the_readme_are_the_last_results(start):
    machine, wanted = README_ROWS[start]
    found = report.read(sorted((ROOT / "benchmarks/results" / machine).glob("*.json"))[-1])
    values = {name: row.value for row in found.rows for name in (row.id, row.what)}
    cells = [line.split("|")[1:3] for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line[:1] == "|"]
    told = {name.strip(): value.strip() for name, value in cells}[start]
    assert told == "; ".join(f"{values[name]:,.0f}" for name in wanted)
