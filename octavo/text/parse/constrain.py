"""Constraints made of a dialect's rules: where they begin, and how thoughts go before them."""

from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from octavo.grammar.spec import GrammarSpec, Thoughts
from octavo.text.parse.base import Choice, Dialect, ToolSchemas
from octavo.text.parse.lark import Terms
from octavo.text.parse.reasoning.tags import Tags


def behind(spec: GrammarSpec, thoughts: Tags | None, opened: bool, budget: int | None) -> GrammarSpec:
    """The spec, from behind thoughts of at most `budget` tokens on. `opened`: the prompt ends inside of them."""
    if thoughts is None:
        return spec
    return replace(spec, thoughts=Thoughts(thoughts.closings, "" if opened else thoughts.openings[0], budget))


def calls_grammar(
    dialect: Dialect,
    tools: ToolSchemas,
    choice: Choice,
    thoughts: Tags | None,
    opened: bool,
    budget: int | None,
    terms: Terms,
) -> GrammarSpec:
    """Calls as `choice` demands."""
    terms = terms.within(budget)
    rules = dialect.grammar(tools, choice, terms)
    if choice.mode != "auto" or not dialect.triggers:
        return behind(_spec(f"start: message\n{rules}"), thoughts, opened, budget)
    if budget is not None and isinstance(dialect, Channels):
        return _spec(f"start: message | thoughts spoken\n{rules}{dialect.spoken_rules(terms, calls=False)}")
    spec = replace(_spec(f"start: tail\n{rules}"), after=dialect.triggers, optional=True)
    return spec if budget is None else behind(spec, thoughts, opened, budget)


def budget_grammar(thoughts: Tags, opened: bool, budget: int, terms: Terms) -> GrammarSpec:
    """At most `budget` tokens of thoughts, then anything."""
    spec = _spec(f"start: {terms.anything()}\n", param="thinking_token_budget")
    return behind(spec, thoughts, opened, budget)


def channel_budget(dialect: "Channels", budget: int, terms: Terms) -> GrammarSpec:
    """`budget_grammar` for a dialect whose messages stand in channels."""
    bounded = terms.within(budget)
    rules = f"{dialect.thought_rules(bounded)}{dialect.spoken_rules(bounded, calls=True)}"
    return _spec(f"start: thoughts spoken\n{rules}", param="thinking_token_budget")


def answer_or_calls(
    dialect: Dialect, tools: ToolSchemas, choice: Choice, answer: GrammarSpec, terms: Terms
) -> GrammarSpec:
    """Calls, or an answer as `answer` demands."""
    rules = dialect.grammar(tools, Choice("required", choice.names, choice.parallel, choice.strict), terms)
    before = dialect.before_answer(terms) if isinstance(dialect, Channels) else ""
    around = f"start: message | {before} answer\n{rules}"
    return replace(answer, around=around, finish_within_budget=True, insist=False)


def answer_in_channel(dialect: "Channels", answer: GrammarSpec, terms: Terms) -> GrammarSpec:
    """An answer in the form of a dialect that marks answers."""
    return replace(answer, around=f"start: {dialect.before_answer(terms)} answer\n{dialect.thought_rules(terms)}")


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


def _spec(source: str, param: str = "tools") -> GrammarSpec:
    """An output that runs out of tokens is led to a short end where one is known; one that has no room for it is
    refused."""
    return GrammarSpec("grammar", f"%llguidance {{}}\n{source}", param=param, insist=False)
