"""What parsers give: events. What a dialect is: a name, how to recognise it, how to read it, how to enforce it.

A stream of events is the same however the text was cut, once neighbours of one kind are joined. Between a
`ToolStart` and its `ToolEnd` come only that call's `ToolArguments`; joined they are the call's arguments as JSON
text, unless the model broke off or broke the format inside them.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader that yields whenever it needs more text, and returns T."""


class Text(Struct, frozen=True):
    """Text for the user."""

    text: str


class Reasoning(Struct, frozen=True):
    """What the model thinks."""

    text: str


class ToolStart(Struct, frozen=True):
    """A call begins. `index` counts the calls of one message from 0; `id` names it for the tool's answer."""

    index: int
    id: str
    name: str


class ToolArguments(Struct, frozen=True):
    """More of the call's arguments, as JSON text."""

    index: int
    delta: str


class ToolEnd(Struct, frozen=True):
    """The call is over."""

    index: int


Event = Text | Reasoning | ToolStart | ToolArguments | ToolEnd


class StreamParser(Protocol):
    """Reads one message. Linear in the length of the text, and never raises, whatever the text."""

    @property
    def thinking(self) -> bool:
        """Whether what was fed last belongs to the model's thoughts."""
        ...

    def feed(self, text: str) -> list[Event]:
        """What this text adds; the last of it may wait for what follows."""
        ...

    def finish(self) -> list[Event]:
        """The rest, at the end of the text. A call that has not begun by now comes out as text."""
        ...


class ToolSchemas:
    """The tools of one request: names, and the JSON schemas of their parameters."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools` as OpenAI has them; they have been checked."""
        functions = [tool["function"] for tool in tools]
        self.parameters: dict[str, dict[str, Any]] = {each["name"]: each.get("parameters") or {} for each in functions}
        self.strict = {each["name"] for each in functions if each.get("strict")}

    def __contains__(self, name: str) -> bool:
        return name in self.parameters

    def property(self, tool: str, name: str) -> Any:
        """The schema of one parameter; None if the tool or the parameter is unknown."""
        properties = self.parameters.get(tool, {}).get("properties")
        return properties.get(name) if isinstance(properties, dict) else None

    def root(self, tool: str) -> dict[str, Any]:
        """The schema that ``#`` in references means."""
        return self.parameters.get(tool, {})


class Choice(Struct, frozen=True):
    """What the request asks of calls. `mode` auto: the model decides; required: one call at least, of `names`.

    `strict`: with auto, a call once begun must fit its schema.
    """

    mode: Literal["auto", "required"]
    names: tuple[str, ...]
    parallel: bool = True
    strict: bool = False


class Dialect(Protocol):
    """One way in which models write calls."""

    marks: tuple[str, ...]
    """Strings of the format; those that are special tokens must be shown to the parser."""
    triggers: tuple[str, ...]
    """Texts that begin calls: behind one of them `tail` of the grammar holds. None: bare text can begin a call."""

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """How surely a model with this chat template and these special tokens speaks the dialect; 0: not at all."""
        ...

    def read(self, source: Any, out: Any, tools: ToolSchemas) -> Steps[None]:
        """Reads to the end of the text."""
        ...

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Any) -> str:
        """Lark rules: `message`, all messages that do as `choice` says, and `tail`, what follows a trigger.

        `terms` (lark.py) writes marks as terminals: tokens where the vocabulary has them, else characters.
        """
        ...
