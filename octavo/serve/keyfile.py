"""Keys as they stand in a file: digests with a name, scopes and limits. ``octavo key new`` makes the lines::

    # name:scopes:sha256=digest[:limits]
    alice:inference:sha256=9f86d0...:requests=60,tokens=100k,concurrent=4
    grafana:metrics:sha256=2c26b4...

A name may stand in several lines, so that a new key can be given out before the old one is taken away; what belongs to
the name (stored responses, files, its share of the engine) stays.
"""

import enum
import hashlib
import re
import secrets
from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.human import parse_int

MAX_FILE_BYTES = 4 << 20
PREFIX = "sk-octavo-"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")


class Scope(enum.Enum):
    """What a route asks of its caller."""

    OPEN = "open"  # probes: say nothing about the model or its users
    PAGE = "page"  # the web page: the same bytes for everybody, which ask for a key themselves
    DOCS = "docs"  # the description of the API: any key, or none if the operator opens it
    USE = "inference"  # inference and what belongs to it
    METRICS = "metrics"  # the server's figures
    ADMIN = "admin"  # what changes the server


GRANTS = {scope.value: scope for scope in (Scope.USE, Scope.METRICS, Scope.ADMIN)}
PLAIN_SCOPES = frozenset({Scope.USE, Scope.METRICS})  # of keys given as --api-key


@dataclass(frozen=True)
class KeyLimits:
    """What a key may take; 0 is no bound."""

    requests: int = 0  # a minute
    tokens: int = 0  # a minute, of prompts and of output
    concurrent: int = 0  # requests at once


UNLIMITED = KeyLimits()


@dataclass(frozen=True)
class Key:
    """One key, by its digest."""

    digest: bytes
    scopes: frozenset[Scope] = PLAIN_SCOPES
    name: str = ""
    limits: KeyLimits = UNLIMITED

    @property
    def tenant(self) -> str:
        """A stable short name, from which the key cannot be told."""
        return self.name or self.digest.hex()[:16]

    @property
    def owner(self) -> str:
        """Whose stored things it may see: the name's, or else the key's own."""
        digest = digest_of(f"key named {self.name}".encode()) if self.name else self.digest
        return digest.hex()[:32]


def digest_of(key: bytes) -> bytes:
    """What is kept of a key. One round will do: keys are random and long, so no list of guesses finds them."""
    return hashlib.sha256(key).digest()


def new_key() -> str:
    """A fresh key with 256 bits of chance in it."""
    return PREFIX + secrets.token_urlsafe(32)


def read_keys(path: str) -> list[Key]:
    """The keys of a file. ConfigError names the line at fault and quotes nothing of it: it may be a key."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        lines = data.decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--api-key-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--api-key-file {path}: not UTF-8 text") from None
    keys = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if line and not line.startswith("#"):
            try:
                keys.append(parse_line(line))
            except ConfigError as error:
                raise ConfigError(f"{path} line {number}: {error}") from None
    return keys


def parse_line(line: str) -> Key:
    """``name:scopes:sha256=digest[:limits]``. Raises ConfigError."""
    parts = line.split(":")
    if not 3 <= len(parts) <= 4:
        raise ConfigError("expected name:scopes:sha256=digest[:limits], as octavo key new prints it")
    name, scopes, digest, *limits = parts
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ConfigError("the third part must be sha256= and 64 hexadecimal digits, never the key itself")
    return Key(
        bytes.fromhex(found.group(1)), parse_scopes(scopes), check_name(name), parse_limits(limits[0] if limits else "")
    )


def check_name(name: str) -> str:
    """The name itself. ConfigError if it could not stand in a file or a metric."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a key's name has 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def parse_scopes(text: str) -> frozenset[Scope]:
    """``inference,metrics``."""
    names = [name.strip() for name in text.split(",")]
    if not all(name in GRANTS for name in names):
        raise ConfigError(f"scopes are some of {', '.join(GRANTS)}, with commas between them")
    return frozenset(GRANTS[name] for name in names)


def parse_limits(text: str) -> KeyLimits:
    """``requests=60,tokens=100k,concurrent=4``; empty for none."""
    found = {}
    for item in text.split(",") if text else ():
        name, _, value = item.partition("=")
        try:
            number = parse_int(value)
        except ValueError:
            number = 0
        if name not in KeyLimits.__dataclass_fields__ or not 1 <= number <= 1 << 40:
            raise ConfigError("limits are requests=N, tokens=N (a minute) and concurrent=N, with commas between them")
        found[name] = number
    return KeyLimits(**found)


def line_of(key: Key) -> str:
    """The line that gives the key again."""
    scopes = ",".join(name for name, scope in GRANTS.items() if scope in key.scopes)
    limits = [f"{name}={value}" for name in KeyLimits.__dataclass_fields__ if (value := getattr(key.limits, name))]
    return ":".join([key.name, scopes, f"sha256={key.digest.hex()}", *([",".join(limits)] if limits else [])])
