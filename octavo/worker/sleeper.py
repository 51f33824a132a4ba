"""Sleeper: gives the memory of weights and KV cache back, and brings it again behind the same addresses."""

from collections.abc import Callable, Collection

from octavo.base.errors import ConfigError
from octavo.platform.arena import KV_CACHE, TAGS, WEIGHTS, TaggedMemory
from octavo.platform.base import Aside, Platform

KEEP = 1  # the weights' contents stay in host memory
DROP = 2  # they are loaded again


class Sleeper:
    """Awake at first. `down` are the tags whose memory is given back; work needs all of them up."""

    def __init__(
        self,
        platform: Platform,
        memory: TaggedMemory,
        drop_weights: Callable[[], int],
        load_weights: Callable[[], None],
    ) -> None:
        """`drop_weights` lets go of weights outside the arena, and counts them; `load_weights` fills all again."""
        self.down: set[str] = set()
        self._platform = platform
        self._memory = memory
        self._drop_weights = drop_weights
        self._load_weights = load_weights
        self._aside: Aside | None = None

    def sleep(self, level: int) -> int:
        """Give memory back; how many bytes. From level 1 to 2 is possible, back is not.

        Raises ConfigError, with everything as it was, where memory cannot go or level 1 has no room on the host.
        """
        if self._memory.why_not:
            raise ConfigError(f"this engine cannot sleep: {self._memory.why_not}")
        self._platform.synchronize()
        given = self._put_weights_down(level)
        if KV_CACHE not in self.down:
            given += self._memory.drop(KV_CACHE)
            self.down.add(KV_CACHE)
        self._platform.trim()
        return given

    def wake(self, tags: Collection[str] = TAGS) -> set[str]:
        """Bring these tags back; what is still down then.

        Raises MemoryError, ConfigError or ModelFileError; what could not be brought back stays down.
        """
        if WEIGHTS in tags and WEIGHTS in self.down:
            self._bring_weights()
            self.down.discard(WEIGHTS)
        if KV_CACHE in tags and KV_CACHE in self.down:
            self._memory.restore(KV_CACHE)  # no token reads what no token has written: its contents may be anything
            self.down.discard(KV_CACHE)
        self._platform.synchronize()
        return self.down

    def _put_weights_down(self, level: int) -> int:
        if WEIGHTS in self.down and (level == KEEP or self._aside is None):
            return 0
        if level == KEEP:
            self._aside = self._platform.set_aside(self._memory, WEIGHTS)
            given = self._aside.given
        else:
            if self._aside is not None:
                self._aside.forget()
                self._aside = None
            given = self._drop_weights() + self._memory.drop(WEIGHTS)
        self.down.add(WEIGHTS)
        return given

    def _bring_weights(self) -> None:
        if self._aside is not None:
            self._aside.bring_back()
            self._aside = None
            return
        self._memory.restore(WEIGHTS)
        try:
            self._load_weights()
        except BaseException:
            self._drop_weights()
            self._memory.drop(WEIGHTS)
            raise
