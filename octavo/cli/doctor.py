"""`octavo doctor`: what this machine is, what Octavo would do on it, and what to change.

It fails where a server would: a script may ask it first. What only makes a server slower is told and no more.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from octavo import __version__
from octavo.base.args import options_of
from octavo.base.config import OctavoConfig, doc
from octavo.base.human import format_bytes
from octavo.base.places import cache_folder
from octavo.bench.hardware import gpus, machine, version
from octavo.cli.command import Command
from octavo.cli.doctor_host import (
    DEFAULT_PORT,
    GIB,
    Section,
    build_section,
    clock_section,
    container_section,
    driver_section,
    existing,
    network_section,
)
from octavo.cli.help import bold

FEW_FILES = 4096
LIBRARIES = (
    *("torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "jinja2", "msgspec", "starlette", "httpx"),
    *("filelock", "python-multipart", "uvicorn", "uvloop", "httptools", "pyzmq", "aiohttp", "prometheus-client"),
    *("psutil", "pyyaml", "rich", "tqdm", "llguidance"),
)
DISPENSABLE = frozenset({"uvloop", "rich"})  # of LIBRARIES: a server runs without them, more slowly or plainly
OPTIONAL = ("triton", "xgrammar", "opentelemetry-sdk")
TORCH_FROM, TORCH_BELOW = (2, 11), (2, 15)
PYTHONS = ((3, 11), (3, 12))
OTHER_VARIABLES = {"OCTAVO_DEBUG"}


class DoctorOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to report."""

    port: Annotated[int, doc("Port that a server would take.", ge=1, le=65_535)] = DEFAULT_PORT
    json: Annotated[bool, doc("Print JSON instead of text.")] = False


def python_section() -> Section:
    section = Section("python")
    section.facts = {"octavo": __version__, "python": sys.version.split()[0], "at": sys.executable}
    here = sys.version_info[:2]
    if here not in PYTHONS:
        section.warnings.append(f"Python {here[0]}.{here[1]} is untested: take 3.11 or 3.12")
    return section


def library_section() -> Section:
    section = Section("libraries")
    for name in (*LIBRARIES, *OPTIONAL):
        found = version(name)
        section.facts[name] = found or "-"
        if found is None and name in LIBRARIES:
            told = section.warnings if name in DISPENSABLE else section.failures
            told.append(f"{name} is missing: pip install {name}")
    torch = version("torch")
    if torch and not TORCH_FROM <= _numbers(torch) < TORCH_BELOW:
        section.warnings.append(f"torch {torch} is untested here; install torch>=2.11,<2.15")
    return section


def machine_section() -> Section:
    from octavo.platform.limits import memory_limits

    here = machine()
    section = Section("machine")
    total = memory_limits()[1]
    section.facts = {
        "name": here.slug,
        "system": here.system,
        "cpu": f"{here.cpu}, {here.cores} cores usable of {os.cpu_count()}",
        "instructions": " ".join(here.isa) or "none that matter",
        "memory": f"{format_bytes(here.available)} free of {format_bytes(total)}",
    }
    if here.available < 2 * GIB:
        section.warnings.append("less than 2 GiB of memory is free: end something, or take a smaller model")
    if not here.gpus and not {"avx2", "avx512f", "asimd"} & set(here.isa):
        section.warnings.append("the CPU has neither AVX2 nor NEON: expect it to be slow")
    if not here.gpus and not {"amx_int8", "avx512_bf16"} & set(here.isa):
        section.warnings.append("bfloat16 is slow on this CPU: leave --dtype at auto, which takes float32")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) < here.cores:
        section.warnings.append(f"OMP_NUM_THREADS={threads} keeps torch from using {here.cores} cores: unset it")
    return section


def limit_section() -> Section:
    section = Section("limits")
    try:
        import resource
    except ImportError:
        return section
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # up to which a server raises its own
    section.facts["open files"] = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        section.warnings.append(
            f"only {hard} open files allowed, one a connection: ulimit -Hn 65536 as root, or LimitNOFILE"
        )
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        section.facts["shared memory"] = f"{format_bytes(free)} free"
        if free < 16 << 20:  # a container has 64 MiB unless told otherwise, which will do
            section.warnings.append("/dev/shm is nearly full or tiny: in a container give --shm-size=1g")
    return section


def device_section() -> Section:
    section = Section("device")
    try:
        import torch
    except Exception as error:
        section.failures.append(f"torch cannot be imported: {type(error).__name__}: {error}; install it again")
        return section
    section.facts["torch"] = f"{torch.__version__}, {torch.get_num_threads()} threads"
    section.facts["cuda build"] = str(torch.version.cuda or "no")
    found = gpus()
    for index, gpu in enumerate(found):
        section.facts[f"gpu {index}"] = (
            f"{gpu.name}, {format_bytes(gpu.free_memory)} free of {format_bytes(gpu.total_memory)}, "
            f"compute capability {gpu.capability[0]}.{gpu.capability[1]}"
        )
    if found and not torch.cuda.is_available():
        section.failures.append("there is a GPU, but this torch cannot use it: install a CUDA build of torch")
    section.facts["runs on"] = "cuda" if torch.cuda.is_available() else "cpu"
    return section


def operation_section() -> Section:
    """Which implementation each operation would use."""
    section = Section("operations")
    try:
        import torch

        from octavo.kernels.cpu.loader import native
        from octavo.kernels.cpu.table import WITHIN_LAYERS
        from octavo.kernels.ops import select

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        section.facts = dict(select(device).names)
        if device.type == "cpu" and native() is not None:
            section.facts |= dict.fromkeys(WITHIN_LAYERS, "native, within layers")
    except Exception as error:
        section.failures.append(f"the table of operations cannot be filled: {type(error).__name__}: {error}")
    return section


def cache_section() -> Section:
    section = Section("caches")
    for name, folder in (("octavo", cache_folder()), ("model hub", hub_folder())):
        size = format_bytes(_size(folder)) if folder.is_dir() else "not there yet"
        section.facts[name] = f"{folder} ({size})"
        if not os.access(existing(folder), os.W_OK):
            section.warnings.append(f"{folder} cannot be written; set XDG_CACHE_HOME or HF_HOME to a folder that can")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        section.warnings.append("HF_HUB_OFFLINE is set: only models that are already here can be named by hub name")
    return section


def hub_folder() -> Path:
    """Where downloaded models are kept."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def disk_section() -> Section:
    return clock_section([cache_folder(), hub_folder(), Path(tempfile.gettempdir())])


def variable_section() -> Section:
    """OCTAVO_ variables: those that take effect, and those that nothing reads."""
    section = Section("variables")
    known = {option.variable for option in options_of([OctavoConfig])} | OTHER_VARIABLES
    for name in sorted(os.environ):
        if name.startswith("OCTAVO_"):
            secret = "KEY" in name or "TOKEN" in name
            section.facts[name] = "(hidden)" if secret else os.environ[name][:80]
            if name not in known:
                section.warnings.append(f"{name} is not a variable that octavo serve reads")
    return section


SECTIONS: tuple[Callable[[], Section], ...] = (
    python_section,
    library_section,
    machine_section,
    container_section,
    limit_section,
    driver_section,
    device_section,
    operation_section,
    build_section,
    cache_section,
    disk_section,
    variable_section,
)


def run(options: DoctorOptions) -> int:
    """Print the report. The exit code is 1 where a server would not work, else 0."""
    sections = [*(make() for make in SECTIONS), network_section(options.port)]
    if options.json:
        print(json.dumps([asdict(section) for section in sections], indent=1))
        return int(any(section.failures for section in sections))
    for section in sections:
        if not section.facts and not section.warnings and not section.failures:
            continue
        print(bold(section.title))
        for name, value in section.facts.items():
            print(f"  {name:<18} {value}")
        told = [f"  X {failure}" for failure in section.failures] + [f"  ! {each}" for each in section.warnings]
        print("\n".join(told) + ("\n" if told else ""))
    failures = sum(len(section.failures) for section in sections)
    warnings = sum(len(section.warnings) for section in sections)
    print(_verdict(failures, warnings))
    return int(failures > 0)


def _verdict(failures: int, warnings: int) -> str:
    parts = [f"{failures} thing{'s' if failures != 1 else ''} to mend before a server works"] if failures else []
    parts += [f"{warnings} thing{'s' if warnings != 1 else ''} to look at"] if warnings else []
    return ", ".join(parts) or "All well."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())


def _size(folder: Path) -> int:
    """Bytes of the files under a folder, links not followed."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


COMMAND = Command(
    name="doctor",
    summary="Look at this machine and say what Octavo makes of it, and what to change.",
    roots=(DoctorOptions,),
    run=run,
)
