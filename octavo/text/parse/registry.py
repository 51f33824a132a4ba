"""The tables of dialects, under vLLM's names, and the choice of one from what a model's files say."""

from collections.abc import Collection
from typing import Any

from octavo.base.registry import Registry

_TOOLS = "octavo.text.parse.tools"
_THINK = "octavo.text.parse.reasoning.families"

TOOL_PARSERS = Registry(
    "tool call parser",
    {
        "hermes": f"{_TOOLS}.hermes:Hermes",
        "qwen3_coder": f"{_TOOLS}.qwen3_coder:Qwen3Coder",
        "llama3_json": f"{_TOOLS}.llama3_json:Llama3Json",
        "pythonic": f"{_TOOLS}.pythonic:Pythonic",
        "mistral": f"{_TOOLS}.mistral:Mistral",
        "deepseek_v3": f"{_TOOLS}.deepseek:DeepSeekV3",
        "deepseek_v31": f"{_TOOLS}.deepseek:DeepSeekV31",
        "glm45": f"{_TOOLS}.glm45:Glm45",
        "kimi_k2": f"{_TOOLS}.kimi_k2:KimiK2",
        "granite": f"{_TOOLS}.granite:Granite",
        "phi4_mini_json": f"{_TOOLS}.phi4_mini_json:Phi4Mini",
        "openai": f"{_TOOLS}.harmony:Harmony",
        "functiongemma": f"{_TOOLS}.functiongemma:FunctionGemma",
        "gemma4": f"{_TOOLS}.functiongemma:Gemma4",
    },
)

REASONING_PARSERS = Registry(
    "reasoning parser",
    {
        "qwen3": f"{_THINK}:Qwen3",
        "deepseek_r1": f"{_THINK}:DeepSeekR1",
        "kimi_k2": f"{_THINK}:KimiK2Thinking",
        "granite": f"{_THINK}:Granite",
        "mistral": f"{_THINK}:Mistral",
        "seed_oss": f"{_THINK}:SeedOss",
        "gemma4": f"{_THINK}:Gemma4",
        "openai_gptoss": f"{_TOOLS}.harmony:Harmony",
    },
)

# Other names of vLLM's for the same format.
TOOL_ALIASES = {
    "qwen3_xml": "qwen3_coder",
    "qwen3_json": "hermes",
    "granite4": "hermes",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "olmo3": "pythonic",
    "glm47": "glm45",
}
REASONING_ALIASES = {
    "deepseek_v3": "qwen3",
    "glm45": "qwen3",
    "glm47": "qwen3",
    "olmo3": "qwen3",
    "nemotron_v3": "qwen3",
    "minimax_m2": "deepseek_r1",
}


def tool_parser(name: str) -> Any:
    """The named dialect. Raises UnknownName."""
    return TOOL_PARSERS.get(TOOL_ALIASES.get(name, name))()


def reasoning_parser(name: str) -> Any:
    """The named dialect of thoughts. Raises UnknownName."""
    return REASONING_PARSERS.get(REASONING_ALIASES.get(name, name))()


def recognise(registry: Registry, template: str, specials: Collection[str]) -> str | None:
    """The name of the surest dialect, the first of equals; None if none fits."""
    best, found = 0, None
    for name in registry.names():
        score = registry.get(name)().recognise(template, specials)
        if score > best:
            best, found = score, name
    return found
