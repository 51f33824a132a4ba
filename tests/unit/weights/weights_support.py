"""Tiny checkpoints of every family, and GGUF files of them as llama.cpp's converter writes them."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 9.0, 27.0],
}

# case -> (GGUF architecture, transformers class, config beyond SMALL)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "llama3": ("llama", "Llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 131072}),
    "llama_tied_biased": ("llama", "Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama_linear": (
        "llama",
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "mistral": ("llama", "Mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 16}),
    "qwen3_yarn": (
        "qwen3",
        "Qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1000000.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "gemma3": (
        "gemma3",
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "sliding_window": 24,
            "query_pre_attn_scalar": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "phi3": (
        "phi3",
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64, "sliding_window": 48},
    ),
    "smollm3": ("smollm3", "SmolLM3", {"num_hidden_layers": 5, "rms_norm_eps": 1e-6}),
    "granite": (
        "granite",
        "Granite",
        {
            "attention_multiplier": 0.02,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
    ),
    "olmo2": ("olmo2", "Olmo2", {}),
}


def tiny_model(case: str) -> transformers.PreTrainedModel:
    """A random fp32 model whose norm weights and biases are not the trivial ones and zeros."""
    _, name, extra = FAMILIES[case]
    values = SMALL | extra
    if name in ("Llama", "Granite", "Olmo2", "Qwen2", "SmolLM3", "Phi3"):
        values.pop("head_dim")
    config_class = transformers.Gemma3TextConfig if name == "Gemma3" else getattr(transformers, f"{name}Config")
    torch.manual_seed(len(case))
    model = getattr(transformers, f"{name}ForCausalLM")(config_class(**values)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.5, 0.2)
    return model


def write_gguf(path: Path, case: str, model: transformers.PreTrainedModel, *, qtype: str = "F32") -> None:
    """Write `model` as convert_hf_to_gguf.py does, matrices in `qtype`."""
    arch = FAMILIES[case][0]
    writer = gguf.GGUFWriter(path, arch)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _add_rope(writer, config, head_dim)
    _add_family(writer, arch, config)
    _add_tokens(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        data = converted(arch, name, tensor, config).numpy()
        wanted = gguf.GGMLQuantizationType[qtype if data.ndim > 1 else "F32"]
        writer.add_tensor(new, gguf.quants.quantize(data, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(arch: str, name: str, tensor: Tensor, config: Any) -> Tensor:
    """What the converter does to values: llama.cpp rotates neighbouring pairs, and stores Gemma's norms plus one."""
    if arch in ("llama", "smollm3", "granite") and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        shape = tensor.shape
        return tensor.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape).contiguous()
    if arch == "gemma3" and name.endswith("norm.weight"):
        return tensor + 1
    return tensor


def _add_rope(writer: gguf.GGUFWriter, config: Any, head_dim: int) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    elif rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings))
        )
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))


def llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    old = rope["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(float(1 / ((1 - smooth) / rope["factor"] + smooth)))
    return np.array(factors, dtype=np.float32)


def _add_family(writer: gguf.GGUFWriter, arch: str, config: Any) -> None:
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if arch == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if arch == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _add_tokens(writer: gguf.GGUFWriter, config: Any) -> None:
    tokens = [f"t{index}" for index in range(config.vocab_size)]
    tokens[3] = "<|im_end|>"
    kinds = [3 if index < 4 else 1 for index in range(config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
