"""Keys: who may call, for what, and how much. Only digests are kept.

A key file has a line for each key, made by ``octavo key new``::

    # name:scopes:sha256=digest[:limits]
    alice:inference:sha256=9f86d0...:requests=60,tokens=100k,concurrent=4
    grafana:metrics:sha256=2c26b4...

The file is read again when it changes. A name may stand in several lines, so that a new key can be given out before
the old one is taken away; what belongs to the name (stored responses, files, its share of the engine) stays.
"""

import enum
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.base.errors import ConfigError
from octavo.base.human import parse_int

log = logging.getLogger("octavo.serve")

LOOK_EVERY_S = 0.25
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


class KeyRing:
    """All valid keys. `find` looks at the file again when it has changed."""

    def __init__(self, plain: Sequence[str] = (), path: str | None = None) -> None:
        """Raises ConfigError for a key that would let anyone in, and for a file that cannot be used."""
        if not all(key.strip() == key and key for key in plain):
            raise ConfigError("an --api-key is empty or has blanks round it; such a key would let anyone in")
        self._plain = [Key(digest_of(key.encode())) for key in plain]
        self._path = path
        self._secret = secrets.token_bytes(32)
        self._state = self._seen = _state_of(path)
        self._look_again = time.monotonic() + LOOK_EVERY_S
        named = read_keys(path) if path is not None else []
        if path is not None and not named:
            raise ConfigError(f"{path} holds no key; octavo key new NAME makes one")
        self._index = self._indexed(named)

    @property
    def active(self) -> bool:
        """Whether callers need a key. It does not change while the server runs: an emptied file lets nobody in."""
        return bool(self._plain) or self._path is not None

    @property
    def many(self) -> bool:
        """Whether there may be more than one caller to keep apart."""
        return len(self._plain) > 1 or self._path is not None

    def find(self, given: bytes) -> Key | None:
        """The key with this digest. The time it takes tells nothing: the look-up is keyed with a secret of ours."""
        self.refresh()
        key = self._index.get(self._blind(given))
        return key if key is not None and hmac.compare_digest(key.digest, given) else None

    def tenant_of(self, owner: str) -> str:
        """The tenant of an owner of stored things, for work that goes on without a request."""
        if not self.many:
            return ""
        return next((key.tenant for key in self._index.values() if key.owner == owner), owner[:16])

    def refresh(self) -> None:
        """Reads the file again if it has changed and is quiet. One that cannot be read is logged and passed over."""
        now = time.monotonic()
        if self._path is None or now < self._look_again:
            return
        self._look_again = now + LOOK_EVERY_S
        state = _state_of(self._path)
        if state == self._state:
            return
        if state != self._seen:  # it may be half written: read it when it has been the same for two looks
            self._seen = state
            return
        try:
            named, error = read_keys(self._path), None
        except ConfigError as caught:
            named, error = [], caught
        self._seen = _state_of(self._path)
        if self._seen != state:
            return
        self._state = state
        if error is not None:
            log.error("the keys stay as they were: %s", error)
            return
        self._index = self._indexed(named)
        log.info("read %d keys from %s", len(named), self._path)

    def _indexed(self, named: Iterable[Key]) -> dict[bytes, Key]:
        return {self._blind(key.digest): key for key in (*self._plain, *named)}

    def _blind(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


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


def _state_of(path: str | None) -> tuple[int, int, int, int] | None:
    """What changes whenever the file does; None while there is none."""
    if path is None:
        return None
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino
