"""How one model speaks: its dialects, recognised or named, and for each request a parser and a constraint."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from octavo.base.errors import UserError
from octavo.grammar.spec import GrammarSpec
from octavo.text.parse.base import Choice, ToolSchemas
from octavo.text.parse.constrain import (
    Channels,
    answer_in_channel,
    answer_or_calls,
    behind,
    budget_grammar,
    calls_grammar,
    channel_budget,
)
from octavo.text.parse.lark import Terms
from octavo.text.parse.message import Speaker
from octavo.text.parse.out import call_id
from octavo.text.parse.parser import Parser, Reader, State, message_reader
from octavo.text.parse.registry import REASONING_PARSERS, TOOL_PARSERS, recognise
from octavo.text.parse.registry import reasoning_parser as reasoning_dialect
from octavo.text.parse.registry import tool_parser as tool_dialect
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger("octavo.text")

NO_DIALECT = (
    "the form of this model's tool calls is not known, so that they cannot be enforced; start the server with "
    "--tool-call-parser NAME"
)


class Wish(Struct, frozen=True):
    """What one chat asks beyond its prompt. `choice` None: no call is looked for.

    `thinking_budget`: most tokens of thoughts, None for no bound. `tools` as OpenAI has them, checked.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    choice: Choice | None = None
    thinking_budget: int | None = None


class Voice(Struct, frozen=True):
    """One request's way to be read: what its siblings' parsers are made of, and the constraint on what they say."""

    reader: Reader
    opened: bool
    single: bool
    new_id: Any
    shown: frozenset[int]
    spec: GrammarSpec | None

    def speaker(self) -> Speaker:
        """A fresh one for each sibling."""
        return Speaker(Parser(self.reader, opened=self.opened, new_id=self.new_id), single=self.single)


class Speech:
    """The dialects of one model. `tool_parser` and `reasoning_parser`: names, ``auto`` to recognise, ``none``.

    Raises UnknownName.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
    ) -> None:
        self._ids = {entry.content: token for token, entry in tokenizer.backend.get_added_tokens_decoder().items()}
        self._terms = Terms(self._ids, tokenizer.eos_ids)
        self.tool_name = _chosen(TOOL_PARSERS, tool_parser, template, self._ids)
        self.reasoning_name = _chosen(REASONING_PARSERS, reasoning_parser, template, self._ids)
        self._calls: Any = None if self.tool_name is None else tool_dialect(self.tool_name)
        self._thoughts: Any = None if self.reasoning_name is None else reasoning_dialect(self.reasoning_name)
        self._whole: Any = next((each for each in (self._calls, self._thoughts) if hasattr(each, "read_message")), None)
        marks = [mark for each in (self._calls, self._thoughts) if each is not None for mark in each.marks]
        self._shown = frozenset(self._ids[mark] for mark in marks if mark in self._ids)
        log.info("tool calls: %s; reasoning: %s", self.tool_name or "none", self.reasoning_name or "none")

    def voice(self, prompt: str, wish: Wish, answer: GrammarSpec | None = None) -> Voice | None:
        """How to read what continues `prompt`; None if it is all plain text.

        `answer`: what the text for the user must look like. Raises UserError.
        """
        choice = wish.choice
        if choice is not None and self._calls is None:
            if choice.mode == "required":
                raise UserError(NO_DIALECT, param="tool_choice", code="unsupported_value")
            choice = None
        schemas = ToolSchemas(wish.tools)
        opened = self._opens(prompt)
        spec = self._spec(schemas, choice, opened, wish.thinking_budget, answer)
        if choice is None and self._thoughts is None and self._whole is None:
            return None
        return Voice(
            reader=self._reader(schemas, choice),
            opened=opened,
            single=choice is not None and not choice.parallel,
            new_id=getattr(self._calls, "new_id", call_id),
            shown=self._shown,
            spec=spec,
        )

    def _opens(self, prompt: str) -> bool:
        opened = getattr(self._thoughts, "opened", None)
        return opened is not None and bool(opened(prompt))

    def _reader(self, schemas: ToolSchemas, choice: Choice | None) -> Reader:
        if self._whole is not None:
            whole = self._whole

            def read(source: Any, out: Any, state: State) -> Any:
                return whole.read_message(source, out, schemas, state)

            return read
        thoughts = None if self._thoughts is None or hasattr(self._thoughts, "read_message") else self._thoughts
        return message_reader(thoughts, self._calls if choice is not None else None, schemas)

    def _spec(
        self, schemas: ToolSchemas, choice: Choice | None, opened: bool, budget: int | None, answer: GrammarSpec | None
    ) -> GrammarSpec | None:
        thoughts = self._thoughts if hasattr(self._thoughts, "closings") else None
        channels = self._whole if isinstance(self._whole, Channels) else None
        if budget is not None and thoughts is None and channels is None:
            raise UserError(
                "this model's thoughts have no end that could be enforced.",
                param="thinking_token_budget",
                code="unsupported_parameter",
            )
        if choice is not None and choice.mode == "auto" and answer is not None:
            spec = answer_or_calls(self._calls, schemas, choice, answer, self._terms.within(budget))
            return behind(spec, thoughts, opened, budget)
        if choice is not None and (choice.mode == "required" or choice.strict):
            return calls_grammar(self._calls, schemas, choice, thoughts, opened, budget, self._terms)
        if answer is not None and self._whole is not None:
            return answer_in_channel(self._whole, answer, self._terms.within(budget))
        if answer is not None:
            return behind(answer, thoughts, opened, budget)
        if budget is not None and channels is not None:
            return channel_budget(channels, budget, self._terms)
        if budget is not None and thoughts is not None:
            return budget_grammar(thoughts, opened, budget, self._terms)
        return None


def _chosen(registry: Any, name: str, template: str, specials: Mapping[str, int]) -> str | None:
    if name == "none":
        return None
    return recognise(registry, template, specials) if name == "auto" else name
