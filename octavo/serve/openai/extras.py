"""Fields that another dialect does not know by itself and hands to chat: samplers, constraints, template arguments.

Chat decides about each as if it had come there: taken, refused by name, or named in X-Octavo-Ignored.
"""

from collections.abc import Mapping

import msgspec

from octavo.base.errors import UserError

# Chat's own fields that the dialects say in their own way.
_TAKEN = frozenset(
    {"messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "logprobs", "prompt"}
)


def passed_on(unknown: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """What goes to chat under its own name. UserError for what would break the form of the answer."""
    choices = unknown.get("n")
    if choices is not None and bytes(choices) not in (b"1", b"null"):
        raise UserError("n: this endpoint gives one answer.", param="n", code="unsupported_value")
    return {name: raw for name, raw in unknown.items() if name not in _TAKEN and name != "n"}
