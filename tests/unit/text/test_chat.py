"""Chat templates: equal to transformers, and bounded."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from text_kit import CHATML
from transformers import AutoTokenizer

from octavo.base.errors import ConfigError, UserError
from octavo.text.chat import ChatTemplate
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import Tokenizer

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{#- This block extracts the system message #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|im_start|>system\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}<|im_end|>
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n'+ message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' ~ tool_call.name ~ '", ' ~ '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- else %}
        {{- "<|im_start|>ipython\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n\\n' }}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}
"""

GENERATION = """\
{% for message in messages %}
  {% if loop.index > 9 %}{% break %}{% endif %}
  {% if message.role == 'assistant' %}
    {% generation %}
{{ message.content }}<|im_end|>{% set hidden = 1 %}
    {% endgeneration %}
  {% else %}
{{ message.role }}: {{ message.content.replace("'", "’").split('x')|join('-') }}
{{ '**%s-%d**' % (message.role, loop.index) }} {{ '{{"a": "{}"}} {:>4}'.format(1, 2) }}
  {% endif %}
{% endfor %}
{% macro say(what, times=2) %}{{ what * times }}{% endmacro %}
{{ say('ho') }} {{ hidden is defined }} {{ {'a': [1, 2.5, none, true], 'é': '<b>'}|tojson }}
{{ [1] + [2] }} {{ (1, 2) }}
{% set ns = namespace(total=0) %}{% for m in messages %}{% set ns.total = ns.total + m.content|length %}{% endfor %}
{{ ns.total }} {{ messages|map(attribute='role')|unique|list }}
{{ "{:>5}".format(3) }} {{ 2 ** 5 }} {{ 7 // 2 }} {{ none }}
{{ messages[-1]['content'][:3] ~ 1 ~ [2] }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
"""

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi <b>'you'</b> & x me"}],
    [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "2+2?\n"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "你好 👩‍👩‍👧"},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Gets the <weather> für 'you'",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA, GENERATION], ids=["chatml", "llama3", "gemma", "generation"])
@pytest.mark.parametrize("chat", CHATS, ids=["one", "several"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_equals_transformers(
    tokenizer: Tokenizer, theirs: Any, source: str, chat: list[dict[str, Any]], tools: Any
) -> None:
    template = ChatTemplate(source, special_texts=tokenizer.special_texts, special=tokenizer.special)
    for prompt in (True, False):
        ours = template.render(chat, tools, prompt)
        expected = theirs.apply_chat_template(
            chat, tools=tools, chat_template=source, add_generation_prompt=prompt, tokenize=False
        )
        assert str(ours) == expected
        ids = theirs.apply_chat_template(chat, tools=tools, chat_template=source, add_generation_prompt=prompt)
        assert tokenizer.encode_chat(ours) == ids["input_ids"]


def test_tool_calls_and_answers(theirs: Any, tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich"}}}
    chat = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
    ]
    expected = theirs.apply_chat_template(chat, tools=TOOLS, chat_template=LLAMA3, tokenize=False)
    as_text = {**call, "function": {"name": "weather", "arguments": '{"place": "Zürich"}'}}
    sent = [chat[0], {"role": "assistant", "content": None, "tool_calls": [as_text]}, chat[2]]
    template = ChatTemplate(LLAMA3, special_texts=tokenizer.special_texts, special=tokenizer.special)
    assert str(template.render(sent, TOOLS, add_generation_prompt=False)) == expected
    broken = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
    with pytest.raises(UserError) as error:
        template.render(broken)
    assert error.value.param == "messages[0].tool_calls[0].function.arguments"


def test_continue_final_message(theirs: Any) -> None:
    for content in ("The answer", "The answer ", " x"):
        chat = [*CHATS[0], {"role": "assistant", "content": content}]
        for source in (CHATML, GEMMA):
            ours = ChatTemplate(source).render(chat, None, False, continue_final_message=True, bos_token="")
            expected = theirs.apply_chat_template(
                chat, chat_template=source, continue_final_message=True, tokenize=False, bos_token=""
            )
            assert str(ours) == expected
    with pytest.raises(UserError):
        ChatTemplate(CHATML).render(CHATS[0], None, True, continue_final_message=True)


def test_parts_are_joined_where_the_template_wants_a_string() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}]
    assert "user\na\nb<|im_end|>" in str(ChatTemplate(CHATML).render(parts))
    assert "user\nab<end_of_turn>" in str(ChatTemplate(GEMMA).render(parts, bos_token=""))
    walker = (
        "{% for m in messages %}{% set c = m.content %}{% for p in c | list %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    assert str(ChatTemplate(walker).render(parts)) == "[a][b]"
    assert str(ChatTemplate(walker).render([{"role": "user", "content": "one"}])) == "[one]"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ({}, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}] * 2000}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": None}], "messages[1].content"),
        ([{"role": "user", "content": "a", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "a"}] * 20_000, "messages"),
    ],
)
def test_malformed_messages(messages: Any, param: str) -> None:
    with pytest.raises(UserError) as error:
        ChatTemplate(CHATML).render(messages)
    assert error.value.param == param


@pytest.mark.parametrize("text", ["[" + "{}," * 100_000 + "{}]", "[" + '"a",' * 200_000 + "1]", '{"a":[' * 50_000])
def test_arguments_that_unfold_to_too_much_are_not_read(text: str) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
    begin = time.thread_time()
    with pytest.raises(UserError, match="at most 65536 values") as error:
        ChatTemplate(CHATML).render([{"role": "user", "content": "a"}, message])
    assert error.value.param == "messages[1].tool_calls"
    assert time.thread_time() - begin < 0.2


def test_many_calls_and_long_texts_in_them_are_read() -> None:
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments.a | length }} {% endfor %}"
    table = "x, [y], {z} \\" + '"' * 10
    call = {"function": {"name": "f", "arguments": json.dumps({"a": table * 10_000})}}
    rendered = ChatTemplate(source).render([{"role": "assistant", "tool_calls": [call] * 3}])
    assert str(rendered).split() == [str(len(table) * 10_000)] * 3


@pytest.mark.parametrize(
    "function", [{}, {"arguments": ""}, {"arguments": None}, {"arguments": " "}, {"arguments": {}}]
)
def test_a_call_may_have_no_arguments(function: dict[str, Any]) -> None:
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f", **function}}]}
    assert str(ChatTemplate(source).render([turn])) == "{}"


def test_an_assistant_may_have_said_nothing() -> None:
    turns = [{"reasoning": "hm"}, {"refusal": "no"}, {"tool_calls": []}]
    rendered = ChatTemplate(CHATML).render([{"role": "assistant", "content": None, **turn} for turn in turns])
    assert [part.partition("<|im_end|>")[0] for part in str(rendered).split("assistant\n")[1:4]] == ["", "no", ""]


def test_named_templates_and_developer_role() -> None:
    named = ChatTemplate({"default": "plain {{ messages[0].role }}", "tool_use": "tools {{ tools|length }}"})
    assert str(named.render(CHATS[0])) == "plain user"
    assert str(named.render(CHATS[0], TOOLS)) == "tools 1"
    assert str(named.render([{"role": "developer", "content": "x"}])) == "plain system"
    with pytest.raises(UserError, match="no default"):
        ChatTemplate({"a": "x", "b": "y"}).render(CHATS[0])


def test_a_model_without_a_template_says_what_to_do(tokenizer: Tokenizer) -> None:
    processor = TextProcessor(tokenizer, None, Limits(100, 1000))
    with pytest.raises(UserError, match="--chat-template"):
        processor.render(CHATS[0])


def test_what_a_template_raises_reaches_the_user() -> None:
    with pytest.raises(UserError, match="must alternate"):
        ChatTemplate(GEMMA).render([CHATS[0][0], CHATS[0][0]], bos_token="")


@pytest.mark.parametrize(
    "source", ["{% for x in %}", "{{ x|nofilter }}", "{{ " + "(" * 5000, "x" * (1 << 21), "{% endif %}"]
)
def test_templates_that_do_not_compile(source: str) -> None:
    with pytest.raises(ConfigError):
        ChatTemplate(source)


HOSTILE = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}" + "x" * 100_000 + "{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ (('a' * 1000000) ~ 'b') | replace('', 'c' * 1000000) }}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x.join(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 10 ** 100000 }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "{{ ('a' * 10000).translate({97: 'b' * 100000}) }}",
    "{{ (1).to_bytes(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | indent(10**9, true) }}",
    "{{ ('\\n' * 100000) | indent('x' * 100000) }}",
    "{{ range(100000) | map('string') | join('x' * 100000) }}",
    "{{ (('x' * 100000) ~ '').join(range(100000) | map('string')) }}",
    "{{ range(100000) | map('replace', '', 'x' * 1000000) | list }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=999999999) }}",
    "{{ '{:>999999999}'.format_map({'a': 1}) }}",
    "{{ [[1] * 1000] * 1000000 }}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ [[1], [2]] | sum(start=[]) }}",
    "{{ messages | tojson(indent=10**6) }}",
    "{{ messages | tojson(separators=('x' * 100000, 'y')) }}",
    "{{ strftime_now('%999999999Y') }}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{% include '/etc/passwd' %}",
    "{{ lipsum(n=100000) }}",
    "{{ undefined.thing }}",
    "{{ 1 // 0 }}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_templates_end_soon(source: str) -> None:
    begin = time.monotonic()
    template = ChatTemplate(source, seconds=0.5)
    with pytest.raises(UserError):
        template.render(CHATS[0])
    assert time.monotonic() - begin < 5


def test_output_is_bounded() -> None:
    source = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    assert len(str(ChatTemplate(source).render(CHATS[0]))) > 1000
    with pytest.raises(UserError, match="too much text"):
        ChatTemplate(source, max_chars=10_000).render(CHATS[0])
