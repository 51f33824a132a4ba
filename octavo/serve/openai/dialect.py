"""What a generating endpoint says about the form of its choices."""

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.text.collect import Collector, TextDelta
from octavo.text.parse.base import Event


class Dialect(Protocol):
    """How one endpoint writes its choices. `index` counts choices over all prompts."""

    whole_object: str
    chunk_object: str

    def choice(self, index: int, collector: Collector) -> dict[str, Any]:
        """A finished choice of a whole answer."""
        ...

    def top_level(self, collectors: Sequence[Collector]) -> dict[str, Any]:
        """Fields of a whole answer beside the choices."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice object of a stream's first chunk, sent before any token of it."""
        ...

    def prompt_event(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        """The chunk that carries the prompt's log-probabilities, if this delta brings them and they were asked for."""
        ...

    def text_key(self) -> tuple[bytes, bytes]:
        """What stands round the text in a chunk's choice object, between ``"index":N,`` and ``"logprobs"``."""
        ...

    def delta_logprobs(self, index: int, collector: Collector, delta: TextDelta) -> Any:
        """The ``logprobs`` value of a chunk; None without."""
        ...

    def finish_reason(self, collector: Collector, reason: str | None) -> str | None:
        """What the endpoint calls the end."""
        ...

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """The fields of chunks for what is more than text, one object a chunk."""
        ...
