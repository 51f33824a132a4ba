"""Events as readers make them: neighbours joined, whitespace round calls and thoughts laid aside."""

import secrets
from collections.abc import Callable

from octavo.text.parse.base import Event, Reasoning, Text, ToolArguments, ToolEnd, ToolStart


def call_id() -> str:
    """A new id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


class Out:
    """Collects events.

    Whitespace at the end of text waits: it is shown when more text follows, and at the end of a message without
    calls. Whitespace between thoughts and text, and before and after thoughts, is dropped, as templates add their own.
    """

    def __init__(self, new_id: Callable[[], str] = call_id) -> None:
        self.calls = 0
        self._new_id = new_id
        self._events: list[Event] = []
        self._kind: type[Text] | type[Reasoning] | type[ToolArguments] | None = None
        self._run: list[str] = []
        self._space: list[str] = []  # at the end of the text so far
        self._thought_space: list[str] = []
        self._spoken = False  # some text has been shown
        self._thought = False  # thoughts have been shown and not ended
        self._after_thoughts = False

    def text(self, text: str) -> None:
        """Text for the user."""
        body = text.rstrip()
        if body:
            if not self._spoken and (self._after_thoughts or self.calls):
                body = body.lstrip()
                self._space.clear()
            self._add(Text, "".join(self._space) + body)
            self._space.clear()
            self._spoken = True
            text = text[len(text.rstrip()) :]
        if text:
            self._space.append(text)

    def reasoning(self, text: str) -> None:
        """Thoughts."""
        body = text.rstrip()
        if body:
            if not self._thought:
                self._thought = True
                body = body.lstrip()
                self._thought_space.clear()
            self._add(Reasoning, "".join(self._thought_space) + body)
            self._thought_space.clear()
            text = text[len(text.rstrip()) :]
        if text and self._thought:
            self._thought_space.append(text)

    def end_thoughts(self) -> None:
        """The thoughts are over."""
        self._thought_space.clear()
        self._thought = False
        self._after_thoughts = True
        if not self._spoken:
            self._space.clear()

    def start(self, name: str, given_id: str = "") -> None:
        """A call begins; `given_id` is the model's own name for it."""
        self._flush()
        self._events.append(ToolStart(self.calls, given_id or self._new_id(), name))

    def arguments(self, delta: str) -> None:
        """More of its arguments."""
        if delta:
            self._add(ToolArguments, delta)

    def end(self) -> None:
        """The call is over."""
        self._flush()
        self._events.append(ToolEnd(self.calls))
        self.calls += 1

    def finish(self) -> None:
        """The message is over: shows whitespace that still waits."""
        if self._space and not self.calls and not (self._after_thoughts and not self._spoken):
            self._add(Text, "".join(self._space))
        self._space.clear()

    def drain(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _add(self, kind: type[Text] | type[Reasoning] | type[ToolArguments], text: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._run.append(text)

    def _flush(self) -> None:
        if self._run:
            text = "".join(self._run)
            if self._kind is ToolArguments:
                self._events.append(ToolArguments(self.calls, text))
            else:
                self._events.append(Reasoning(text) if self._kind is Reasoning else Text(text))
            self._run = []
        self._kind = None
