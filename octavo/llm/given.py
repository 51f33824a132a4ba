"""What the offline API is given: prompts, conversations, tools and priorities, looked at before anything runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from octavo.base.errors import UserError
from octavo.text.parse.speech import Wish
from octavo.text.tools import check_tools, choice_of

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A lone string, list of token ids or dictionary is a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not is_list(prompts):
        raise UserError("prompts must be a string, a list of strings, token ids or dictionaries", param="prompts")
    if not prompts:
        return []
    if type(prompts[0]) is int and all(type(item) is int for item in prompts):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def prompt_of(prompt: Prompt) -> str | list[int]:
    """The text or the token ids of one prompt. What is in a list is looked at where ids are checked."""
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown:
            raise UserError(f"a prompt has no {sorted(map(str, unknown))[0][:40]!r}; it has prompt or prompt_token_ids")
        inner = prompt.get("prompt_token_ids")
        inner = prompt.get("prompt") if inner is None else inner
        if inner is None or isinstance(inner, Mapping):
            raise UserError("a prompt needs prompt (a string) or prompt_token_ids (a list of integers)")
        prompt = cast(Prompt, inner)
    if isinstance(prompt, str | list):
        return prompt
    if is_list(prompt) and all(type(token) is int for token in prompt):
        return list(cast(Sequence[int], prompt))
    raise UserError("a prompt is a string or a list of token ids")


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation is a list of one. What is in a message is for the template's side to check."""
    if not is_list(messages) or not messages:
        raise UserError("messages must be a list of messages, or of such lists", param="messages")
    if isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return list(cast(Sequence[Sequence[Message]], messages))


def as_priorities(items: Sequence[Any], given: Sequence[int] | None) -> Sequence[int]:
    if given is None:
        return [0] * len(items)
    if not is_list(given) or not all(type(one) is int for one in given):
        raise UserError("priority must be a list of whole numbers, one a prompt", param="priority")
    if len(given) != len(items):
        raise UserError(f"{len(items)} prompts but {len(given)} priorities", param="priority")
    return given


def is_list(value: object) -> bool:
    """A sequence of things; text and bytes are one thing."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


@contextmanager
def placed(where: str, count: int) -> Iterator[None]:
    """Name the prompt in the errors of one of several."""
    try:
        yield
    except UserError as error:
        if count > 1:
            error.param = where if error.param is None else f"{where}.{error.param}"
            error.message = f"{where}: {error.message}"
            error.args = (error.message,)
        raise


def wish_of(tools: Sequence[Mapping[str, Any]] | None, tool_choice: str | Mapping[str, Any] | None) -> Wish | None:
    """What is asked of calls. Raises UserError."""
    if tools is not None and not (is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
        raise UserError("tools must be a list of dictionaries", param="tools")
    given = [dict(tool) for tool in tools or ()]
    check_tools(given)
    kept, choice = choice_of(given, tool_choice, None)
    return Wish(kept, choice) if choice is not None else None
