"""A parser from readers: the thoughts first, then text and calls, on one source."""

from collections.abc import Callable
from typing import Protocol

from octavo.text.parse.base import Event, Steps, ToolSchemas
from octavo.text.parse.out import Out, call_id
from octavo.text.parse.source import Source


class State:
    """Whether the reader is inside thoughts. `opened`: the prompt has begun them already."""

    __slots__ = ("opened", "thinking")

    def __init__(self, opened: bool = False) -> None:
        self.opened = opened
        self.thinking = opened


Reader = Callable[[Source, Out, State], Steps[None]]
"""Reads a whole message."""


class ReadsThoughts(Protocol):
    """Reads what stands before the text for the user."""

    def read(self, source: Source, out: Out, state: State) -> Steps[None]:
        """Returns where the text begins."""
        ...


class ReadsCalls(Protocol):
    """Reads text and calls."""

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Reads to the end."""
        ...


class Parser:
    """A StreamParser over one reader. `opened`: the prompt ends inside thoughts."""

    def __init__(self, reader: Reader, *, opened: bool = False, new_id: Callable[[], str] = call_id) -> None:
        self._source = Source()
        self._out = Out(new_id)
        self._state = State(opened)
        self._steps = reader(self._source, self._out, self._state)
        self._done = False
        self._run()

    @property
    def thinking(self) -> bool:
        return self._state.thinking

    def feed(self, text: str) -> list[Event]:
        """What this text adds."""
        self._source.push(text)
        self._run()
        return self._out.drain()

    def finish(self) -> list[Event]:
        """The rest."""
        self._source.ended = True
        self._run()
        self._out.finish()
        return self._out.drain()

    def _run(self) -> None:
        if not self._done:
            self._done = next(self._steps, True) is True


def message_reader(thoughts: ReadsThoughts | None, calls: ReadsCalls | None, tools: ToolSchemas) -> Reader:
    """Thoughts, then text and calls, then whatever is left as text; either reader may be missing."""

    def read(source: Source, out: Out, state: State) -> Steps[None]:
        if thoughts is not None:
            yield from thoughts.read(source, out, state)
        state.thinking = False
        if calls is not None:
            yield from calls.read(source, out, tools)
        while True:
            if source.at < len(source.text):
                out.text(source.take(len(source.text)))
            if source.ended:
                return
            yield

    return read
