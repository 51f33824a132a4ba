"""An engine inside the caller's process, for offline use: the same core, no sockets, moved on by its caller."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from octavo.base.config import EngineConfig
from octavo.base.errors import EngineError
from octavo.base.wire import Control, EngineRequest, Outputs, Vocabulary
from octavo.engine.assemble import Engine, assemble
from octavo.engine.control import execute

STILL_WAIT_S = 0.002  # pause when there is work but no step to take


class InprocClient:
    """Submit requests, then call `step` until `has_work` is false."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ready = engine.ready
        self._tell_vocabulary: Callable[[], Vocabulary] | None = None
        self._closed = False
        self.stats = engine.core.stats  # as of the last step; another thread may read it at any time

    @classmethod
    def launch(cls, config: EngineConfig, make: Callable[[EngineConfig], Engine] = assemble) -> "InprocClient":
        """Raises ConfigError and ModelFileError."""
        return cls(make(config))

    @property
    def has_work(self) -> bool:
        return self.engine.core.has_work

    def provide(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Says what the tokens stand for, for features that must know; asked before the first request with one."""
        self._tell_vocabulary = vocabulary

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. A refusal comes as its output. Raises EngineError once it is closed."""
        if self._closed:
            raise EngineError("this model has been closed")
        if request.riders and self._tell_vocabulary is not None:
            self.engine.core.provide(self._tell_vocabulary())
            self._tell_vocabulary = None
        self.engine.core.add(request)

    def abort(self, ids: Iterable[str]) -> None:
        self.engine.core.abort(list(ids))

    def step(self) -> Outputs:
        """Move on by one step; what came of it. Raises EngineDead."""
        outputs = self.engine.core.step()
        if outputs is None:
            time.sleep(STILL_WAIT_S if self.has_work else 0.0)
            return Outputs()
        self.stats = outputs.stats
        return outputs

    def prepare(self) -> None:
        """Make later steps as cheap as they can be, before the first request: seconds on a GPU, nothing on a CPU."""
        while self.engine.core.prepare():
            pass

    def control(self, command: str, **args: str | int | float | bool | None) -> Any:
        """Call a command of engine/control.py. Raises EngineError with its message, EngineDead."""
        reply = execute(self.engine.core, Control(0, command, args))
        if reply.error is not None:
            raise EngineError(reply.error)
        return reply.value

    def close(self) -> None:
        """Let the device go. Safe to call again."""
        self._closed = True
        self.engine.core.shutdown()
