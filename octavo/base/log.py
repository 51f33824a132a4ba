"""Logs: the standard library's `logging`, as text for people or JSON lines for machines.

What is logged is one line, bounded, without control characters, so that no input can forge a second line. Keys are
never logged, prompts only where the operator asks for them (--enable-log-requests at level debug), output text never.
A line that is written while a request is served carries its id; `extra={"fields": {...}}` adds fields of its own.
"""

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, TextIO

import msgspec

MAX_LINE_CHARS = 4096
MAX_TRACE_CHARS = 16_384

REQUEST_ID: ContextVar[str] = ContextVar("octavo_request_id", default="")
"""The id of the request that this task serves, empty outside of one."""

LogFormat = Literal["text", "json"]

# Everything below a space, delete, and the C1 set would move a terminal's cursor or end a line.
_CONTROL: Mapping[int, str] = MappingProxyType(
    {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}
)


def set_up(level: str = "info", form: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Send the log lines of the package `octavo` to `stream` (standard error). Safe to call again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("octavo")
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def tell(line: str, *, failed: bool = False) -> None:
    """One line for whoever runs the program, at any level of logs, and an object where those are objects. `failed`: the
    program ends with it. A standard error that takes nothing is no reason to end."""
    text = f"octavo: {one_line(line)}"
    for handler in logging.getLogger("octavo").handlers:
        if isinstance(handler.formatter, JsonLines):
            level = logging.ERROR if failed else logging.INFO
            text = handler.format(logging.LogRecord("octavo", level, "", 0, line, None, None))
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def hang_up() -> None:
    """The process ends: what standard error does not take is let go of, or the interpreter would exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (AttributeError, ValueError):  # closed, or there never was one
        pass


def one_line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """`text` without line ends and control characters, cut at `limit` characters."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return text.translate(_CONTROL)


class TextLines(logging.Formatter):
    """``14:02:07 INFO  engine.core: message``, then the traceback of an error, indented."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("octavo.")
        line = f"{clock} {record.levelname:<7} {name}: {one_line(record.getMessage())}"
        request = REQUEST_ID.get()
        if request:
            line += f" [{request}]"
        trace = _trace(record)
        return line + "".join(f"\n    {one_line(part)}" for part in trace.splitlines())


class JsonLines(logging.Formatter):
    """One JSON object a line: time (seconds since 1970), level, logger, pid, message, request_id, fields, trace."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": one_line(record.getMessage()),
        }
        request = REQUEST_ID.get()
        if request:
            fields["request_id"] = request
        for name, value in getattr(record, "fields", {}).items():
            fields[name] = one_line(value) if isinstance(value, str) else value
        trace = _trace(record)
        if trace:
            fields["trace"] = trace
        return msgspec.json.encode(fields).decode()


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*record.exc_info))[-MAX_TRACE_CHARS:]
