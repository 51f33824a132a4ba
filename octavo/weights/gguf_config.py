"""GGUF metadata as the config.json a Hugging Face checkpoint of the same model would hold. No torch."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.base.errors import ModelFileError, UnknownName
from octavo.weights.gguf import GgufFile, GgufTensor, Strings
from octavo.weights.gguf_names import NAMES
from octavo.weights.gguf_types import BLOCK_TYPES

# architecture -> (class, model_type)
CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
    "granite": ("GraniteForCausalLM", "granite"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
}
MAX_ROPE_FACTORS = 1024
_LOW_HIGH = ("low_freq_factor", "high_freq_factor")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type
# Control tokens that end a turn whatever the file says; llama.cpp treats them so too.
END_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """The config of the model in `file`. Raises UnknownName or ModelFileError."""
    return _Config(file).build()


def gguf_generation_config(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Default sampling values that the file names (general.sampling.*), and the ends that `gguf_config` found."""
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    found = {hf: file.metadata.get(f"general.sampling.{key}") for key, hf in names.items()}
    values = {name: value for name, value in found.items() if type(value) in (int, float)}
    ends = config.get("eos_token_id")
    return values | ({"eos_token_id": ends} if ends else {})


def end_tokens(file: GgufFile) -> list[int]:
    """Ids that end generation, the file's own first."""
    ids = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if isinstance(tokens, Strings) and isinstance(kinds, np.ndarray) and len(kinds) == len(tokens):
        places = np.flatnonzero(kinds == CONTROL_TOKEN).tolist()
        control = dict(zip(tokens.pick(places), places))
        ids += [control.get(text) for text in END_TEXTS]
    return list(dict.fromkeys(id_ for id_ in ids if type(id_) is int))


class _Config:
    """Reads typed keys of one file; `key` is the part after the architecture's name."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        arch = file.metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise self.fail("general.architecture is missing")
        if arch not in CLASSES:
            raise UnknownName("GGUF architecture", arch, CLASSES)
        self.arch = arch

    def fail(self, reason: str) -> ModelFileError:
        return ModelFileError(str(self.file.path), reason)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(value) and (value == value[0]).all():
            value = int(value[0])  # one value a layer, all equal
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self.fail(f"{self.arch}.{key} is {str(value)[:60]}, must be one whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not -1e12 < value < 1e12:
            raise self.fail(f"{self.arch}.{key} is {str(value)[:60]}, must be a finite number")
        return shortest(float(value))

    def theta(self) -> float:
        value = self.real("rope.freq_base", 10_000.0)
        if value <= 0:
            raise self.fail(f"{self.arch}.rope.freq_base is {value:g}, must be above 0")
        return value

    def has(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.file.metadata

    def tensor(self, name: str) -> GgufTensor:
        if name not in self.file.tensors:
            raise self.fail(f"tensor {name!r} is missing")
        return self.file.tensors[name]

    def build(self) -> dict[str, Any]:
        class_name, model_type = CLASSES[self.arch]
        heads, hidden = self.whole("attention.head_count"), self.whole("embedding_length")
        head_dim = self.whole("attention.key_length", hidden // heads if heads else 0)
        context = self.whole("context_length")
        if not head_dim or not hidden or not self.whole("block_count"):
            raise self.fail("a count of layers, heads or dimensions is zero")
        ends = end_tokens(self.file)
        config: dict[str, Any] = {
            "architectures": [class_name],
            "model_type": model_type,
            "vocab_size": self.tensor("token_embd.weight").shape[0],
            "hidden_size": hidden,
            "num_hidden_layers": self.whole("block_count"),
            "intermediate_size": self.whole("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.whole("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": context,
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.theta(),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "torch_dtype": self.dtype(),
            "bos_token_id": self.file.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": ends or None,
        }
        config |= self.rope_scaling(head_dim, context)
        special = getattr(self, f"_{self.arch}", None)
        return config | (special(config) if special else {})

    def dtype(self) -> str:
        """float32 or float16 where all matrices are that; else bfloat16, whose range no activation leaves."""
        kinds = {BLOCK_TYPES[t.qtype].name for t in self.file.tensors.values() if len(t.shape) > 1}
        return {"F32": "float32", "F16": "float16"}.get("/".join(kinds), "bfloat16")

    def rope_scaling(self, head_dim: int, context: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        rotated = self.whole("rope.dimension_count", head_dim)
        if rotated != head_dim:
            out["partial_rotary_factor"] = rotated / head_dim
        original = self.whole("rope.scaling.original_context_length", context)
        if "rope_freqs.weight" in self.file.tensors:
            factors = self.factors("rope_freqs.weight", rotated)
            return out | {"rope_scaling": self.divided(factors, rotated, original)}
        if "rope_factors_long.weight" in self.file.tensors:
            long, short = (self.factors(f"rope_factors_{kind}.weight", rotated) for kind in ("long", "short"))
            attention = self.real("rope.scaling.attn_factor", 1.0)
            out["original_max_position_embeddings"] = original
            return out | {"rope_scaling": longrope(short, long, original, context / max(original, 1), attention)}
        return out | self.plain_scaling(original)

    def divided(self, factors: list[float], rotated: int, original: int) -> dict[str, Any]:
        """One divisor a frequency, which is what Llama 3's scaling becomes in GGUF.

        The published constants are tried; if they do not give the divisors, longrope with equal lists says the same.
        """
        if np.allclose(llama3_divisors(self.theta(), rotated, max(factors)), factors, rtol=1e-5, atol=0):
            return {"rope_type": "llama3", "factor": shortest(max(factors)), **LLAMA3}
        return longrope(factors, factors, original, 1.0, 1.0)

    def plain_scaling(self, original: int) -> dict[str, Any]:
        kind = self.file.metadata.get(f"{self.arch}.rope.scaling.type", "none")
        if not isinstance(kind, str):
            raise self.fail(f"{self.arch}.rope.scaling.type is {str(kind)[:60]}, must be a name")
        factor = self.real("rope.scaling.factor", self.real("rope.scale_linear", 1.0))
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return {}
        if kind == "linear":
            return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
        if kind != "yarn":
            raise self.fail(f"rope scaling {kind[:40]!r} is not known")
        scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for key in ("beta_fast", "beta_slow"):
            if self.has(f"rope.scaling.yarn_{key}"):
                scaling[key] = self.real(f"rope.scaling.yarn_{key}")
        for key in ("yarn_attn_factor", "attn_factor"):  # the converter writes Hugging Face's attention_factor there
            if self.has(f"rope.scaling.{key}"):
                scaling["attention_factor"] = self.real(f"rope.scaling.{key}")
                break
        return {"rope_scaling": scaling}

    def factors(self, name: str, rotated: int) -> list[float]:
        """The values of a small fp32 tensor, one a rotated pair."""
        tensor = self.tensor(name)
        if rotated < 2 or tensor.shape != (rotated // 2,) or tensor.qtype != 0 or tensor.shape[0] > MAX_ROPE_FACTORS:
            raise self.fail(f"tensor {name!r} must hold {rotated // 2} F32 numbers")
        with open(tensor.path, "rb") as file:
            file.seek(tensor.offset)
            values = np.frombuffer(file.read(tensor.nbytes), dtype="<f4")
        if len(values) != tensor.shape[0] or not np.isfinite(values).all() or (values <= 0).any():
            raise self.fail(f"tensor {name!r} holds a factor that is not a positive number")
        return [float(value) for value in values]

    def _llama(self, config: dict[str, Any]) -> dict[str, Any]:
        tensors = self.file.tensors
        return {
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in tensors,
            "head_dim": config["head_dim"],
        }

    def _qwen3(self, config: dict[str, Any]) -> dict[str, Any]:
        return {"attention_bias": "blk.0.attn_q.bias" in self.file.tensors, "head_dim": config["head_dim"]}

    def _smollm3(self, config: dict[str, Any]) -> dict[str, Any]:
        # The file does not say which layers have no position; llama.cpp fixes every fourth, as the one model has it.
        layers = config["num_hidden_layers"]
        return self._llama(config) | {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)]}

    def _granite(self, config: dict[str, Any]) -> dict[str, Any]:
        return self._llama(config) | {
            "attention_multiplier": self.real("attention.scale", config["head_dim"] ** -0.5),
            "embedding_multiplier": self.real("embedding_scale", 1.0),
            "residual_multiplier": self.real("residual_scale", 1.0),
            "logits_scaling": self.real("logit_scale", 1.0),
        }

    def _olmo2(self, config: dict[str, Any]) -> dict[str, Any]:
        if not self.has("attention.sliding_window"):
            return {"attention_bias": False}
        # OLMo 3 is OLMo 2 with a window in three layers of four; GGUF tells them apart by the key alone.
        layers = config["num_hidden_layers"]
        sliding = self.file.metadata.get(f"{self.arch}.attention.sliding_window_pattern")
        if not isinstance(sliding, np.ndarray) or len(sliding) != layers:
            sliding = [(layer + 1) % 4 != 0 for layer in range(layers)]
        return {
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "attention_bias": False,
            "sliding_window": self.whole("attention.sliding_window"),
            "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        }

    def _phi3(self, _config: dict[str, Any]) -> dict[str, Any]:
        window = self.whole("attention.sliding_window", 0)
        return {"sliding_window": window or None}

    def _gemma3(self, config: dict[str, Any]) -> dict[str, Any]:
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        # Only the 27B model, told by its depth, scales by the width per head instead of the head size (llama.cpp too).
        scalar = config["hidden_size"] // heads if layers == 62 else config["head_dim"]
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "sliding_window": self.whole("attention.sliding_window"),
            "sliding_window_pattern": 6,
            "layer_types": [
                "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(layers)
            ],
            "rope_local_base_freq": self.real("rope.freq_base_swa", 10_000.0),
            "attention_bias": False,
            "final_logit_softcapping": self.real("final_logit_softcapping")
            if self.has("final_logit_softcapping")
            else None,
            "attn_logit_softcapping": None,
        }


def longrope(short: list[float], long: list[float], original: int, factor: float, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "factor": factor,
        "short_factor": short,
        "long_factor": long,
        "attention_factor": attention,
        "original_max_position_embeddings": original,
    }


def llama3_divisors(theta: float, rotated: int, factor: float) -> list[float]:
    """What Llama 3.1's scaling divides each frequency by (transformers' _compute_llama3_parameters)."""
    original, low, high = (LLAMA3[key] for key in ("original_max_position_embeddings", *_LOW_HIGH))
    divisors = []
    for pair in range(rotated // 2):
        turns = original / (2 * math.pi * theta ** (2 * pair / rotated))  # in the original context
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return divisors


def shortest(value: float) -> float:
    """The shortest decimal that is the same fp32 number: 1e-06 rather than 9.999999974752427e-07."""
    return float(str(np.float32(value)))


assert set(CLASSES) == set(NAMES)
