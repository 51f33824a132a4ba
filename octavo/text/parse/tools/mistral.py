"""``[TOOL_CALLS][{"name": ..., "arguments": {...}}]`` and, since the v11 tokenizer, ``[TOOL_CALLS]name[ARGS]{...}``.

The later form repeats its mark for each call and may carry ``[CALL_ID]id`` before the arguments. Ids have nine letters
or digits, as Mistral's templates demand.
"""

import secrets
import string
from collections.abc import Collection

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import NAME, Outcome, arguments_of, call_list, is_name
from octavo.text.parse.lark import Frame, Terms, frame_calls, json_calls, quoted
from octavo.text.parse.marked import marked
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral:
    """The dialect."""

    marks: tuple[str, ...] = (CALLS, ARGS, CALL_ID)
    triggers: tuple[str, ...] = (CALLS,)

    @staticmethod
    def new_id() -> str:
        """Nine letters and digits."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its mark."""
        return 40 if CALLS in template else 20 if CALLS in specials else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:  # noqa: ARG002
        """Text, and calls behind marks."""
        yield from marked(source, out, CALLS, self._calls)

    def _calls(self, source: Source, out: Out) -> Steps[bool]:
        yield from source.space()
        if (yield from source.peek()) == "[":
            return (yield from call_list(source, out)) is not Outcome.NONE
        name = yield from source.run(NAME, 256)
        given = ""
        if not is_name(name):
            return False
        if (yield from source.skip(CALL_ID)):
            given = yield from source.run(NAME, 256)
        yield from source.skip(ARGS)
        yield from source.space()
        return (yield from arguments_of(source, out, name, given)) is not Outcome.NONE

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:
        """The form that the vocabulary has a mark for."""
        if not terms.is_token(ARGS):
            return json_calls(tools, choice, Frame(terms.mark(CALLS), '"["', again='", "', after='"]"'))

        def call(name: str, rule: str) -> str:
            return f"{quoted(name)} {terms.mark(ARGS)} {rule}"

        return frame_calls(tools, choice, Frame(terms.mark(CALLS), again=terms.mark(CALLS)), call)
