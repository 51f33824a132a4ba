"""Constraints made of a dialect's rules: where they begin, and how thoughts go before them."""

import re

from octavo.base.errors import UserError
from octavo.grammar.spec import GrammarSpec
from octavo.text.parse.base import Choice, Dialect, ToolSchemas
from octavo.text.parse.lark import Terms, text_then
from octavo.text.parse.reasoning.tags import Tags


def calls_grammar(
    dialect: Dialect,
    tools: ToolSchemas,
    choice: Choice,
    thoughts: Tags | None,
    opened: bool,
    budget: int | None,
    terms: Terms,
) -> GrammarSpec:
    """Calls as `choice` demands. `opened`: the prompt ends inside thoughts. Raises UserError."""
    rules = dialect.grammar(tools, choice, terms)
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
    return _spec(_thinking("/\\n{0,2}/ message", "message", thoughts, opened, budget, terms) + rules)


def budget_grammar(thoughts: Tags, opened: bool, budget: int, terms: Terms) -> GrammarSpec:
    """At most `budget` tokens of thoughts, then anything. Raises UserError."""
    free = "/(.|\\n)*/"
    silent = f'/[^{re.escape(thoughts.openings[0][0])}](.|\\n)*/ | ""'
    return _spec(_thinking(free, silent, thoughts, opened, budget, terms))


def _thinking(after: str, silent: str, thoughts: Tags, opened: bool, budget: int | None, terms: Terms) -> str:
    """Rules for thoughts with their closing mark, then `after`; or, unless they are opened, `silent` alone.

    A bound counts tokens, so that it needs a closing mark that is one. (Rules with max_tokens would do without,
    but cannot be taken back.)
    """
    end = thoughts.closings[0]
    if budget is None:
        body = "\n".join(text_then("thought", terms, end)) + "\n"
    elif terms.is_token(end):
        body = f"thought: {terms.tokens_before(end, budget)} {terms.mark(end)}\n"
    else:
        raise UserError(
            "this model's thoughts have no closing token that could be enforced.",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )
    thinking = f"thought {after}"
    if opened:
        return f"start: {thinking}\n{body}"
    return f"start: {terms.mark(thoughts.openings[0])} {thinking} | silent\nsilent: {silent}\n{body}"


def _spec(source: str, after: tuple[str, ...] = ()) -> GrammarSpec:
    return GrammarSpec("grammar", f"%llguidance {{}}\n{source}", after=after)
