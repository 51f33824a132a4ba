"""Starting a process that works for this one: Python, a module of ours, one thread of each library's own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import octavo

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def spawn(
    module: str, arguments: Sequence[str] = (), *, given: Sequence[int] = (), output: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """It is told things through its standard input. `given`: descriptors that it has too. Raises OSError."""
    root = str(Path(octavo.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(
        # -P: never import from the folder that the user happens to stand in.
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.DEVNULL,
        pass_fds=given,
        env={**os.environ, "PYTHONPATH": path, **dict.fromkeys(THREADS, "1")},
        bufsize=0,
    )
