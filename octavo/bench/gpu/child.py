"""A stage's process: ``python -m octavo.bench.gpu.child``, started by drive.py. Orders come in, events go out.

Orders are one JSON object on standard input, events one a line on standard output: ``{"begin": job}``,
``{"point": id, "value": number, "note": text}``, ``{"end": job}``, ``{"error": job, "message": line}``.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, TextIO

import msgspec
from msgspec import Struct

from octavo.bench.gpu.rows import STAGES
from octavo.bench.gpu.setting import Setting, kernel_caches

COLD = "kernels"
"""The stage that must leave no compiled kernels behind for the first start of a server."""

OPEN = "open"
"""The name of what comes before a stage's first job: loading its model."""

Report = Callable[..., None]
"""``report(point, value, note="")``: one figure, as soon as it is known."""


class Orders(Struct, frozen=True, kw_only=True):
    """What to run."""

    stage: str
    jobs: list[str]
    setting: Setting


class Stage(Protocol):
    """Something to set up once and the jobs to run in it, by their ids."""

    def opened(self) -> AbstractContextManager[None]: ...

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]: ...


def run(orders: Orders, send: Callable[[dict[str, Any]], None]) -> None:
    """Run the jobs in order; one that raises is told and the next begins."""
    module, _, name = STAGES[orders.stage].partition(":")
    stage: Stage = getattr(import_module(module), name)(orders.setting)
    send({"begin": OPEN})
    with stage.opened():
        send({"end": OPEN})
        run_jobs(stage, orders.jobs, send)


def run_jobs(stage: Stage, jobs: Sequence[str], send: Callable[[dict[str, Any]], None]) -> None:
    def report(point: str, value: float, note: str = "") -> None:
        send({"point": point, "value": float(value), "note": note})

    for job in jobs:
        send({"begin": job})
        try:
            stage.jobs[job](report)
        except Exception as error:
            traceback.print_exc()
            send({"error": job, "message": one_line(error)})
        else:
            send({"end": job})


def one_line(error: BaseException) -> str:
    """The error's kind and the first line of its text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def main() -> int:
    # Libraries print to standard output; events keep it to themselves.
    events: TextIO = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    if orders.stage != COLD:
        os.environ |= kernel_caches(orders.setting.folder)

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")

    try:
        run(orders, send)
    except Exception as error:
        traceback.print_exc()
        send({"error": OPEN, "message": one_line(error)})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
