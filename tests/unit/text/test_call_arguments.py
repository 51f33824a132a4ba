"""Arguments of earlier calls reach a template as it prints them: as objects, or as JSON text."""

import pytest
from text_kit import train_backend
from tokenizers import AddedToken

from octavo.base.errors import UnknownName, UserError
from octavo.base.params import SamplingParams
from octavo.base.wire import TokenOutput
from octavo.text.chat import ChatTemplate
from octavo.text.collect import Collector
from octavo.text.parse.base import Choice
from octavo.text.parse.speech import Speech, Wish
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "now"}}]

LOOP = "{% for m in messages %}{% for c in m.tool_calls %}"
END = "{% endfor %}{% endfor %}"
OBJECTS = {
    "qwen2.5": "{{ c.function.arguments | tojson }}",
    "qwen3": "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}",
    "glm": "{% set a = c.function.arguments %}{% for k, v in a.items() %}{{ '\"' ~ k ~ '\": ' ~ v | tojson }}{% endfor %}",
}  # fmt: skip
TEXTS = {
    "deepseek": "{{ 'x' + '```json' + '\\n' + c['function']['arguments'] + '\\n```' }}",
    "tilde": "{{ 'x' ~ c.function.arguments }}",
    "printed": "{% set f = c.function %}{{ f.arguments }}",
}


@pytest.mark.parametrize("given", ['{"a": "é", "b": [1]}', {"a": "é", "b": [1]}], ids=["text", "object"])
@pytest.mark.parametrize("name", [*OBJECTS, *TEXTS])
def test_arguments_as_the_template_wants_them(name: str, given: object) -> None:
    template = ChatTemplate(LOOP + {**OBJECTS, **TEXTS}[name] + END)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    rendered = str(template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert '"a": "é"' in rendered
    assert '"b": [1]' in rendered
    assert "{'a'" not in rendered
    assert '\\"' not in rendered


@pytest.mark.parametrize("step", [1, 100])
def test_special_tokens_of_a_dialect_are_seen(step: int) -> None:
    """The user never sees them, the parser does; other special tokens stay hidden."""
    backend = train_backend()
    backend.add_special_tokens(
        [AddedToken(mark, normalized=False, special=True) for mark in ("[TOOL_CALLS]", "[ARGS]")]
    )
    tokenizer = Tokenizer(backend, eos_ids=[backend.token_to_id("<|endoftext|>")])
    template = "{{ messages[0].content }}{% if false %}[TOOL_CALLS]{% endif %}"
    speech = Speech(tokenizer, template)
    assert (speech.tool_name, speech.reasoning_name) == ("mistral", None)
    text = TextProcessor(tokenizer, ChatTemplate(template), Limits(100_000, tokenizer.vocab_size), speech=speech)
    said = tokenizer.encode('Hi.<|im_start|>[TOOL_CALLS]now[ARGS]{"a": 1}<|endoftext|>')

    def run(choice: Choice | None) -> Collector:
        wish = Wish(TOOLS, choice)
        prepared = text.chat(
            [{"role": "user", "content": "x"}], SamplingParams(max_tokens=99), request_id="r", wish=wish
        )
        collector = prepared.collectors[0]
        for start in range(0, len(said), step):
            tokens = said[start : start + step]
            last = start + step >= len(said)
            stop = said[-1] if last else None
            collector.feed(TokenOutput("r", tokens, finish="stop" if last else None, stop_token=stop))
        return collector

    collector = run(Choice("auto", ("now",)))
    assert collector.text == "Hi."
    assert collector.speaker is not None
    assert [(call.name, call.arguments, len(call.id)) for call in collector.speaker.calls] == [("now", '{"a": 1}', 9)]
    assert run(None).text == 'Hi.now{"a": 1}'


def test_names_of_parsers_are_checked() -> None:
    tokenizer = Tokenizer(train_backend())
    for kind in ({"tool_parser": "hermess"}, {"reasoning_parser": "qwen"}):
        with pytest.raises(UnknownName):
            Speech(tokenizer, "", **kind)
    none = Speech(tokenizer, "<tool_call> <think>", tool_parser="none", reasoning_parser="none")
    assert none.voice("", Wish(TOOLS, Choice("auto", ("now",)))) is None
    with pytest.raises(UserError, match="tool-call-parser"):
        none.voice("", Wish(TOOLS, Choice("required", ("now",))))
