"""GrammarSpec: what the output of one request must look like. Made on the text side, read by the engine.

It crosses in `EngineRequest.riders` under `RIDER`, encoded, so that the core never opens it.
"""

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]

UNSEEN: tuple[Kind, ...] = ("grammar", "structural_tag")
"""Kinds of which the text side looks at the sizes only."""

RIDER = "grammar"
"""The name under which a spec rides in `EngineRequest.riders`, and a step's masks in the executor's riders."""

MAX_JSON_BYTES = 64 << 10
MAX_JSON_DEPTH = 32
MAX_REGEX_CHARS = 4 << 10
MAX_GRAMMAR_BYTES = 64 << 10
MAX_CHOICES = 1024
MAX_MARKERS = 8
MAX_MARKER_CHARS = 128


class Thoughts(Struct, frozen=True, array_like=True):
    """Free text before all else. What follows begins behind the first of `closings`, but for at most two ends of lines.

    A text is a special token of the vocabulary or plain characters. With an `opening`, thoughts come only if the output
    begins with it: what follows them may begin at once instead. Without one the prompt has opened them.
    """

    closings: tuple[str, ...]
    opening: str = ""
    most: int | None = None  # tokens of thoughts, behind which the first of `closings` has to come


class GrammarSpec(Struct, frozen=True, array_like=True):
    """One constraint.

    `source` is, by kind: the JSON text of a schema; nothing; a regular expression that the whole output must match;
    the JSON text of a list of strings; a grammar in Lark or EBNF (GBNF) form; the JSON text of a structural tag
    (``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`` or ``{"format": {...}}``).
    """

    kind: Kind
    source: str = ""
    backend: str = "auto"  # a name of grammar/registry.py; auto: the first that can enforce it exactly
    any_whitespace: bool = True  # JSON: whitespace between tokens as JSON has it; False: none but one after , and :
    whitespace_pattern: str | None = None  # JSON: a regular expression for the whitespace instead
    additional_properties: bool = True  # JSON: False closes every object that does not say otherwise
    # The constraint holds from behind the first of these texts on; what comes before is free. Empty: from the start.
    # A text is a special token of the vocabulary (``</think>``) or plain characters, however they are cut in tokens.
    after: tuple[str, ...] = ()
    thoughts: Thoughts | None = None  # what goes before the constraint, and before what `after` waits for
    around: str = ""  # Lark rules that the constraint stands within, under the name `answer`; from `start` on
    finish_within_budget: bool = True  # with the tokens nearly spent, steer to the shortest valid end
    min_tokens: int = 0  # no end before this many tokens unless nothing else is left to say
    param: str = "structured_outputs"  # the field that the caller gave it in, for errors
    optional: bool = False  # with `after`: none of its texts may ever come, and the output may end without them
    insist: bool = True  # with finish_within_budget: refuse a constraint for which no such end is known

    @property
    def must_end(self) -> bool:
        """Whether the output has to be whole, however few tokens it may have."""
        return self.finish_within_budget and not self.optional

    @property
    def alone(self) -> "GrammarSpec":
        """What it is compiled by: without what comes before it. It must end if it is refused where no end is known."""
        ends = self.must_end and self.insist
        plain = replace(self, after=(), thoughts=None, optional=False, insist=True)
        return replace(plain, finish_within_budget=ends, min_tokens=0)


def encode_spec(spec: GrammarSpec) -> bytes:
    """The rider's bytes."""
    return msgspec.msgpack.encode(spec)


def decode_spec(data: bytes) -> GrammarSpec:
    """Raises msgspec.MsgspecError on anything but `encode_spec`'s bytes."""
    return msgspec.msgpack.decode(data, type=GrammarSpec)
