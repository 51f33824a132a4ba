"""Constraints made of a dialect's rules: where they begin, and how thoughts go before them."""

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.grammar.spec import GrammarSpec
from octavo.text.parse.base import Choice, Dialect, ToolSchemas
from octavo.text.parse.lark import Terms, json_rule, plain_text, quoted, text_then
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
    rules = dialect.grammar(tools, choice, terms.within(budget))
    if choice.mode == "auto" and dialect.triggers:
        if budget is None:
            return _spec(f"start: tail\n{rules}", dialect.triggers, optional=True)
        if isinstance(dialect, Channels):
            return _spec(f"start: message | thoughts spoken\n{rules}{dialect.spoken_rules(terms, calls=False)}")
        rules += _said_or_calls(dialect.triggers, thoughts, terms)
        if thoughts is not None:
            return _spec(_thinking("said", "said", thoughts, opened, budget, terms) + rules)
    if thoughts is None:
        return _spec(f"start: message\n{rules}")
    if opened and budget is None:
        return _spec(f"start: /\\n{{0,2}}/ message\n{rules}", (thoughts.closings[0],))
    return _spec(_thinking("/\\n{0,2}/ message", "message", thoughts, opened, budget, terms) + rules)


def _said_or_calls(triggers: Sequence[str], thoughts: Tags | None, terms: Terms) -> str:
    """The rule `said`: text in which each trigger must go on as a call."""
    others = () if thoughts is None else thoughts.openings
    rules, ways = [], []
    for number, trigger in enumerate(triggers):
        own = f"before{number}"
        rules += text_then(own, terms, trigger, *(mark for mark in triggers if mark != trigger), *others)
        ways.append(f"{own} tail")
    none = plain_text(*triggers, *others)
    return "\n".join([f"said: {' | '.join([*ways, 'ONLY'])}", f"ONLY: {none}", *rules, ""])


def channel_budget(dialect: "Channels", budget: int, terms: Terms) -> GrammarSpec:
    """`budget_grammar` for a dialect whose messages stand in channels."""
    bounded = terms.within(budget)
    rules = f"{dialect.thought_rules(bounded)}{dialect.spoken_rules(bounded, calls=True)}"
    return _spec(f"start: thoughts spoken\n{rules}", param="thinking_token_budget")


def budget_grammar(thoughts: Tags, opened: bool, budget: int, terms: Terms) -> GrammarSpec:
    """At most `budget` tokens of thoughts, then anything. Raises UserError."""
    free = "/(.|\\n)*/"
    silent = f'/[^{re.escape(thoughts.openings[0][0])}](.|\\n)*/ | ""'
    source = _thinking(free, silent, thoughts, opened, budget, terms)
    return _spec(source, param="thinking_token_budget")


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


def answer_or_calls(
    dialect: Dialect,
    tools: ToolSchemas,
    choice: Choice,
    answer: GrammarSpec,
    thoughts: Tags | None,
    opened: bool,
    budget: int | None,
    terms: Terms,
) -> GrammarSpec:
    """Calls, or an answer as `answer`, in JSON or one of some texts, demands. Raises UserError for another kind."""
    terms = terms.within(budget)
    rules = dialect.grammar(tools, Choice("required", choice.names, choice.parallel, choice.strict), terms)
    before = dialect.before_answer(terms) if isinstance(dialect, Channels) else ""
    what = f"set tool_choice to none, or {answer.param} to JSON"
    rules += f"answer: {before} answer_form\nanswer_form: {_form_of(answer, what)}\nsaid: message | answer\n"
    if thoughts is None:
        return _spec(f"start: said\n{rules}", param=answer.param)
    if opened and budget is None:
        return _spec(f"start: /\\n{{0,2}}/ said\n{rules}", (thoughts.closings[0],), param=answer.param)
    return _spec(_thinking("/\\n{0,2}/ said", "said", thoughts, opened, budget, terms) + rules, param=answer.param)


def answer_behind(thoughts: Tags, opened: bool, budget: int, answer: GrammarSpec, terms: Terms) -> GrammarSpec:
    """At most `budget` tokens of thoughts, then `answer`. Raises UserError for one neither in JSON nor a choice."""
    what = f"leave out thinking_token_budget, or set {answer.param} to JSON"
    source = _thinking("/\\n{0,2}/ answer", "answer", thoughts, opened, budget, terms)
    spec = _spec(f"{source}answer: {_form_of(answer, what)}\n", param=answer.param)
    # As for the answer alone: what does not fit into the tokens that are left is said beforehand.
    return replace(spec, finish_within_budget=answer.finish_within_budget, insist=answer.insist)


def answer_in_channel(dialect: "Channels", answer: GrammarSpec, terms: Terms) -> GrammarSpec:
    """An answer in the form of a dialect that marks answers. Raises UserError for one that is neither JSON nor one of
    some texts."""
    rule = _form_of(answer, f"set {answer.param} to JSON")
    source = f"start: {dialect.before_answer(terms)} answer\nanswer: {rule}\n{dialect.thought_rules(terms)}"
    return _spec(source, param=answer.param)


@runtime_checkable
class Channels(Protocol):
    """A dialect whose answers stand behind marks too."""

    def thought_rules(self, terms: Terms) -> str:
        """Rules that `before_answer` needs."""
        ...

    def before_answer(self, terms: Terms) -> str:
        """What stands before an answer."""
        ...

    def spoken_rules(self, terms: Terms, *, calls: bool) -> str:
        """The rule `spoken`: what may follow thoughts."""
        ...


def _form_of(answer: GrammarSpec, what: str) -> str:
    if answer.kind == "json_object":
        return json_rule({"type": "object"})
    if answer.kind == "json_schema":
        return json_rule(msgspec.json.decode(answer.source))
    if answer.kind == "choice":
        return " | ".join(map(quoted, msgspec.json.decode(answer.source)))
    raise UserError(
        f"{answer.param} of this kind cannot be enforced here; {what}.", param=answer.param, code="invalid_value"
    )


def _spec(source: str, after: tuple[str, ...] = (), param: str = "tools", *, optional: bool = False) -> GrammarSpec:
    """An output that runs out of tokens is led to a short end where one is known; `optional`: `after` may not come."""
    return GrammarSpec(
        "grammar",
        f"%llguidance {{}}\n{source}",
        after=after,
        finish_within_budget=not optional,
        param=param,
        optional=optional,
        insist=False,
    )
