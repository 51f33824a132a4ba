"""The keys that open a server, from flags and from a file that is read again when it changes."""

import hmac
import logging
import os
import secrets
from collections.abc import Iterable, Sequence

from octavo.base.clock import Clock, SystemClock
from octavo.base.errors import ConfigError
from octavo.serve.keyfile import UNLIMITED, Key, KeyLimits, digest_of, read_keys

log = logging.getLogger("octavo.serve")

LOOK_EVERY_S = 0.25


class KeyRing:
    """All valid keys. `find` looks at the file again when it has changed."""

    def __init__(self, plain: Sequence[str] = (), path: str | None = None, clock: Clock | None = None) -> None:
        """Raises ConfigError for a key that would let anyone in, and for a file that cannot be used."""
        if not all(key.strip() == key and key for key in plain):
            raise ConfigError("an --api-key is empty or has blanks round it; such a key would let anyone in")
        if not all(key.isprintable() for key in plain):
            raise ConfigError("an --api-key has characters that no header can carry")
        self._plain = [Key(digest_of(key.encode())) for key in plain]
        self._path = path
        self._clock = clock or SystemClock()
        self._secret = secrets.token_bytes(32)
        self._state = self._seen = state_of(path)
        self._look_again = self._clock.now() + LOOK_EVERY_S
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

    def limits_of(self, owner: str) -> KeyLimits:
        """What the owner's key may take now; without bounds once there is no such key."""
        self.refresh()
        return next((key.limits for key in self._index.values() if key.owner == owner), UNLIMITED)

    def refresh(self) -> None:
        """Reads the file again if it has changed and is quiet. One that cannot be read is logged and passed over."""
        now = self._clock.now()
        if self._path is None or now < self._look_again:
            return
        self._look_again = now + LOOK_EVERY_S
        state = state_of(self._path)
        if state == self._state:
            return
        if state != self._seen:  # it may be half written: read it when it has been the same for two looks
            self._seen = state
            return
        try:
            named, error = read_keys(self._path), None
        except ConfigError as caught:
            named, error = [], caught
        self._seen = state_of(self._path)
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


def state_of(path: str | None) -> tuple[int, int, int, int] | None:
    """What changes whenever the file does; None while there is none."""
    if path is None:
        return None
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino
