"""From Anthropic's conversation to a chat body. Every refusal names the field as the caller wrote it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.base.errors import UserError, bad_value
from octavo.serve.anthropic.schema import Block, Conversation, InputMessage, MessagesRequest, MessagesTool

BUDGET = "thinking_token_budget"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(body: MessagesRequest) -> dict[str, Any]:
    """The chat request that means the same."""
    found = conversation(body)
    found["max_completion_tokens"] = body.max_tokens
    found["stop"] = body.stop_sequences or None
    for name in ("temperature", "top_p", "top_k"):
        found[name] = getattr(body, name)
    choice = body.tool_choice
    if choice is not None and choice.type in ("any", "tool") and not body.tools:
        raise bad_value("tool_choice", "needs tools")
    if choice is not None and body.tools:
        found["tool_choice"] = _CHOICES.get(choice.type) or _named(choice.name)
        if choice.disable_parallel_tool_use is not None:
            found["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if body.thinking is not None and body.thinking.budget_tokens:
        found[BUDGET] = body.thinking.budget_tokens
    if body.output_config is not None and body.output_config.format is not None:
        found["response_format"] = _response_format(body.output_config.format, "output_config.format")
    elif body.output_format is not None:
        found["response_format"] = _response_format(body.output_format, "output_format")
    return found


def conversation(body: Conversation) -> dict[str, Any]:
    """Messages, tools and what the template is told."""
    found: dict[str, Any] = {"model": body.model, "messages": _messages(body)}
    if body.tools:
        found["tools"] = [_tool(tool, index) for index, tool in enumerate(body.tools)]
    thinking = body.thinking.type if body.thinking else "disabled"
    if thinking != "adaptive":
        # Anthropic's models think only when asked to, and clients read the first block as the answer.
        found["chat_template_kwargs"] = {"enable_thinking": thinking == "enabled"}
    if body.output_config and body.output_config.effort:
        found["reasoning_effort"] = body.output_config.effort
    return found


def _messages(body: Conversation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if body.system:
        found.append({"role": "system", "content": _text(body.system, "system")})
    for index, message in enumerate(body.messages):
        path = f"messages[{index}].content"
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(_assistant(message.content, path))
        else:
            found += _user(message, message.content, path)
    return found


def _user(message: InputMessage, blocks: Sequence[Block], path: str) -> list[dict[str, Any]]:
    """Tool results are messages of their own; text between them stays where it is."""
    found: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        if block.type == "tool_result":
            if not block.tool_use_id:
                raise bad_value(where, "needs a tool_use_id")
            content = _text(block.content or "", f"{where}.content")
            if block.is_error:
                content = f"Error: {content}"
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            continue
        part = {"type": "text", "text": _block_text(block, where)}
        if found and found[-1]["role"] == message.role:
            found[-1]["content"].append(part)
        else:
            found.append({"role": message.role, "content": [part]})
    return found or [{"role": message.role, "content": ""}]


def _assistant(blocks: Sequence[Block], path: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        if block.type == "tool_use":
            if not block.name or not block.id:
                raise bad_value(where, "needs an id and a name")
            function = {"name": block.name, "arguments": msgspec.json.encode(block.input or {}).decode()}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_block_text(block, where))
    found: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        found["reasoning"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _text(content: str | Sequence[Block], path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{path}[{index}]") for index, block in enumerate(content))


def _block_text(block: Block, path: str) -> str:
    if block.type == "text":
        if block.text is None:
            raise bad_value(path, "needs a text")
        return block.text
    source = block.source or {}
    if block.type == "document" and source.get("type") == "text" and isinstance(source.get("data"), str):
        return "\n".join(part for part in (block.title, block.context, source["data"]) if part)
    raise UserError(
        f"{path}: content of type {block.type[:40]} is not supported by this model.",
        param=f"{path}.type",
        code="unsupported_value",
    )


def _tool(tool: MessagesTool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise UserError(
            f"tools[{index}].type: only tools of your own can be used on this server.",
            param=f"tools[{index}].type",
            code="unsupported_value",
        )
    if tool.input_schema is None:
        raise bad_value(f"tools[{index}].input_schema", "is missing")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _named(name: str | None) -> dict[str, Any]:
    if not name:
        raise bad_value("tool_choice.name", "is missing")
    return {"type": "function", "function": {"name": name}}


def _response_format(form: dict[str, Any], path: str) -> dict[str, Any]:
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise bad_value(path, "must be of type json_schema, with a schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}
