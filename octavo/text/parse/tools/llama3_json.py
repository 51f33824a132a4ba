"""``{"name": ..., "parameters": {...}}``: Llama 3.1 to 3.3, behind ``<|python_tag|>`` or bare, ``;`` between several.

A bare object counts at the start of a line, and only if it calls a tool that the request has: answers in JSON are
answers.
"""

from collections.abc import Collection
from functools import partial

from octavo.text.parse.base import Choice, Steps, ToolSchemas
from octavo.text.parse.calls import Envelope, Outcome, call_object
from octavo.text.parse.lark import Frame, Terms, json_calls
from octavo.text.parse.marked import on_lines
from octavo.text.parse.out import Out
from octavo.text.parse.source import Source

TAG = "<|python_tag|>"


class Llama3Json:
    """The dialect."""

    marks: tuple[str, ...] = (TAG,)
    triggers: tuple[str, ...] = ()

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Its tag, or its headers with JSON named in the instructions."""
        if '"parameters"' in template and "<|start_header_id|>" in template:
            return 30
        return 10 if TAG in specials and "<|start_header_id|>" in template else 0

    def read(self, source: Source, out: Out, tools: ToolSchemas) -> Steps[None]:
        """Calls at the start, on lines of their own, and behind the tag."""
        envelope = Envelope(known=tools, needs_arguments=True)
        yield from on_lines(source, out, TAG, "{", partial(self._calls, envelope=envelope))

    def _calls(self, source: Source, out: Out, envelope: Envelope) -> Steps[None]:
        """Objects, ``;`` between; what is none is given back."""
        while True:
            outcome = yield from call_object(source, out, envelope)
            if outcome is not Outcome.CALLED:
                out.text(source.kept())
                return
            source.keep()
            yield from source.space()
            if (yield from source.skip(";")):
                yield from source.space()
                if (yield from source.peek()) == "":
                    source.kept()
                    return
            if (yield from source.peek()) != "{":
                out.text(source.kept())
                return

    def grammar(self, tools: ToolSchemas, choice: Choice, terms: Terms) -> str:  # noqa: ARG002
        """Bare objects; left to itself the model may write anything that does not begin with a brace."""
        rules = json_calls(tools, choice, Frame(again='"; "'), "parameters")
        if choice.mode == "auto":
            rules = rules.replace("message:", "calls:", 1) + 'message: calls | /[^{](.|\\n)*/ | ""\n'
        return rules
