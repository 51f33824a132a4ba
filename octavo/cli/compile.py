"""`octavo compile MODEL --gpu h200`: a model's kernels, compiled without the GPU, for the image that will run there.

Weights are not needed either. A start with the same versions finds the kernels where they are kept.
"""

import os
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from octavo.base.config import EngineConfig, doc
from octavo.base.errors import ConfigError
from octavo.base.human import format_bytes
from octavo.cli.command import Command, need_model

GB = 10**9
# What the shape of a kernel depends on: compute capability, multiprocessors, KiB of shared memory; and GB in all.
GPUS = {
    "a10": ((8, 6), 72, 99, 24),
    "a100": ((8, 0), 108, 163, 80),
    "b200": ((10, 0), 148, 227, 180),
    "h100": ((9, 0), 132, 227, 80),
    "h200": ((9, 0), 132, 227, 141),
    "l4": ((8, 9), 58, 99, 24),
    "l40s": ((8, 9), 142, 99, 48),
    "rtx3090": ((8, 6), 82, 99, 24),
    "rtx4090": ((8, 9), 128, 99, 24),
}


class CompileOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compile for."""

    gpu: Annotated[str, doc(f"The GPU: {', '.join(GPUS)}.")] = "h200"


def run(options: CompileOptions, engine: EngineConfig) -> int:
    """Rehearse a start for that GPU and wait for its kernels."""
    need_model(engine, "compile MODEL --gpu h200")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ConfigError("TRITON_INTERPRET=1 has kernels interpreted; unset it to compile them")
    from octavo.engine.resolve import resolve
    from octavo.platform.base import Facts
    from octavo.platform.limits import core_limit
    from octavo.weights.facts import read_configs

    capability, multiprocessors, kib, gigabytes = _gpu(options.gpu)
    files = read_configs(engine.model)
    dtypes = ("bfloat16", "float16", "float32") if capability >= (8, 0) else ("float16", "float32")
    facts = Facts(
        device="cuda",
        name=options.gpu,
        total_memory=gigabytes * GB,
        free_memory=gigabytes * GB,
        cores=core_limit(),
        dtypes=dtypes,
        asynchronous=True,
        capability=capability,
    )
    resolved = resolve(engine, files.arch, facts, file_format=files.format)
    from octavo.kernels.triton.kept import keep

    keep()
    from octavo.kernels.triton.absent import compile_for
    from octavo.kernels.triton.target import Target

    compile_for(Target(capability, multiprocessors, kib << 10))
    from octavo.worker.rehearsal import compile_all

    count = compile_all(files.arch, resolved, core_limit(), capture=not engine.device.enforce_eager)
    from triton import knobs

    folder = Path(knobs.cache.dir)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{count} kernels for {options.gpu} in {folder}, {format_bytes(size)} with what was there")
    return 0


def _gpu(name: str) -> tuple[tuple[int, int], int, int, int]:
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise ConfigError(f"no GPU {name!r} is known here; these are: {', '.join(GPUS)}") from None


COMMAND = Command(
    name="compile",
    summary="Compile a model's kernels for a GPU, without one.",
    roots=(CompileOptions, EngineConfig),
    run=run,
    positional="model",
    example="octavo compile Qwen/Qwen3-0.6B --gpu h200",
)
