"""The `octavo` command: finds the named command, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 what was given cannot work, 130 interrupted. Nothing heavy is imported here.
"""

import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise

from octavo import __version__
from octavo.base.errors import ConfigError, EngineError, ModelFileError, UserError
from octavo.base.registry import Registry

SUMMARIES = {
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "chat": "Talk to a model in the terminal.",
    "complete": "Complete one prompt.",
    "sleep": "Make a running server give its device's memory back.",
    "wake": "Make a server that sleeps take its memory again.",
    "run-batch": "Answer the requests of a file, without a server.",
    "bench": "Measure latency, throughput, or a server under load.",
    "plan": "Say what fits in memory, without loading any weights.",
    "compile": "Compile a model's kernels for a GPU, without one.",
    "top": "Watch a running server: throughput, queue, KV cache, latencies.",
    "key": "Make keys for a server.",
    "doctor": "Look at this machine and say what Octavo makes of it.",
    "version": "Print the version.",
}

MAX_LINE = 2000  # characters of an error: a path may be as long as an argument
COMMANDS = Registry(
    "command", {name: f"octavo.cli.{name.replace('-', '_')}:COMMAND" for name in SUMMARIES if name != "version"}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output is gone: say nothing, and keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ConfigError, ModelFileError, UserError, EngineError) as error:
        if os.environ.get("OCTAVO_DEBUG"):
            raise
        print(f"octavo: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        if os.environ.get("OCTAVO_DEBUG"):
            raise
        hint = "this is a bug; OCTAVO_DEBUG=1 shows where"
        print(f"octavo: {type(error).__name__}: {one_line(error)} ({hint})", file=sys.stderr)
        return 1


def one_line(error: Exception) -> str:
    """The message on one line, with no control characters from a file or a prompt in it."""
    text = " ".join(str(error).split())
    text = text if len(text) <= MAX_LINE else text[: MAX_LINE - 3] + "..."
    return "".join(char if char.isprintable() else "?" for char in text) or type(error).__name__


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name == "serve" and not any(word.startswith(("-h", "--help")) for word in rest):
        return _hurried(rest)
    if name in ("version", "--version", "-V"):
        if rest:
            raise ConfigError(f"unexpected argument {rest[0][:60]!r}")
        print(f"octavo {__version__}")
        return 0
    result = COMMANDS.get(name)(rest)
    return int(result)


def _hurried(rest: Sequence[str]) -> int:
    """Serve, begun with what makes a start sooner, before anything else is imported."""
    import gc

    from octavo.engine.spare import drop, prepare

    # numpy multiplies no matrices here, in this process and in the engine's; making threads for it doubles its import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    on_cpu = "--device=cpu" in rest or ("--device", "cpu") in pairwise(rest)
    prepare("cpu" if on_cpu else "auto")  # the engine's process imports as long as this one
    gc.disable()  # until the server is up (serve/main.py): nearly all that a start makes stays
    try:
        return int(COMMANDS.get("serve")(rest))
    finally:
        gc.enable()
        drop()


def _overview() -> str:
    lines = ["usage: octavo COMMAND [options]", "", "A serving engine for large language models.", ""]
    lines += [f"  {name:<10} {summary}" for name, summary in SUMMARIES.items()]
    return "\n".join([*lines, "", "octavo COMMAND --help says more. OCTAVO_DEBUG=1 shows whole tracebacks."])
