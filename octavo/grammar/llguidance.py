"""The llguidance engine: JSON schema, regular expressions, Lark. Masks are filled without the interpreter's lock."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.base.errors import UserError
from octavo.grammar import lark
from octavo.grammar.base import MAX_WHITESPACE, Form, Refused, Words
from octavo.grammar.vocabulary import VocabularyTable

MAX_MESSAGE = 300
WHITESPACE = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"
# Tokens whose masks are known wherever a string goes on for so long. Each slice of the vocabulary takes a sixth of what
# the library needs to begin; without any, a search in vain takes ten times as long.
SLICE = r'[^"\\\x00-\x1F\x7F]{1,30}'
STRICT = {"lenient": False, "coerce_one_of": False}
# Bounds of one mask and of one lexer, in the library's units; about 15 ms and 200 MB at worst.
LIMITS = LLParserLimits(
    max_items_in_row=6_000,  # four for each property that may come next
    step_lexer_fuel=200_000,
    step_max_items=100_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)


class _Source:
    """A vocabulary in the form that the library's wrapper asks for."""

    def __init__(self, vocabulary: VocabularyTable) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.ends[0] if vocabulary.ends else 0
        self.bos_token_id = None
        self.special_token_ids = list(vocabulary.special)
        self._vocabulary = vocabulary

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return self._vocabulary.cut(data) or []  # what a constraint forces comes again and again


class LLGuidance:
    """See grammar/base.py's Backend."""

    def __init__(self, vocabulary: VocabularyTable, *, brief: bool = False) -> None:
        self._vocabulary = vocabulary
        self._slices = [SLICE] if brief else None  # None: the library's own, of which this is one

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        source = TokenizerWrapper(_Source(self._vocabulary))
        return LLTokenizer(source, eos_token=self._ends, slices=self._slices)

    @property
    def _ends(self) -> list[int]:
        return list(self._vocabulary.ends) or [0]

    def refusal(self, form: Form) -> str | None:
        """What it cannot do shows when it compiles."""
        del form
        return None

    def compile(self, form: Form) -> "LLGrammar":
        """Raises Refused with the library's reason, which names the keyword."""
        try:
            source = _source(form, self._vocabulary)
        except ValueError as error:
            raise Refused(_one_line(str(error))) from None
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=LIMITS)
        if matcher.is_error():
            reason = _plain(_one_line(matcher.get_error()))
            # What nothing can fit needs no second opinion.
            raise UserError(reason) if reason.startswith("Unsatisfiable") else Refused(reason)
        return LLGrammar(matcher, self._ends[0], len(source))


class LLGrammar:
    """A matcher that nobody moves; copies share its tables."""

    def __init__(self, matcher: LLMatcher, end: int, source_bytes: int) -> None:
        self._matcher = matcher
        self._end = end
        self._source_bytes = source_bytes

    def matcher(self) -> "LLState":
        return LLState(self._matcher.deep_copy(), self._end)

    @property
    def num_bytes(self) -> int:
        """Measured: some 40 KB for the least, and 40 bytes for each of the source."""
        return 48_000 + 40 * self._source_bytes


class LLState:
    """See grammar/base.py's Matcher."""

    def __init__(self, matcher: LLMatcher, end: int) -> None:
        """`end`: a token that ends a sequence."""
        self._matcher = matcher
        self._end = end

    def fill(self, row: Words) -> bool:
        self._matcher.unsafe_compute_mask_ptr(_address(row), row.nbytes)
        return not self._matcher.is_error()

    def accept(self, token: int) -> bool:
        # A token that does not fit would put the library's matcher in an error state for good.
        return self._matcher.try_consume_tokens([token]) == 1

    def push(self, tokens: Sequence[int]) -> bool:
        done = self._matcher.try_consume_tokens(list(tokens))
        if done < len(tokens):
            self.rewind(done)
        return done == len(tokens)

    def closes(self, tokens: Sequence[int]) -> bool:
        # Far quicker than to move a copy. An end of sequence counts as valid where the text may end.
        return bool(self._matcher.validate_tokens([*tokens, self._end]) == len(tokens) + 1)

    def reach(self, tokens: Sequence[int]) -> int:
        return int(self._matcher.validate_tokens(list(tokens)))

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    def rewind(self, n: int) -> None:
        if n and not self._matcher.rollback(n):
            raise ValueError(f"cannot take back {n} tokens")

    def copy(self) -> "LLState":
        return LLState(self._matcher.deep_copy(), self._end)

    @staticmethod
    def fill_many(matchers: Sequence["LLState"], masks: Words, places: Sequence[int]) -> dict[int, bool]:
        address, size = _address(masks), masks.strides[0]
        for matcher, place in zip(matchers, places):
            matcher._matcher.unsafe_compute_mask_ptr(address + place * size, size)
        # The library sets the end of sequence where the text may end, where nothing may follow, and where it gave up.
        word, bit, words = matchers[0]._end >> 5, matchers[0]._end & 31, masks.data
        return {
            place: not matcher._matcher.is_error()
            for matcher, place in zip(matchers, places)
            if words[place, word] >> bit & 1
        }

    @staticmethod
    def accept_many(matchers: Sequence["LLState"], tokens: Sequence[int]) -> list[bool]:
        return [matcher._matcher.consume_token(token) for matcher, token in zip(matchers, tokens)]

    @property
    def is_accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def is_terminated(self) -> bool:
        return bool(self._matcher.is_stopped()) and self.is_accepting


def _address(array: Words) -> int:
    address: int = array.__array_interface__["data"][0]  # far quicker to come by than that of `ctypes`
    return address


def _source(form: Form, vocabulary: VocabularyTable) -> str:
    if form.around:
        rules = f"%llguidance {{}}\n{form.around}\nanswer: {_rule(form, vocabulary)}\n"
        return str(LLMatcher.grammar_from_lark(rules))
    if form.kind == "json_schema":
        options: Any = {**STRICT, **_whitespace(form)}
        return str(LLMatcher.grammar_from_json_schema(form.text, overrides=options))
    if form.kind == "regex":
        return str(LLMatcher.grammar_from_regex(form.text))
    return str(LLMatcher.grammar_from_lark(_lark(form, vocabulary)))


def _whitespace(form: Form) -> dict[str, Any]:
    if form.whitespace_pattern is not None:
        return {"whitespace_pattern": form.whitespace_pattern}
    return {"whitespace_pattern": WHITESPACE} if form.any_whitespace else {"whitespace_flexible": False}


def _lark(form: Form, vocabulary: VocabularyTable) -> str:
    """A whole grammar."""
    if form.kind == "choice":
        return "start: " + " | ".join(map(lark.quote, msgspec.json.decode(form.text, type=list[str])))
    if form.kind == "structural_tag":
        names = {name.decode("utf-8", "replace"): token for name, token in vocabulary.by_name.items()}
        return lark.from_tag(msgspec.json.decode(form.text), names)
    return form.text


def _rule(form: Form, vocabulary: VocabularyTable) -> str:
    """The right-hand side of a rule in a grammar of more."""
    if form.kind == "json_schema":
        schema = msgspec.json.decode(form.text)
        return "%json " + msgspec.json.encode({**schema, "x-guidance": {**STRICT, **_whitespace(form)}}).decode()
    if form.kind == "regex":
        return lark.slashed(form.text)
    return f"%lark {{\n{_lark(form, vocabulary)}\n}}"


def _plain(reason: str) -> str:
    """The reason in words of the schema, where the library speaks of what it made of it."""
    if reason.startswith("regex parse error"):
        return (
            "pattern, or minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf together, are too complex"
        )
    if reason.startswith("Unimplemented keys: "):
        return f"cannot be enforced: {reason.partition(': ')[2].strip('[]')}"
    if reason.startswith("oneOf constraints"):
        return "oneOf can be enforced only where types or constants tell its alternatives apart"
    if reason.startswith("Resource "):
        return "a $schema or $id that leads out of the schema is not followed"
    return reason


def _one_line(message: str) -> str:
    return " ".join(message.split())[:MAX_MESSAGE] or "is not understood"
