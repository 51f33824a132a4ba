"""Starting a stage's process, reading its events with a time limit, and ending it with all that it started."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec

from octavo.bench.gpu.child import Orders

END_WAIT_S = 20.0
KILL_WAIT_S = 5.0


class Child:
    """A stage's process, in a process group of its own: a server that it started ends with it."""

    def __init__(self, orders: Orders, module: str = "octavo.bench.gpu.child") -> None:
        self._orders = msgspec.json.encode(orders)
        self._module = module
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.ended = False
        self._hung = False

    def __enter__(self) -> "Child":
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already; its end is told by `next_event`
            self._process.stdin.write(self._orders)
            self._process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Let it end by itself if it is through with its jobs; then end the group."""
        if kind is None and not self._hung:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WAIT_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_WAIT_S)

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None when none came in time or the process has ended (`ended`)."""
        try:
            event = self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            self._hung = True
            return None
        self.ended = event is None
        return event

    def ending(self) -> str:
        """How the process ended, in words."""
        try:
            code = self._process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            return "its process fell silent"
        return f"its process ended with exit code {code}" if code >= 0 else f"its process ended by signal {-code}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)
