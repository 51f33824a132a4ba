"""The `prompt` field of completions: text, token ids, or a list of either."""

from collections.abc import Sequence
from typing import Any, cast

from octavo.base.errors import UserError
from octavo.text.ids import are_numbers

Prompt = str | list[int]


def split_prompts(prompt: str | Sequence[Any]) -> list[Prompt]:
    """The prompts of a body: text, token ids, or a list of either. UserError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise UserError("prompt must not be empty.", param="prompt")
    if _is_int(prompt[0]):
        return [_token_ids(prompt, "prompt")]
    if isinstance(prompt[0], str):
        for index, entry in enumerate(prompt):
            if not isinstance(entry, str):
                raise UserError(f"prompt[{index}] must be a string like those before it.", param=f"prompt[{index}]")
        return list(prompt)
    return [_token_ids(entry, f"prompt[{index}]") for index, entry in enumerate(prompt)]


def _token_ids(entry: Any, path: str) -> list[int]:
    if not are_numbers(entry):
        raise UserError(f"{path} must be a string or a list of token ids.", param=path)
    if not entry:
        raise UserError(f"{path} must not be empty.", param=path)
    return cast(list[int], entry)


def _is_int(value: Any) -> bool:
    return type(value) is int  # a bool is an int to isinstance
