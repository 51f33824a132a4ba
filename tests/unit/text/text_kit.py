"""Small tokenizers, trained in a moment on a few lines of many scripts."""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from octavo.text.pretokenizers import QWEN2

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and doesn't mind at all.",
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "你好，世界。今天天气很好，我们去公园吧。こんにちは世界、東京は晴れです。안녕하세요 세계",
    "naïve café Ünïcödé Straße смотри Γειά σου مرحبا שלום हिन्दी ไทย",
    "👩‍👩‍👧‍👦 family 👍🏽 thumbs 🇫🇷🇩🇪 flags ❤️‍🔥 heart 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ 😀😀😀",
    "numbers 1234567890 3.14159 and   spaces\t\ttabs\r\n\r\nlines <|im_end|> end",
] * 4

TEXTS = [
    "",
    "hello",
    "  leading and trailing  ",
    "def f(x):\n\treturn x ** 2  # 平方\n\n\n",
    "你好，世界 👩‍👩‍👧 🇫🇷 naïve 👍🏽 ❤️‍🔥",
    "a<|im_end|>b <|im_start|>user\nhi<tool_call>{}</tool_call>",
    "We'LL see 12345 don't\r\n\r\n  x",
    "e\u0301 decomposed",
    "\x00\x01\x7f control",
]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL_MARKS = ["<tool_call>", "</tool_call>"]


def train_backend(vocab_size: int = 600) -> Backend:
    """A byte-level BPE cut like Qwen2's, with control tokens and two that are merely added."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in TOOL_MARKS])
    return backend


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_folder(folder: Path, backend: Backend, **config: object) -> Path:
    """A Hugging Face tokenizer folder."""
    backend.save(str(folder / "tokenizer.json"))
    base = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps({**base, **config}))
    return folder


def gguf_metadata(backend: Backend) -> dict[str, object]:
    """The same tokenizer as the metadata of a GGUF file, its vocabulary padded as such files are."""
    model = json.loads(backend.to_str())["model"]
    vocab = backend.get_vocab(True)
    tokens = [text for text, _ in sorted(vocab.items(), key=lambda item: item[1])]
    kinds = [3 if text in SPECIAL else 4 if text in TOOL_MARKS else 1 for text in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, "[PAD0]", "[PAD1]"],
        "tokenizer.ggml.token_type": [*kinds, 5, 5],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def sentencepiece_metadata(
    *, prefix: bool, size: int = 400
) -> tuple[sentencepiece.SentencePieceProcessor, dict[str, Any]]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<mark>"],
        minloglevel=2,
    )
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = [
        2
        if spm.is_unknown(i)
        else 3
        if spm.is_control(i)
        else 6
        if spm.is_byte(i)
        else 4
        if spm.id_to_piece(i) == "<mark>"
        else 1
        for i in range(spm.vocab_size())
    ]
    return spm, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [spm.id_to_piece(i) for i in range(spm.vocab_size())],
        "tokenizer.ggml.scores": [spm.get_score(i) for i in range(spm.vocab_size())],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
