"""Calls demanded of an engine whose model knows nothing: whatever it says, the calls are valid and are read."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from parse_kit import tool
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.base.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.base.errors import UserError
from octavo.base.params import SamplingParams
from octavo.base.specs import KVSpec
from octavo.base.wire import Vocabulary
from octavo.engine.assemble import Phases, finish
from octavo.engine.batch import BatchRunner
from octavo.engine.inproc import InprocClient
from octavo.engine.resolve import resolve
from octavo.grammar import alone
from octavo.grammar.closings import closings
from octavo.grammar.compiled import Recipe, build
from octavo.grammar.forms import check_spec
from octavo.grammar.guide import Guide
from octavo.grammar.llguidance import LLGuidance
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.vocabulary import VocabularyTable
from octavo.models.arch import Architecture
from octavo.platform.base import Facts
from octavo.testing.fake_executor import FakeExecutor
from octavo.text.chat import ChatTemplate
from octavo.text.collect import Collector
from octavo.text.parse.base import Choice, ToolSchemas
from octavo.text.parse.constrain import calls_grammar
from octavo.text.parse.lark import Terms
from octavo.text.parse.registry import TOOL_PARSERS, tool_parser
from octavo.text.parse.speech import Speech, Wish
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import Tokenizer
from octavo.weights.facts import ModelFiles

TEMPLATE = "{{ messages[0].content }}{% if think %}<think>\n{% endif %}"
MACHINE = Facts(
    device="cpu",
    name="none",
    total_memory=1 << 30,
    free_memory=1 << 30,
    cores=1,
    dtypes=("float32",),
    asynchronous=False,
)
SHORT = {"type": "string", "maxLength": 6}
TOOLS = [
    tool(
        "find",
        ["city", "days"],
        city=SHORT,
        days={"type": "integer", "minimum": 0, "maximum": 9},
        sure={"type": "boolean"},
    ),
    tool("now"),
]
for _each in TOOLS:
    _each["function"]["parameters"]["additionalProperties"] = False
PARAMETERS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
Ask = Callable[..., Collector]


def characters() -> dict[str, int]:
    """Byte-level BPE's character of each byte (Radford et al. 2019, encoder.py), and the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    table = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    return {char: byte for byte, char in table.items()}


def make(dialect: str, reasoning: str, special: bool, depth: int) -> tuple[InprocClient, Ask]:
    backend = Backend(models.BPE(vocab=characters(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    marks = [*tool_parser(dialect).marks, "<think>", "</think>"] if special else []
    backend.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in ("</s>", *marks)])
    tokenizer = Tokenizer(backend, eos_ids=[256])
    width = tokenizer.vocab_size
    arch = Architecture(
        family="fake", vocab_size=width, hidden_size=8, layers=(), max_position=1024, dtype="float32", norm_eps=1e-6
    )
    files = ModelFiles(
        path=Path("none"),
        format="dummy",
        config={},
        generation_config={},
        arch=arch,
        tokenizer_dir=None,
        gguf=None,
        chat_template=TEMPLATE,
        weight_bytes=0,
    )
    config = EngineConfig(
        model=ModelConfig(),
        cache=CacheConfig(num_gpu_blocks_override=300),
        scheduler=SchedulerConfig(max_num_seqs=4, async_scheduling=depth > 1),
    )
    resolved = resolve(config, arch, MACHINE)
    client = InprocClient(finish(config, resolved, [KVSpec(1, 8)], width, FakeExecutor(width), Phases(), files))
    speech = Speech(tokenizer, TEMPLATE, tool_parser=dialect, reasoning_parser=reasoning)
    text = TextProcessor(tokenizer, ChatTemplate(TEMPLATE), Limits(1024, width), speech=speech)
    assert text.vocabulary is not None
    client.provide(text.vocabulary)

    def ask(content: str, wish: Wish, max_tokens: int, grammar: GrammarSpec | None = None, **args: Any) -> Collector:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        messages = [{"role": "user", "content": content}]
        prepared = text.chat(messages, params, request_id=content, wish=wish, grammar=grammar, template_args=args)
        collector = prepared.collectors[0]
        BatchRunner(client, config.scheduler).run(prepared.requests, lambda output: collector.feed(output).needs_abort)
        return collector

    return client, ask


def check(collector: Collector, names: tuple[str, ...]) -> None:
    """All calls are valid, but for the last one where the text was cut short; and there is nothing else."""
    assert collector.speaker is not None
    whole = collector.finish_reason == "stop"
    calls = collector.speaker.calls if whole else collector.speaker.calls[:-1]
    assert calls, collector.text
    for call in calls:
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), PARAMETERS[call.name])
    assert not whole or collector.text == ""


# Harmony's thoughts have no bound, and this model's never end; test_constraints.py has it.
@pytest.mark.parametrize("name", sorted(set(TOOL_PARSERS.names()) - {"openai"}))
def test_demanded_calls_are_valid(name: str) -> None:
    client, ask = make(name, "none", special=True, depth=1)
    try:
        for number in range(2):
            both = Wish(TOOLS, Choice("required", ("find", "now")))
            check(ask(f"a{number}", both, 600), ("find", "now"))
            only = Wish(TOOLS, Choice("required", ("find",), False))
            found = ask(f"b{number}", only, 600)
            assert found.finish_reason == "stop"
            check(found, ("find",))
            assert found.speaker is not None
            assert len(found.speaker.calls) == 1
    finally:
        client.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_calls_behind_thoughts(depth: int) -> None:
    client, ask = make("hermes", "qwen3", special=True, depth=depth)
    try:
        wish = Wish(TOOLS, Choice("required", ("now",), False), thinking_budget=9)
        for number, think in enumerate((True, False, True)):
            collector = ask(f"c{number}", wish, 200, think=think)
            check(collector, ("now",))
            assert collector.speaker is not None
            assert collector.speaker.reasoning_tokens <= 11  # the mark itself included
        free = ask("d", Wish(thinking_budget=4), 30, think=True)
        assert free.speaker is not None
        assert free.speaker.reasoning_tokens <= 6
        assert free.num_output_tokens > 6
    finally:
        client.close()


FORMS = {
    "json": (GrammarSpec("json_schema", '{"type": "integer", "minimum": 10, "maximum": 99}'), "[1-9][0-9]"),
    "regex": (GrammarSpec("regex", "[a-c]{2,9}", finish_within_budget=False), "[a-c]{2,9}"),
    "choice": (GrammarSpec("choice", '["red", "green"]'), "red|green"),
    "grammar": (GrammarSpec("grammar", 'start: "a" "b"+ "c"', finish_within_budget=True), "ab+c"),
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "words"])
def test_answers_of_every_form_behind_thoughts(depth: int, special: bool) -> None:
    """Thoughts are cut at their bound, whether the prompt has opened them or the model does, and counted."""
    client, ask = make("hermes", "qwen3", special=special, depth=depth)
    marks = 1 if special else len("</think>")
    try:
        for number, (form, think) in enumerate((form, think) for form in FORMS for think in (True, False)):
            spec, pattern = FORMS[form]
            for bound in (0, 7):
                found = ask(f"f{number}.{bound}", Wish(thinking_budget=bound), 80, spec, think=think)
                assert found.finish_reason == "stop" or spec.finish_within_budget
                assert re.fullmatch(pattern, found.text), (form, think, found.text)
                assert found.speaker is not None
                assert found.speaker.reasoning_tokens <= bound + 2 * marks
                assert not think or found.speaker.reasoning_tokens >= marks
            free = ask(f"g{number}", Wish(), 80, spec, think=think)
            assert free.finish_reason == "length" or re.fullmatch(pattern, free.text)
            assert re.fullmatch(pattern, free.text) or not spec.finish_within_budget
    finally:
        client.close()


def test_without_a_dialect_of_thoughts_they_have_no_bound() -> None:
    client, ask = make("hermes", "none", special=True, depth=1)
    try:
        with pytest.raises(UserError) as caught:
            ask("h", Wish(thinking_budget=4), 30)
        assert caught.value.param == "thinking_token_budget"
    finally:
        client.close()


def test_answers_in_json_or_calls() -> None:
    client, ask = make("hermes", "none", special=True, depth=1)
    schema = json.dumps(
        {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    )
    try:
        for number in range(6):
            wish = Wish(TOOLS, Choice("auto", ("find", "now")))
            collector = ask(f"e{number}", wish, 200, GrammarSpec("json_schema", schema))
            assert collector.speaker is not None
            if collector.speaker.calls:
                check(collector, ("find", "now"))
            else:
                assert isinstance(json.loads(collector.text)["ok"], bool)
    finally:
        client.close()


@pytest.mark.parametrize("special", [True, False])
def test_strict_holds_only_once_a_call_has_begun(special: bool) -> None:
    marks = ["<tool_call>", "</tool_call>"] if special else []
    tokens = [bytes([value]) for value in range(256)] + [b"</s>"] + [mark.encode() for mark in marks]
    table = VocabularyTable(Vocabulary(tokens, [256, *range(257, len(tokens))], [256]), len(tokens))
    terms = Terms({mark: 257 + number for number, mark in enumerate(marks)}, [256])
    choice = Choice("auto", ("now",), strict=True)
    spec = calls_grammar(tool_parser("hermes"), ToolSchemas(TOOLS), choice, None, False, None, terms)
    compiled = build(Recipe("llguidance", check_spec(spec), closings(table), None), LLGuidance(table), table)
    guide = Guide(compiled, spec, table, frozenset([256]), 500)
    row = np.zeros(table.words, dtype=np.int32)

    def allowed() -> set[int]:
        alone.fill(guide, row)
        return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())

    def say(text: str) -> None:
        for token in terms_of(text, marks):
            assert alone.take(guide, token) == token

    assert allowed() == set(range(len(tokens)))
    say("Well.")
    assert 256 in allowed()
    assert guide.is_whole
    say("<tool_call>")
    assert allowed() == {ord("\n")}
    say('\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert 256 in allowed()
    assert guide.failure is None


def terms_of(text: str, marks: list[str]) -> list[int]:
    """Tokens of a text: marks whole, all else by bytes."""
    found: list[int] = []
    while text:
        mark = next((each for each in marks if text.startswith(each)), None)
        found += [257 + marks.index(mark)] if mark else list(text[0].encode())
        text = text[len(mark or text[0]) :]
    return found
