"""`python benchmarks/gpu.py`: runs the stages one after another, within a budget, and keeps every figure at once."""

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from octavo.bench.gpu.child import OPEN, Orders
from octavo.bench.gpu.peers import Peers
from octavo.bench.gpu.process import Child
from octavo.bench.gpu.results import Results
from octavo.bench.gpu.rows import Job, chosen
from octavo.bench.gpu.setting import Setting
from octavo.bench.hardware import machine, version

OPEN_CAP_S = 120.0
LEAST_S = 3.0  # a job with less time left is not begun
PACKAGES = ("torch", "triton", "transformers")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="benchmarks/gpu.py", description="Measure every row on one GPU.")
    made.add_argument("--out", type=Path, help="file for the results; unset: benchmarks/results/<machine>/<date>.json")
    made.add_argument("--only", default="", help="rows, as in T1,T5; all if unset")
    made.add_argument("--budget", type=float, default=540.0, help="seconds in all")
    made.add_argument("--quick", action="store_true", help="the same workloads, each once")
    made.add_argument("--shapes", choices=("qwen3", "tiny"), default="qwen3", help="tiny is a dry run without meaning")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--utilization", type=float, default=0.98, help="share of GPU memory that T29 asks for")
    return made


def main(root: Path, argv: Sequence[str] | None = None) -> int:
    """Exit code 1 when a row failed. `root` is the folder of peers and results."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(given)
    try:
        jobs = chosen(filter(None, options.only.replace(" ", ",").split(",")))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tiny = options.shapes == "tiny"
    found = machine()
    peers = Peers() if tiny else Peers.read(root / "peers" / f"{found.slug}.json")
    results = Results(
        None if tiny and not options.out else options.out or results_path(root, found.slug),
        command=shlex.join(["python", "benchmarks/gpu.py", *given]),
        facts={**{name: version(name) or "none" for name in PACKAGES}, **({"shapes": "tiny"} if tiny else {})},
        peers=peers,
        found=found,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that a stage does not outlive us
    deadline = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory(prefix="octavo-gpu-") as folder:
        setting = Setting(
            folder=folder,
            device=options.device,
            tiny=tiny,
            quick=options.quick,
            utilization=options.utilization,
        )
        run_all(jobs, setting, deadline, results)
    results.finish()
    return 1 if results.errors else 0


def results_path(root: Path, slug: str) -> Path:
    return root / "results" / slug / f"{time.strftime('%Y-%m-%d', time.gmtime())}.json"


def run_all(jobs: Sequence[Job], setting: Setting, deadline: float, results: Results) -> None:
    """Stage by stage, in order; what no time is left for is told as such."""
    for stage, members in groupby(jobs, key=lambda job: job.stage):
        left = list(members)
        while left:
            if time.monotonic() + LEAST_S > deadline:
                results.fail([job.id for job in left], "no time was left for it")
                break
            left = attempt(stage, left, setting, deadline, results)


def attempt(stage: str, jobs: list[Job], setting: Setting, deadline: float, results: Results) -> list[Job]:
    """Run a stage's jobs in a process of their own. Returns those to run in a new one: the ones behind a job that hung
    or died."""
    orders = Orders(stage=stage, jobs=[job.id for job in jobs], setting=setting)
    print(f"-- {stage}: {', '.join(orders.jobs)}", file=sys.stderr, flush=True)
    with Child(orders) as child:
        follow = Follow(jobs, deadline, results)
        while not follow.over:
            event = child.next_event(follow.time_left())
            if event is None:
                follow.stopped(child.ending() if child.ended else None)
            else:
                follow.take(event)
    return follow.left


class Follow:
    """Where a stage's process is: which job runs, until when, and which are still to come."""

    def __init__(self, jobs: list[Job], deadline: float, results: Results) -> None:
        self.left = list(jobs)
        self.over = False
        self._jobs = {job.id: job for job in jobs}
        self._budget_end = deadline
        self._results = results
        self._now = OPEN
        self._until = min(deadline, time.monotonic() + OPEN_CAP_S)

    def time_left(self) -> float:
        """Seconds that the job of the moment still has."""
        return self._until - time.monotonic()

    def take(self, event: dict[str, Any]) -> None:
        """One event of the process."""
        if "point" in event:
            self._results.add(event["point"], event["value"], event["note"])
        elif "begin" in event and event["begin"] != OPEN:
            self._now = event["begin"]
            self._until = min(self._budget_end, time.monotonic() + self._jobs[self._now].cap_s)
        elif event.get("error") == OPEN:
            self._fail_all(event["message"])
        elif "error" in event:
            self._results.fail([event["error"]], event["message"])
            self._done(event["error"])
        elif event.get("end") not in (None, OPEN):
            self._results.passed(event["end"])
            self._done(event["end"])

    def stopped(self, how: str | None) -> None:
        """The process ended (`how`), or its job's time did (None)."""
        message = how or ("the budget ran out" if time.monotonic() >= self._budget_end else self._too_long())
        self.over = True
        if self._now == OPEN:
            self._fail_all(f"before it began: {message}")
        elif any(job.id == self._now for job in self.left):
            self._results.fail([self._now], message)
            self._done(self._now)

    def _too_long(self) -> str:
        cap = OPEN_CAP_S if self._now == OPEN else self._jobs[self._now].cap_s
        return f"took longer than its {cap:g} s"

    def _done(self, name: str) -> None:
        self.left = [job for job in self.left if job.id != name]
        self.over = self.over or not self.left

    def _fail_all(self, message: str) -> None:
        self._results.fail([job.id for job in self.left], message)
        self.left = []
        self.over = True


__all__ = ["main", "parser"]
