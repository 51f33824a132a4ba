"""Which dialect a chat template speaks; snippets as published templates have them."""

import pytest

from octavo.text.parse.base import Dialect
from octavo.text.parse.registry import (
    REASONING_PARSERS,
    TOOL_ALIASES,
    TOOL_PARSERS,
    reasoning_parser,
    recognise,
    tool_parser,
)

QWEN25 = """{{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>"""
TEMPLATES = {
    "qwen2.5": (QWEN25, [], "hermes", None),
    "qwen3": (QWEN25 + "{%- if '</think>' in content %}{{ '<think>\\n\\n</think>\\n\\n' }}", ["<think>"], "hermes", "qwen3"),
    "qwen3-coder": ("<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>", [], "qwen3_coder", None),
    "glm-4.5": ("<tool_call>{function-name}\\n<arg_key>{k}</arg_key>\\n<arg_value>{v}</arg_value> <think></think>", [], "glm45", "qwen3"),
    "llama-3.1": ('<|start_header_id|> {"name": function name, "parameters": dictionary of argument name}', ["<|python_tag|>"], "llama3_json", None),
    "llama-4": ("you MUST put it in the format of [func_name1(params_name1=params_value1)]", ["<|python_start|>"], "pythonic", None),
    "mistral": ("{{- '[TOOL_CALLS] [' }}", ["[TOOL_CALLS]"], "mistral", None),
    "magistral": ("[TOOL_CALLS] [THINK]", ["[THINK]", "[ARGS]"], "mistral", "mistral"),
    "deepseek-v3": ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '<｜tool▁sep｜>' + '```json'", [], "deepseek_v3", None),
    "deepseek-r1": ("'<｜tool▁calls▁begin｜>' '```json' {{content.split('</think>')[-1]}} '<｜Assistant｜><think>\\n'", [], "deepseek_v3", "deepseek_r1"),
    "deepseek-v3.1": ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜> <｜Assistant｜> </think>", [], "deepseek_v31", "qwen3"),
    "kimi-k2": ("<|tool_calls_section_begin|><|tool_call_begin|>", [], "kimi_k2", None),
    "kimi-k2-thinking": ("<|tool_calls_section_begin|><think></think>", [], "kimi_k2", "kimi_k2"),
    "granite-3.3": ("<|start_of_role|>assistant <|tool_call|>", [], "granite", None),
    "granite-3.2": ("<|start_of_role|> <|tool_call|> Here is my thought process: Here is my response:", [], "granite", "granite"),
    "granite-4": ("<|start_of_role|>" + QWEN25, [], "hermes", None),
    "phi-4-mini": ("<|system|>{{ message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}", ["<|/tool_call|>"], "phi4_mini_json", None),
    "gpt-oss": ("<|start|>assistant<|channel|>analysis<|message|>", [], "openai", "openai_gptoss"),
    "functiongemma": ("<start_function_declaration><start_function_call>call:", [], "functiongemma", None),
    "gemma-4": ("<|tool_call>call: <|channel>thought", [], "gemma4", "gemma4"),
    "seed-oss": ("<seed:think>", [], None, "seed_oss"),
    "smollm3": ("<tool_call>{json}</tool_call> <think>", [], "hermes", "qwen3"),
    "gemma-3": ("<start_of_turn>model", [], None, None),
    "plain": ("<|im_start|>assistant", ["<|im_end|>"], None, None),
}  # fmt: skip


@pytest.mark.parametrize("model", TEMPLATES)
def test_recognised(model: str) -> None:
    template, specials, tools, thoughts = TEMPLATES[model]
    assert recognise(TOOL_PARSERS, template, specials) == tools
    assert recognise(REASONING_PARSERS, template, specials) == thoughts


@pytest.mark.parametrize("name", TOOL_PARSERS.names())
def test_every_dialect_keeps_the_contract(name: str) -> None:
    dialect: Dialect = tool_parser(name)
    assert dialect.marks
    assert all(isinstance(mark, str) and mark for mark in dialect.marks)
    assert isinstance(dialect.triggers, tuple)
    assert dialect.recognise("", ()) == 0
    assert any(template and found == name for template, _, found, _ in TEMPLATES.values())


def test_other_names() -> None:
    assert {type(tool_parser(alias)) for alias in TOOL_ALIASES}
    assert {reasoning_parser(name).recognise("", ()) for name in REASONING_PARSERS.names()} == {0}
