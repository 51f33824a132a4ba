"""``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``: Gemma 4."""

from octavo.text.parse.tools.functiongemma import FunctionGemma


class Gemma4(FunctionGemma):
    """FunctionGemma's notation between other marks."""

    opening, closing, delimiter = "<|tool_call>", "<tool_call|>", '<|"|>'
