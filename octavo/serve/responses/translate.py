"""From a Responses body to a chat body."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError, bad_value
from octavo.serve.responses.items import messages_of, unsupported
from octavo.serve.responses.schema import InputItem, ResponsesRequest, ResponsesTool

LOGPROBS = "message.output_text.logprobs"
# Of the hosted tools, which are refused where they are asked for; thoughts are given in plain text.
_INCLUDES = ("file_search_call.", "web_search_call.", "computer_call_output.", "code_interpreter_call.", "message.")


def check(body: ResponsesRequest) -> None:
    """Refuses what cannot be done, by name."""
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise UserError(f"{name} is not supported by this server.", param=name, code="unsupported_parameter")
    for index, name in enumerate(body.include or ()):
        if name != "reasoning.encrypted_content" and not name.startswith(_INCLUDES):
            raise bad_value(f"include[{index}]", "is not known")


def chat_body(body: ResponsesRequest, items: Sequence[InputItem]) -> dict[str, Any]:
    """The chat request that means the same. `items`: the whole conversation, earlier responses included."""
    messages = messages_of(items, len(items) - len(input_items(body)))
    if not messages:
        raise bad_value("input", "holds nothing to answer")
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    found: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
    }
    if wants_logprobs(body):
        found["logprobs"], found["top_logprobs"] = True, body.top_logprobs or 0
    if body.reasoning and body.reasoning.effort:
        found["reasoning_effort"] = body.reasoning.effort
    if body.text and body.text.verbosity:
        found["verbosity"] = body.text.verbosity
    if body.text and body.text.format is not None:
        found["response_format"] = _response_format(body.text.format)
    _add_tools(found, body)
    return {name: value for name, value in found.items() if value is not None}


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Whether log-probabilities go with the text."""
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def input_items(body: ResponsesRequest) -> list[InputItem]:
    """The request's own input."""
    if isinstance(body.input, str):
        return [InputItem(role="user", content=body.input)]
    return body.input


def _add_tools(found: dict[str, Any], body: ResponsesRequest) -> None:
    tools = [_tool(tool, index) for index, tool in enumerate(body.tools or ())]
    choice = body.tool_choice
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise bad_value("tool_choice", "must be auto, none, required or an object")
    if isinstance(choice, dict):
        choice, tools = _choice(choice, tools)
    if tools:
        found["tools"] = tools
        found["tool_choice"] = choice
    elif choice == "required" or isinstance(choice, dict):
        raise bad_value("tool_choice", "needs tools")


def _choice(choice: dict[str, Any], tools: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
    """Chat's tool_choice, and the tools that are left to choose from."""
    kind, name = choice.get("type"), choice.get("name")
    if kind == "function" and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}, tools
    allowed = choice.get("tools")
    if kind == "allowed_tools" and choice.get("mode") in ("auto", "required") and isinstance(allowed, list):
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in allowed]
        known = [tool["function"]["name"] for tool in tools]
        for index, each in enumerate(names):
            if each not in known:
                raise bad_value(f"tool_choice.tools[{index}].name", "is not the name of one of the tools")
        if not names:
            raise bad_value("tool_choice.tools", "must name tools of this request")
        return choice["mode"], [tool for tool in tools if tool["function"]["name"] in names]
    raise unsupported("tool_choice", "this choice")


def _tool(tool: ResponsesTool, index: int) -> dict[str, Any]:
    if tool.type != "function":
        raise unsupported(f"tools[{index}].type", f"tools of type {tool.type[:40]}")
    if not tool.name:
        raise UserError(f"tools[{index}].name is missing.", param=f"tools[{index}].name")
    given = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


def _response_format(form: dict[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return form
    named = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
    return {"type": "json_schema", "json_schema": named}
