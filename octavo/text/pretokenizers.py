"""How byte-level BPE models cut text into words before merging, by the name GGUF gives each scheme.

The patterns are those of the models' own tokenizer.json files. Each is applied in turn; what matches and what
lies between matches become words of their own.
"""

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
QWEN2 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_TAIL}"
QWEN35 = (
    rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_TAIL_SLASH}"
)
TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_TAIL_SLASH}"
SEED_CODER = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
DIGITS_3 = r"\p{N}{1,3}"
CJK_RUN = r"[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One scheme: regular expressions, and the habits of the models that use it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token as a whole is taken without merging
    add_bos: bool = False  # unless the file says otherwise
    nfc: bool = False  # text is put into Unicode normal form C first


_GPT2 = PreTokenizer((GPT2,))
_DIGITS_GPT2 = PreTokenizer((DIGIT, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN = PreTokenizer((LLAMA3,))
_QWEN2 = PreTokenizer((QWEN2,), nfc=True)
_QWEN2_PLAIN = PreTokenizer((QWEN2,))
_GPT4O = PreTokenizer((GPT4O,))
_DEEPSEEK3 = PreTokenizer((DIGITS_3, CJK_RUN, DEEPSEEK3))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "trillion": _GPT2,
    "exaone4": _GPT2,
    "granite-docling": _GPT2,
    "gigachat": _GPT2,
    "mellum": _GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,  # Granite 3 as well
    "command-r": _DIGITS_GPT2,
    "smollm": _DIGITS_GPT2,
    "codeshell": _DIGITS_GPT2,
    "exaone": _DIGITS_GPT2,
    "minerva-7b": _DIGITS_GPT2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _LLAMA3_PLAIN,  # Phi-4, OLMo 2 and Granite 4 as well
    "smaug-bpe": _LLAMA3_PLAIN,
    "glm4": _LLAMA3_PLAIN,
    "chatglm-bpe": _LLAMA3_PLAIN,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2_PLAIN,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "hunyuan": _QWEN2_PLAIN,
    "grok-2": _QWEN2_PLAIN,
    "solar-open": _QWEN2_PLAIN,
    "qwen35": PreTokenizer((QWEN35,), nfc=True),
    "gpt-4o": _GPT4O,  # Phi-4 mini as well
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
    "minimax-m2": _GPT4O,
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "seed-coder": PreTokenizer((SEED_CODER,)),
    "deepseek-v3": _DEEPSEEK3,
    "hunyuan-dense": _DEEPSEEK3,
}
