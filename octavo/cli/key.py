"""`octavo key new NAME`: a key for somebody, and the line that lets it in."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from octavo.base.config import doc
from octavo.base.errors import ConfigError
from octavo.cli.command import Command, dispatch
from octavo.serve.keyfile import Key, KeyLimits, check_name, digest_of, line_of, new_key, parse_line, parse_scopes

SHORTEST = 16  # characters of a key that somebody brings along


class KeyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose key it is and what it may do."""

    name: Annotated[str, doc("Whose key it is: letters, digits, dots, dashes and underscores.")] = ""
    scopes: Annotated[str, doc("What it is for: some of inference, metrics and admin, with commas.")] = "inference"
    requests: Annotated[int, doc("Requests it may make a minute; 0: no bound.", ge=0, le=1 << 40)] = 0
    tokens: Annotated[int, doc("Tokens it may take a minute, prompt and output; 0: no bound.", ge=0, le=1 << 40)] = 0
    concurrent: Annotated[int, doc("Requests it may have at once; 0: no bound.", ge=0, le=1 << 40)] = 0
    append: Annotated[str | None, doc("Key file to add the line to, made if it is not there.")] = None
    stdin: Annotated[bool, doc("Take the key from standard input instead of making one.")] = False


def run(options: KeyOptions) -> int:
    """Print the key, and the line unless it goes into a file."""
    if not options.name:
        raise ConfigError("whose key? octavo key new NAME")
    key = _given() if options.stdin else new_key()
    limits = KeyLimits(options.requests, options.tokens, options.concurrent)
    entry = Key(digest_of(key.encode()), parse_scopes(options.scopes), check_name(options.name), limits)
    line = line_of(entry)
    assert parse_line(line) == entry
    if options.append is not None:
        _append(options.append, line)
        print(f"octavo: added {options.name} to {options.append}; the key is shown this once", file=sys.stderr)
    if not options.stdin:
        print(key)
    if options.append is None:
        print("octavo: that is the key, shown this once; the line for --api-key-file:", file=sys.stderr)
        print(line)
    return 0


def _given() -> str:
    key = sys.stdin.readline().strip()
    if len(key) < SHORTEST or not key.isascii() or " " in key:
        raise ConfigError(f"a key has at least {SHORTEST} characters of plain ASCII and no blanks")
    return key


def _append(path: str, line: str) -> None:
    """One write to the end of the file, so that a server that reads it meanwhile sees whole lines."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            gap = b"\n" if size and file.read(1) != b"\n" else b""
            file.write(gap + line.encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


ACTIONS = {
    "new": Command(
        name="key new",
        summary="Make a key for --api-key-file: shows it once, and the line that lets it in.",
        roots=(KeyOptions,),
        run=run,
        positional="name",
        example="octavo key new alice --scopes inference,metrics --requests 60 --append keys.txt",
    )
}


def COMMAND(argv: Sequence[str]) -> int:
    """Pick the action and run it."""
    return dispatch("key", "action", ACTIONS, argv)
