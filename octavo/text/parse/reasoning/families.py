"""The families of think tags, by the names that vLLM's --reasoning-parser gives them."""

from collections.abc import Collection

from octavo.text.parse.reasoning.tags import Tags
from octavo.text.parse.tools.kimi_k2 import BEGIN as KIMI_CALLS


class Qwen3(Tags):
    """``<think>``; also GLM 4.5, DeepSeek V3.1, SmolLM3, OLMo 3 and whoever else writes or opens the tag."""


class DeepSeekR1(Tags):
    """``<think>``, which the model may leave out: it always thinks unless the prompt has closed its thoughts."""

    always = True

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """R1's template strips thoughts from history and does not offer to go without."""
        return 30 if "<｜Assistant｜>" in template and "split('</think>')" in template else 0


class KimiK2Thinking(Tags):
    """``<think>``; calls may begin inside."""

    ends = (KIMI_CALLS,)

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Kimi's marks beside the tag."""
        return 30 if KIMI_CALLS in template and super().recognise(template, specials) else 0


class Granite(Tags):
    """Granite 3.2: sentences for marks."""

    openings = ("Here is my thought process:", "Here's my thought process:")
    closings = ("Here is my response:", "Here's my response:")

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """The instruction that its template gives."""
        return 40 if self.openings[0] in template or self.openings[1] in template else 0


class Mistral(Tags):
    """Magistral: ``[THINK]``."""

    openings = ("[THINK]",)
    closings = ("[/THINK]",)


class SeedOss(Tags):
    """Seed-OSS: ``<seed:think>``."""

    openings = ("<seed:think>",)
    closings = ("</seed:think>",)


class Gemma4(Tags):
    """Gemma 4: a channel named thought."""

    openings = ("<|channel>thought", "<|channel>")
    closings = ("<channel|>",)

    def recognise(self, template: str, specials: Collection[str]) -> int:  # noqa: ARG002
        """The channel's mark."""
        return 40 if "<|channel>" in template else 0
