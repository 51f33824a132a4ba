"""Tiny random models of every family, made by transformers: the truth that Octavo is compared with.

`CASES` names them. Each has two to four layers, odd head dims, grouped heads and a vocabulary of a few hundred, so
that a whole test takes milliseconds. Weights are drawn wide enough that the layers matter to the logits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCAB = 257
MAX_POSITION = 256


@dataclass(frozen=True)
class Tiny:
    """A model: the class that transformers has for it, and what differs from `_COMMON` in its config."""

    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)
    crosses: int | None = None  # a length past which something changes (window, rope), worth testing beyond


_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITION,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.6,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.0, 2.5, 6.0],
}
_LAYERED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
}
_GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 9, "tie_word_embeddings": True}

CASES: dict[str, Tiny] = {
    "llama": Tiny("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": Tiny("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "llama-dynamic": Tiny(
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 32},
        crosses=32,
    ),
    "llama-llama3": Tiny("LlamaForCausalLM", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}, crosses=32),
    "llama-yarn": Tiny("LlamaForCausalLM", {"rope_parameters": _YARN, "head_dim": 22}, crosses=64),
    "mistral": Tiny("MistralForCausalLM", {"sliding_window": 11, "head_dim": 14}, crosses=11),
    "qwen2": Tiny("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": Tiny(
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2, "num_hidden_layers": 4},
        crosses=7,
    ),
    "qwen3": Tiny("Qwen3ForCausalLM", {"head_dim": 18, "num_key_value_heads": 1}),
    "gemma2": Tiny(
        "Gemma2ForCausalLM",
        {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0, "num_hidden_layers": 3},
        crosses=9,
    ),
    "gemma3": Tiny(
        "Gemma3ForCausalLM",
        {**_GEMMA, "num_hidden_layers": 4, "sliding_window_pattern": 3, "rope_parameters": _LAYERED},
        crosses=9,
    ),
    "gemma3-multimodal": Tiny("Gemma3ForConditionalGeneration", {**_GEMMA, "num_hidden_layers": 2}, crosses=9),
    "phi3": Tiny("Phi3ForCausalLM", {"sliding_window": 21, "num_key_value_heads": 4}, crosses=21),
    "phi3-longrope": Tiny(
        "Phi3ForCausalLM",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.6},
        crosses=32,
    ),
    "smollm3": Tiny("SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
    "granite": Tiny(
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
        },
    ),
    "olmo2": Tiny("Olmo2ForCausalLM"),
    "olmo3": Tiny("Olmo3ForCausalLM", {"sliding_window": 10, "num_hidden_layers": 4}, crosses=10),
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@dataclass(frozen=True)
class Entry:
    """A tensor in the shape that a checkpoint's source gives it."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def qtype(self) -> str:
        return {torch.float16: "F16", torch.bfloat16: "BF16"}.get(self.tensor.dtype, "F32")

    def raw(self) -> Tensor:
        """The stored bytes ``[rows, row bytes]``."""
        return self.tensor.contiguous().view(-1, self.shape[-1]).view(torch.uint8)

    def load(self, dtype: torch.dtype) -> Tensor:
        return self.tensor.to(dtype)


@dataclass(frozen=True)
class Checkpoint:
    """A state dict as a source of weights."""

    state: dict[str, Tensor]

    @property
    def tensors(self) -> Iterator[tuple[str, Entry]]:
        return ((name, Entry(tensor)) for name, tensor in self.state.items())


@dataclass(frozen=True)
class TinyModel:
    """transformers' own model (fp32, eager) and what its files would hold."""

    name: str
    reference: Any
    config: dict[str, Any]

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(dict(self.reference.state_dict()))

    def save(self, folder: Path, *, tokenizer: bool = True) -> Path:
        """Write it as a Hugging Face folder (safetensors), with a small tokenizer and chat template."""
        self.reference.save_pretrained(folder)
        if tokenizer:
            save_tokenizer(folder)
        return folder


@cache
def tiny(name: str, seed: int = 0, **changes: int) -> TinyModel:
    """The model of a case, with `changes` to its config. The same arguments give the same weights."""
    import transformers

    case = CASES[name]
    values = {**_COMMON, **case.changes, **changes}
    model_class = getattr(transformers, case.architecture)
    config_class = model_class.config_class
    if case.architecture == "Gemma3ForConditionalGeneration":
        tied = values.pop("tie_word_embeddings")
        config = config_class(text_config=values, vision_config=_VISION, tie_word_embeddings=tied)
    else:
        config = config_class(**_copied(values))
    config.architectures = [case.architecture]
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        reference = model_class(config).float().eval()
        _randomize(reference)
    return TinyModel(name, reference, config.to_dict())


def _randomize(model: Any) -> None:
    """Wide weights, and norms and biases that are not at their neutral start."""
    done: set[int] = set()
    for name, parameter in model.named_parameters():
        if id(parameter) in done:
            continue
        done.add(id(parameter))
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name else 1.6 / parameter.shape[-1] ** 0.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            parameter.data += 0.2 * torch.randn_like(parameter)
        parameter.requires_grad_(False)


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """transformers writes defaults into the dicts it is given."""
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in values.items()}


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tokenizer(folder: Path, *, vocab_size: int = VOCAB) -> None:
    """A byte-level BPE tokenizer of at most `vocab_size` tokens, with ChatML's control tokens and template."""
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # A vocabulary below 256 + special leaves some bytes out; the text below covers what tests write.
    alphabet = [] if vocab_size < 300 else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    text = ["The quick brown fox jumps over the lazy dog. 0123456789", "user system assistant hello world, yes? no!"]
    tokenizer.train_from_iterator(text * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
