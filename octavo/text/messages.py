"""Chat messages as callers send them, checked and brought into the form that a template expects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import nodes

from octavo.base.errors import UserError, missing

MAX_MESSAGES = 16_384
MAX_PARTS = 1024
MAX_ARGUMENTS = 65_536  # values in the text of all calls' arguments, which unfolds to many times its size
_FEW = 64
ContentFormat = Literal["string", "parts"]
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


class TemplateTraits:
    """How a template treats messages, read from its syntax tree.

    `content`: whether it walks over a message's content as a list of parts or takes it as one string.
    `takes_strings`: whether a walking template also asks ``content is string``. `json_arguments`: whether it prints
    the arguments of calls as they are, so that they must be JSON text and not objects.
    """

    def __init__(self, tree: nodes.Template, source: str) -> None:
        self.content: ContentFormat = "parts" if _walks_content(tree) else "string"
        self.takes_strings = self.content == "string" or any(
            test.name == "string" and _is_content(test.node, _aliases(tree)) for test in tree.find_all(nodes.Test)
        )
        self.knows_developer = "developer" in source
        self.json_arguments = _prints_arguments(tree)


def normalize(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Messages for the template: content as it wants it, tool arguments as objects. Raises UserError."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UserError("messages must be a list", param="messages")
    if not messages:
        raise UserError("messages must not be empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise UserError(f"messages may hold at most {MAX_MESSAGES} entries, got {len(messages)}", param="messages")
    found, values = [], 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if isinstance(message, Mapping) and message.get("tool_calls"):
            values += _values(message["tool_calls"])
            if values > MAX_ARGUMENTS:
                raise UserError(
                    f"the arguments of tool calls may hold at most {MAX_ARGUMENTS} values", param=f"{where}.tool_calls"
                )
        found.append(_message(message, where, traits))
    return found


def _message(message: Mapping[str, Any], where: str, traits: TemplateTraits) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError("a message must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise UserError("a message needs a role", param=f"{where}.role")
    result = {name: value for name, value in message.items() if value is not None}
    if role == "developer" and not traits.knows_developer:
        result["role"] = "system"
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls", traits.json_arguments)
        if not result["tool_calls"]:
            del result["tool_calls"]
    content = message.get("content")
    if content is None and "tool_calls" not in result:
        if role != "assistant":
            raise missing(f"{where}.content")
        content = result.get("refusal", "")  # templates take null for granted only beside calls
    result["content"] = _content(content, f"{where}.content", traits)
    return result


def _content(content: Any, where: str, traits: TemplateTraits) -> Any:
    """A string, None, or a list of ``{type: text, text}``."""
    if content is None:
        return None if traits.takes_strings else []
    if isinstance(content, str):
        return content if traits.takes_strings else [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise UserError("content must be a string or a list of parts", param=where)
    if len(content) > MAX_PARTS:
        raise UserError(f"content may hold at most {MAX_PARTS} parts, got {len(content)}", param=where)
    texts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if traits.content == "string":
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise UserError("a part must be an object", param=where)
    kind = part.get("type", "text")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise UserError(f"parts of type {str(kind)[:40]!r} are not served by this model; only text is", param=where)
    text = part.get(field)
    if not isinstance(text, str):
        raise UserError(f"a part of type {kind!r} needs a string {field!r}", param=f"{where}.{field}")
    return text


def _values(calls: Any) -> int:
    """Values in arguments that are JSON text, about: enough to tell a text that unfolds to millions, at the speed of
    string methods. What is not in order is told apart elsewhere."""
    found = 0
    for call in calls if isinstance(calls, Sequence) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        text = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(text, str):
            continue
        marks = sum(map(text.count, ",[{"))
        if marks > _FEW and text.count('"') <= 4 * MAX_ARGUMENTS:  # most may stand within strings
            bare = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
            marks = sum(map(bare.count, ",[{"))
        found += marks
    return found


def _tool_calls(calls: Any, where: str, as_text: bool) -> list[dict[str, Any]]:
    """Tool calls with arguments as objects, which is what most templates print, or as JSON text."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise UserError("tool_calls must be a list", param=where)
    result = []
    for index, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("function", {}), Mapping):
            raise UserError("a tool call must be an object with a function", param=f"{where}[{index}]")
        copy = dict(call)
        if "function" in copy:
            function = dict(copy["function"])
            given = function.get("arguments") or ""  # of a call without any; templates print what is there
            place = f"{where}[{index}].function.arguments"
            function["arguments"] = _arguments(given, place) if isinstance(given, str) else given
            if as_text:
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
            copy["function"] = function
        result.append(copy)
    return result


def _arguments(text: str, where: str) -> Any:
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("tool call arguments must be JSON", param=where) from error


def _walks_content(tree: nodes.Template) -> bool:
    aliases = _aliases(tree)
    return any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _prints_arguments(tree: nodes.Template) -> bool:
    """Whether arguments are printed or joined to text as they are, and nowhere handled as an object."""
    aliases = _aliases(tree, "arguments")

    def found(node: nodes.Node | None) -> bool:
        return _is_field(node, "arguments", aliases)

    as_object = (
        any(found(use.node) for use in tree.find_all(nodes.Filter))
        or any(found(use.node) for use in tree.find_all(nodes.Test) if use.name in ("mapping", "string"))
        or any(found(use.iter) for use in tree.find_all(nodes.For))
        or any(found(use.node) for use in tree.find_all(nodes.Getattr))
        or any(found(use.node) for use in tree.find_all(nodes.Getitem))
    )
    joined = (
        any(found(use.left) or found(use.right) for use in tree.find_all(nodes.Add))
        or any(found(part) for use in tree.find_all(nodes.Concat) for part in use.nodes)
        or any(found(part) for use in tree.find_all(nodes.Call) if _concatenates(use) for part in use.args)
        or any(found(part) for use in tree.find_all(nodes.Output) for part in use.nodes)
    )
    return joined and not as_object


def _concatenates(call: nodes.Call) -> bool:
    """Whether this is what the sandbox makes of ``~``."""
    return isinstance(call.node, nodes.EnvironmentAttribute) and call.node.name == "octavo_concat"


def _aliases(tree: nodes.Template, field: str = "content") -> set[str]:
    """Names that are set from a field of a message, directly or through one another."""
    aliases: set[str] = set()
    assigns = [(assign.target, assign.node) for assign in tree.find_all(nodes.Assign)]
    for _ in range(4):
        before = len(aliases)
        aliases |= {
            target.name
            for target, value in assigns
            if isinstance(target, nodes.Name) and _is_content(value, aliases, field)
        }
        if len(aliases) == before:
            break
    return aliases


def _is_content(node: nodes.Node | None, aliases: set[str], field: str = "content") -> bool:
    """Whether an expression is ``x.content``, ``x['content']``, a name set from one, or a filter over one."""
    while isinstance(node, nodes.Filter):
        node = node.node
    return _is_field(node, field, aliases)


def _is_field(node: nodes.Node | None, field: str, aliases: set[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == field
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == field
    return isinstance(node, nodes.Name) and node.name in aliases
