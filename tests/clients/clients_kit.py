"""A live server with a fake engine that follows a script: what it says is a function of its prompt."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from api_live import Live, config
from api_textkit import TEMPLATE, tokenizer

from octavo.serve.calls import Backend
from octavo.testing.fake_engine import FakeEngine
from octavo.text.chat import load_chat
from octavo.text.parse.speech import Speech
from octavo.text.request import Limits, TextProcessor

Script = Callable[[str], str]
MODEL_LEN = 1 << 16


def calls(name: str, /, **arguments: Any) -> str:
    """What a model of the Hermes family writes to call a function."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def after_tool(call: str, text: str) -> Script:
    """Calls first, and speaks once it has a result."""
    return lambda prompt: text if "<|im_start|>tool" in prompt else call


class Scripted(Live):
    """`say` sets the script; the model thinks between think tags and calls like Hermes."""

    def __init__(self, folder: Path) -> None:
        own = tokenizer()
        speech = Speech(own, TEMPLATE, tool_parser="hermes", reasoning_parser="qwen3")
        template = load_chat(own)
        text = TextProcessor(own, template, Limits(MODEL_LEN, own.vocab_size), speech=speech)
        kept = config(response_store=str(folder / "responses.sqlite"), files_dir=str(folder / "files"))
        super().__init__(kept, Backend(FakeEngine(own.vocab_size, MODEL_LEN), text))
        self._lines: dict[int, list[int]] = {}

    def say(self, script: str | Script) -> None:
        """What the model answers from now on."""
        wanted = script if callable(script) else lambda _: script
        self._lines = {}
        end = self.tokenizer.eos_ids[0]

        def next_token(line: Sequence[int]) -> int:
            request = next(
                each for each in reversed(self.engine.requests) if each.tokens == list(line[: len(each.tokens)])
            )
            spoken = self._lines.get(id(request))
            if spoken is None:
                prompt = self.tokenizer.decode(request.tokens, skip_special=False)
                spoken = self._lines[id(request)] = [*self.tokenizer.encode(wanted(prompt), add_special=False), end]
            return spoken[min(len(line) - len(request.tokens), len(spoken) - 1)]

        self.engine.next_token = next_token
