"""Fill in the middle: how a code model is asked for what stands between a prefix and a suffix.

Bavarian et al. 2022, *Efficient Training of Language Models to Fill in the Middle*. The form is recognised from the
tokenizer: a model that was trained for it has the marks as tokens of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FillForm:
    """The marks as token ids. `suffix_first`: the suffix comes before the prefix, and no mark stands at the end."""

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    ends: tuple[int, ...]  # tokens that end what is filled in

    def tokens(self, tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The whole prompt: ``before`` and ``after`` are the texts round the gap."""
        start = [tokenizer.bos_id] if tokenizer.bos_id is not None and _adds_bos(tokenizer) else []
        if self.suffix_first:
            return [*start, self.suffix, *after, self.prefix, *before]
        last = [] if self.middle is None else [self.middle]
        return [*start, self.prefix, *before, self.suffix, *after, *last]


# prefix, suffix, middle, suffix first: Qwen and CodeGemma; StarCoder and Granite; SantaCoder; DeepSeek; Code Llama
# (both spellings of its pieces); Codestral.
_FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", False),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", False),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", False),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", False),
    ("▁<PRE>", "▁<SUF>", "▁<MID>", False),
    ("<PRE>", "<SUF>", "<MID>", False),
    ("[PREFIX]", "[SUFFIX]", None, True),
)
_ENDS = (
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<|repo_name|>",
    "<fim_pad>",
    "<file_sep>",
    "▁<EOT>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
)


def find_fill(tokenizer: Tokenizer) -> FillForm | None:
    """The form of this tokenizer, or None."""
    id_of = tokenizer.backend.token_to_id
    for prefix, suffix, middle, suffix_first in _FORMS:
        first, second = id_of(prefix), id_of(suffix)
        last = None if middle is None else id_of(middle)
        if first is None or second is None or (middle is not None and last is None):
            continue
        ends = [token for text in (prefix, suffix, middle, *_ENDS) if text and (token := id_of(text)) is not None]
        return FillForm(first, second, last, suffix_first, tuple(dict.fromkeys(ends)))
    return None


def _adds_bos(tokenizer: Tokenizer) -> bool:
    return tokenizer.encode("a")[:1] == [tokenizer.bos_id]
