"""``functools[{"name": ..., "arguments": {...}}]`` and ``<|tool_call|>[...]<|/tool_call|>``: Phi-4-mini."""

from collections.abc import Collection

from octavo.text.parse.base import Choice, ToolSchemas
from octavo.text.parse.lark import Terms
from octavo.text.parse.marked import ListDialect


class Phi4Mini(ListDialect):
    """The word ``functools`` as vLLM's template has it, or the model's own marks."""

    openings = ("functools", "<|tool_call|>")
    closings = ("<|/tool_call|>",)
    marks: tuple[str, ...] = ("<|tool_call|>", "<|/tool_call|>")
    triggers: tuple[str, ...] = ("functools", "<|tool_call|>")

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its closing mark, or the word."""
        return 40 if "<|/tool_call|>" in specials or "functools[" in template or "<|/tool|>" in template else 0

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """The form that the vocabulary has marks for."""
        if terms.is_token("<|tool_call|>"):
            return self.rules(tools, choice, terms.mark("<|tool_call|>"), f"({terms.mark('<|/tool_call|>')})?")
        return self.rules(tools, choice, '"functools"')
