"""A message as it grows: events gathered into text, thoughts and calls."""

from msgspec import Struct

from octavo.text.parse.base import Event, Reasoning, StreamParser, Text, ToolArguments, ToolEnd, ToolStart


class Call(Struct):
    """A finished call. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


class Speaker:
    """Runs one parser and keeps what it gave. `single`: the message ends with its first call."""

    def __init__(self, parser: StreamParser, *, single: bool = False) -> None:
        self.calls: list[Call] = []
        self.reasoning_tokens = 0
        self.full = False
        self._parser = parser
        self._single = single
        self._reasoning: list[str] = []
        self._arguments: list[str] = []

    @property
    def reasoning(self) -> str:
        """The thoughts so far."""
        return "".join(self._reasoning)

    def feed(self, text: str, tokens: int, final: bool) -> tuple[str, list[Event]]:
        """The text for the user, and all events, of what was generated; `tokens` is how many tokens it took."""
        thought = self._parser.thinking
        events = self._parser.feed(text)
        self.reasoning_tokens += self._thought_tokens(text, tokens, events, thought)
        if final:
            events += self._parser.finish()
        if not events:
            return "", events
        shown: list[str] = []
        for number, event in enumerate(events):
            if isinstance(event, Text):
                shown.append(event.text)
            elif isinstance(event, Reasoning):
                self._reasoning.append(event.text)
            elif isinstance(event, ToolStart):
                self.calls.append(Call(event.id, event.name))
            elif isinstance(event, ToolArguments):
                self._arguments.append(event.delta)
            else:
                assert isinstance(event, ToolEnd)
                self.calls[-1].arguments = "".join(self._arguments)
                self._arguments = []
                if self._single:
                    self.full = True
                    return "".join(shown), events[: number + 1]
        return "".join(shown), events

    def _thought_tokens(self, text: str, tokens: int, events: list[Event], thought: bool) -> int:
        """How many of the tokens were thoughts: all or none, or of several that came at once a share by length."""
        if thought and self._parser.thinking:
            return tokens
        length = sum(len(event.text) for event in events if isinstance(event, Reasoning))
        if tokens == 1 or not text:
            return tokens if thought or self._parser.thinking or length else 0
        return min(tokens, round(tokens * length / len(text)))
