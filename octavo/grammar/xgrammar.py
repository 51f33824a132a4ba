"""The xgrammar engine: for what llguidance refuses. It drops what it does not know in silence, so it is asked only
for schemas all of whose keywords it was seen to enforce."""

import sys
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.grammar.base import MAX_WHITESPACE, Form, Refused, Words
from octavo.grammar.vocabulary import VocabularyTable, without

# Seen to be enforced exactly (tests/unit/grammar/test_grammar_engines.py). Left out on purpose: number ranges next to
# multipleOf, formats, patterns (its dialect differs), uniqueItems, contains, not, oneOf, conditions.
KEYWORDS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "definitions",
    "propertyNames",
    "maxProperties",
    "minProperties",
    "minLength",
    "maxLength",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
}
# What it passes over where the type is not said.
_OF_TYPE = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "propertyNames"), "object"),
    **dict.fromkeys(("maxProperties", "minProperties"), "object"),
    **dict.fromkeys(("items", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("minLength", "maxLength"), "string"),
}
_MAPS = ("properties", "$defs", "definitions")
_NAME_KEYWORDS = {"pattern", "minLength", "maxLength", "type"}


class XGrammar:
    """See grammar/base.py's Backend. The library is imported when first needed, which is seldom."""

    def __init__(self, vocabulary: VocabularyTable, *, brief: bool = False) -> None:
        del brief
        self._vocabulary = vocabulary

    @cached_property
    def _compiler(self) -> Any:
        try:
            xgrammar = library()
        except ImportError:
            raise Refused("the grammar engine xgrammar is not installed here") from None
        table = self._vocabulary
        special = set(table.special)
        tokens = [b"" if token in special else text for token, text in enumerate(table.tokens)]
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=table.width, stop_token_ids=list(table.ends) or [0]
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def refusal(self, form: Form) -> str | None:
        if form.around or form.kind in ("lark", "structural_tag"):
            return "grammars are not for xgrammar"
        if form.kind == "json_schema":
            if form.whitespace_pattern is not None:
                return "whitespace_pattern is not for xgrammar"
            return _unknown(msgspec.json.decode(form.text))
        return None

    def compile(self, form: Form) -> "XGCompiled":
        """Raises Refused."""
        try:
            return XGCompiled(self._compile(form), self._vocabulary)
        except UserError:
            raise
        except Exception as error:  # the binding's own exception classes, one a kind of mistake
            raise Refused(" ".join(str(error).split())[:300]) from None

    def _compile(self, form: Form) -> Any:
        match form.kind:
            case "json_schema":
                spaces: dict[str, Any] = {} if form.any_whitespace else {"separators": (",", ":")}
                return self._compiler.compile_json_schema(
                    form.text,
                    any_whitespace=form.any_whitespace,
                    strict_mode=False,
                    max_whitespace_cnt=MAX_WHITESPACE if form.any_whitespace else None,
                    **spaces,
                )
            case "regex":
                return self._compiler.compile_regex(form.text)
            case "choice":
                texts = msgspec.json.decode(form.text, type=list[str])
                return self._compiler.compile_grammar("root ::= " + " | ".join(map(_quoted, texts)))
            case _:
                raise Refused("grammars are not for xgrammar")


class XGCompiled:
    """See grammar/base.py's Grammar."""

    def __init__(self, compiled: Any, vocabulary: VocabularyTable) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary

    def matcher(self) -> "XGState":
        return XGState(library().GrammarMatcher(self._compiled), self._vocabulary)

    @property
    def num_bytes(self) -> int:
        return 16_000 + int(self._compiled.memory_size_bytes)


class XGState:
    """See grammar/base.py's Matcher. The library counts its stop tokens as part of the text; they never reach it."""

    def __init__(self, matcher: Any, vocabulary: VocabularyTable) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def fill(self, row: Words) -> bool:
        if not self._matcher.fill_next_token_bitmask(row[None, :], 0):
            row.fill(-1)
        row[-1] &= self._vocabulary.last_word  # it sets bits beyond, too
        for token in self._vocabulary.special:
            row[token >> 5] &= without(token)
        return True

    def accept(self, token: int) -> bool:
        return token not in self._vocabulary.special and bool(self._matcher.accept_token(token))

    def push(self, tokens: Sequence[int]) -> bool:
        for done, token in enumerate(tokens):
            if not self.accept(token):
                self.rewind(done)
                return False
        return True

    def closes(self, tokens: Sequence[int]) -> bool:
        end = self.copy()
        return end.push(tokens) and end.is_accepting

    def reach(self, tokens: Sequence[int]) -> int:
        end = self.copy()
        return next((done for done, token in enumerate(tokens) if not end.accept(token)), len(tokens))

    def forced(self) -> bytes:
        return str(self._matcher.find_jump_forward_string()).encode()

    def rewind(self, n: int) -> None:
        if n:
            self._matcher.rollback(n)

    def copy(self) -> "XGState":
        return XGState(self._matcher.fork(), self._vocabulary)

    @staticmethod
    def fill_many(matchers: Sequence["XGState"], masks: Words, places: Sequence[int]) -> dict[int, bool]:
        return {place: matcher.fill(masks[place]) for matcher, place in zip(matchers, places)}

    @staticmethod
    def accept_many(matchers: Sequence["XGState"], tokens: Sequence[int]) -> list[bool]:
        return [matcher.accept(token) for matcher, token in zip(matchers, tokens)]

    @property
    def is_accepting(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def is_terminated(self) -> bool:
        if not self.is_accepting:
            return False
        import numpy as np

        row = np.zeros(self._vocabulary.words, dtype=np.int32)
        self.fill(row)
        return not row.any()


def library() -> Any:
    """xgrammar, without what only its other uses need. It imports torch and transformers, which take seconds and
    hundreds of megabytes; a process that has no torch yet does without."""
    if "xgrammar" not in sys.modules:
        unneeded = [name for name in ("torch", "transformers") if name not in sys.modules]
        try:
            if "torch" in unneeded:
                sys.modules["torch"] = None  # type: ignore[assignment]  # its bindings can do without
                import_module("tvm_ffi")
            sys.modules.update({name: _Absent(name) for name in unneeded})
            import_module("xgrammar")
        finally:
            for name in unneeded:
                sys.modules.pop(name, None)
    return sys.modules["xgrammar"]


class _Nothing:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes whatever it is given."""


class _Absent(ModuleType):
    """Stands for a library while another is imported: any name in it is a class that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Nothing,), {})


def _unknown(schema: Any) -> str | None:
    """The first keyword that is not known to be enforced exactly, in words."""
    if isinstance(schema, list):
        return next((found for item in schema if (found := _unknown(item))), None)
    if not isinstance(schema, dict):
        return None
    for key, value in schema.items():
        if key not in KEYWORDS:
            return f"the keyword {key[:64]} is not supported"
        if key in _OF_TYPE and schema.get("type") != _OF_TYPE[key]:
            return f"{key} is supported beside the type {_OF_TYPE[key]} only"
        if key == "minProperties" and value > 1:
            return "minProperties above 1 is not supported"  # a repeated key would count twice
        if key == "propertyNames" and not (isinstance(value, dict) and value.keys() <= _NAME_KEYWORDS):
            return "propertyNames is supported with pattern and lengths only"
        inner: list[Any] = []
        if key in _MAPS:
            inner = list(value.values())
        elif key == "anyOf":
            inner = value
        elif key in ("items", "additionalProperties"):
            inner = [value]
        found = _unknown(inner)
        if found:
            return found
    if "properties" in schema and ("propertyNames" in schema or "maxProperties" in schema):
        return "propertyNames and maxProperties are not supported beside properties"
    return None


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
