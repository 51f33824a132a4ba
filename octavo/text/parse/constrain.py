"""Constraints made of a dialect's rules: where they begin, and how thoughts go before them."""

import re
from collections.abc import Callable

from octavo.base.errors import UserError
from octavo.grammar.spec import GrammarSpec
from octavo.text.parse.base import Choice, Dialect, ToolSchemas
from octavo.text.parse.reasoning.tags import Tags

Mark = Callable[[str], str]


def calls_grammar(
    dialect: Dialect,
    tools: ToolSchemas,
    choice: Choice,
    thoughts: Tags | None,
    opened: bool,
    budget: int | None,
    mark: Mark,
) -> GrammarSpec:
    """Calls as `choice` demands. `opened`: the prompt ends inside thoughts. Raises UserError."""
    rules = dialect.grammar(tools, choice, mark)
    if choice.mode == "auto":
        if budget is not None:
            raise UserError(
                "thinking_token_budget does not go with strict tools unless tool_choice demands a call.",
                param="thinking_token_budget",
                code="unsupported_value",
            )
        if dialect.triggers:
            return _spec(f"start: tail\n{rules}", dialect.triggers)
    if thoughts is None:
        return _spec(f"start: message\n{rules}")
    if opened and budget is None:
        return _spec(f"start: /\\n{{0,2}}/ message\n{rules}", (thoughts.closings[0],))
    return _spec(_thinking("/\\n{0,2}/ message", "message", thoughts, opened, budget, mark) + rules)


def budget_grammar(thoughts: Tags, opened: bool, budget: int, mark: Mark) -> GrammarSpec:
    """At most `budget` tokens of thoughts, then anything."""
    free = "/(.|\\n)*/"
    silent = f'/[^{re.escape(thoughts.openings[0][0])}](.|\\n)*/ | ""'
    return _spec(_thinking(free, silent, thoughts, opened, budget, mark))


def _thinking(after: str, silent: str, thoughts: Tags, opened: bool, budget: int | None, mark: Mark) -> str:
    """Rules for thoughts with their closing mark, then `after`; or, unless they are opened, `silent` alone."""
    end = thoughts.closings[0]
    bound = f"[max_tokens={budget}]" if budget is not None else ""
    body = f"thought{bound}: THOUGHT\nTHOUGHT: /(.|\\n)*/ & ~/(.|\\n)*{_pattern(end)}(.|\\n)*/\n"
    thinking = f"thought {mark(end)} {after}"
    if opened:
        return f"start: {thinking}\n{body}"
    return f"start: {mark(thoughts.openings[0])} {thinking} | silent\nsilent: {silent}\n{body}"


def _pattern(text: str) -> str:
    """`text` in a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/").replace("\\ ", " ")


def _spec(source: str, after: tuple[str, ...] = ()) -> GrammarSpec:
    return GrammarSpec("grammar", source, after=after)
