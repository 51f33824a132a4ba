"""Grammars of calls, in the Lark dialect of llguidance: marks, names, and ``%json`` for arguments.

The rules of a dialect: `message`, all of it, and `tail`, what stands behind the first mark.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from octavo.text.parse.base import Choice, ToolSchemas

CallRule = Callable[[str, str], str]
"""From a tool's name and the rule that stands for its arguments to the call's right-hand side."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NOTES = frozenset({"title", "description", "examples", "default", "$comment", "deprecated", "readOnly", "writeOnly"})
_BARE_SLASH = re.compile(r"(?<!\\)/")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Frame(Struct, frozen=True):
    """What stands round calls, each a right-hand side: ``first lead call close (again call close)* after``."""

    first: str = ""
    lead: str = ""
    close: str = ""
    again: str = ""
    after: str = ""


class Terms:
    """Marks as terminals. `ids`: the vocabulary's added tokens by text; `ends`: tokens that end a sequence.

    `budget`: most tokens of thoughts, for dialects whose own rules hold the thoughts.
    """

    def __init__(self, ids: Mapping[str, int], ends: Sequence[int] = (), budget: int | None = None) -> None:
        self._ids = ids
        self._ends = tuple(ends)
        self.budget = budget

    def within(self, budget: int | None) -> "Terms":
        """The same with a budget."""
        return Terms(self._ids, self._ends, budget)

    def is_token(self, text: str) -> bool:
        """Whether the vocabulary has a token of its own for a mark."""
        return text in self._ids

    def mark(self, text: str) -> str:
        """A mark: its token where it has one, else its characters."""
        return f"<[{self._ids[text]}]>" if text in self._ids else quoted(text)

    def anything(self) -> str:
        """Any tokens but the end."""
        return f"(<[^{','.join(map(str, self._ends))}]>)*" if self._ends else "/(.|\\n)*/"

    def tokens_before(self, text: str, most: int) -> str:
        """At most so many tokens that are neither the mark, which has a token, nor the end."""
        excluded = ",".join(map(str, sorted({self._ids[text], *self._ends})))
        return f"(<[^{excluded}]>){{0,{most}}}"


def text_then(
    own: str, terms: Terms, end: str, *others: str, before: str = "", after: str = "", schema: Any = None
) -> list[str]:
    """Rules for a rule `own`: any text that holds neither the mark `end` nor `others`, then ``before end after``.

    `schema`: the bounds of a string that the text must keep. A lexer takes the longest match, so where the mark is
    plain characters it has to be part of the same terminal.
    """
    marks = "|".join(_pattern(mark) for mark in (end, *others))
    body = f"{own.upper()}_T: {_bounded(schema)} & ~/(.|\\n)*({marks})(.|\\n)*/"
    if terms.is_token(end) and not before:
        tail = f" {quoted(after)}" if after else ""
        return [f"{own}: {own.upper()}_T {terms.mark(end)}{tail}", body]
    return [f"{own}: {own.upper()}", f"{own.upper()}: {own.upper()}_T {quoted(before + end + after)}", body]


def plain_text(*marks: str) -> str:
    """A terminal's body: any text that holds none of the marks."""
    return f"/(.|\\n)*/ & ~/(.|\\n)*({'|'.join(map(_pattern, marks))})(.|\\n)*/"


def _bounded(schema: Any) -> str:
    """Terminals for any text within the length and the pattern that a schema of a string asks for."""
    bounds = schema if isinstance(schema, dict) else {}
    least, most, pattern = bounds.get("minLength", 0), bounds.get("maxLength"), bounds.get("pattern")
    length = f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"
    found = f"/(.|\\n){length}/"
    if isinstance(pattern, str):
        left = pattern[1:] if pattern.startswith("^") else f"(.|\\n)*({pattern}"
        if pattern.startswith("^"):
            left = f"({left}"
        ends = left.endswith("$") and not left.endswith("\\$")
        body = left[:-1] + ")" if ends else left + ")(.|\\n)*"
        body = _BARE_SLASH.sub(r"\\/", body).replace("\n", "\\n")
        found += f" & /{body}/"
    return found


def _pattern(text: str) -> str:
    """`text` in a regular expression between slashes."""
    return re.sub(r"[^A-Za-z0-9_ <>=\u0080-\uffff]", lambda found: "\\" + found[0], text)


def quoted(text: str) -> str:
    """A string of Lark's."""
    return json.dumps(text, ensure_ascii=False)


def schema_of(tools: ToolSchemas, name: str) -> dict[str, Any]:
    """The parameters' schema, always that of an object."""
    schema = dict(tools.parameters[name])
    schema.setdefault("type", "object")
    return schema


def json_rule(schema: Any) -> str:
    """A right-hand side for JSON of this schema, spaced as `json.dumps` does it."""
    bare = _without_notes(schema)
    if isinstance(bare, dict):
        bare = {**bare, "x-guidance": _COMPACT}
    return "%json " + json.dumps(bare, ensure_ascii=False)


def _without_notes(schema: Any) -> Any:
    """A schema without what constrains nothing: grammars have a size limit, and descriptions are most of a tool."""
    if isinstance(schema, list):
        return [_without_notes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NOTES:
            continue
        if key in _MAPS and isinstance(value, dict):
            found[key] = {name: _without_notes(inner) for name, inner in value.items()}
        else:
            found[key] = value if key in ("enum", "const", "required") else _without_notes(value)
    return found


def frame_calls(
    tools: ToolSchemas,
    choice: Choice,
    frame: Frame,
    call: CallRule,
    arguments: Callable[[ToolSchemas, str, str], str] | None = None,
) -> str:
    """The rules. `arguments` gives the rules of a tool's arguments under the name it is passed; JSON if not given."""
    rules = []
    for number, name in enumerate(choice.names):
        own = f"args{number}"
        rules.append(f"call{number}: {call(name, own)}")
        rules.append(arguments(tools, name, own) if arguments else f"{own}: {json_rule(schema_of(tools, name))}")
    one = " | ".join(f"call{number}" for number in range(len(choice.names)))
    more = f"({frame.again} one {frame.close})*" if choice.parallel else ""
    head = [
        f"message: {frame.first} tail",
        f"tail: {frame.lead} one {frame.close} {more} {frame.after}",
        f"one: {one}",
    ]
    return "\n".join([*head, *rules, ""])


def json_calls(tools: ToolSchemas, choice: Choice, frame: Frame, arguments: str = "arguments") -> str:
    """Calls as objects with a name and, under `arguments`, their arguments."""

    def call(name: str, rule: str) -> str:
        head = '{"name": ' + json.dumps(name) + f', "{arguments}": '
        return f'{quoted(head)} {rule} "}}"'

    return frame_calls(tools, choice, frame, call)


def properties(tools: ToolSchemas, name: str) -> list[tuple[str, Any, bool]]:
    """A tool's parameters in order: name, schema (with what it refers to), whether it must be there."""
    schema = tools.parameters[name]
    found = schema.get("properties")
    required = schema.get("required") or []
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [
        (key, {**shared, **inner} if isinstance(inner, dict) else inner, key in required)
        for key, inner in (found if isinstance(found, dict) else {}).items()
    ]


def in_order(
    own: str, entries: Sequence[tuple[str, Any, bool]], separator: str, rules_of: Callable[[str, str, Any], list[str]]
) -> list[str]:
    """Rules named after `own`: the `entries` of `properties` in order, optional ones left out or not.

    `rules_of` gives the rules of one of them: its own name, the property's name and schema.
    """
    rules = [f"{own}: {own}_f0"]
    for number, (key, schema, required) in enumerate(entries):
        item = f"{own}_p{number}"
        skip, skip_rest = (f" | {own}_f{number + 1}", f" | {own}_r{number + 1}") if not required else ("", "")
        rules.append(f"{own}_f{number}: {item} {own}_r{number + 1}{skip}")
        rules.append(f"{own}_r{number}: {separator} {item} {own}_r{number + 1}{skip_rest}")
        rules += rules_of(item, key, schema)
    last = len(entries)
    return [*rules, f'{own}_f{last}: ""', f'{own}_r{last}: ""']


def accepts_text(schema: Any) -> bool:
    """Whether a parameter is a string and nothing else, without a list of values."""
    return (
        isinstance(schema, dict) and schema.get("type") == "string" and "enum" not in schema and "const" not in schema
    )


def choices_of(schema: Any) -> list[str] | None:
    """The strings that a parameter is confined to, if it is confined to strings."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and values and all(isinstance(value, str) for value in values) else None
