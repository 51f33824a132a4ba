"""``<|tool_call|>[{"name": ..., "arguments": {...}}, ...]``: Granite 3.0 to 3.3."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, ToolSchemas
from octavo.text.parse.lark import Terms
from octavo.text.parse.marked import ListDialect


class Granite(ListDialect):
    """Granite 3.0 to 3.3."""

    openings = ("<|tool_call|>", "<tool_call>")
    closings = ("</tool_call>",)
    single = True
    marks: tuple[str, ...] = ("<|tool_call|>", "<tool_call>", "</tool_call>")
    triggers: tuple[str, ...] = ("<|tool_call|>",)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """Its roles and its mark."""
        return 30 if "<|start_of_role|>" in template and "<|tool_call|>" in template else 0

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """A list behind the mark."""
        return self.rules(tools, choice, terms.mark("<|tool_call|>"))
