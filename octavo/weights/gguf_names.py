"""GGUF tensor names as Hugging Face names, and what llama.cpp's converter did to the values on the way. No torch.

Source: `gguf-py/gguf/tensor_mapping.py` and `convert_hf_to_gguf.py`. Undoing it here lets everything downstream see
exactly a Hugging Face checkpoint.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

Fix = Literal["none", "unpermute_q", "unpermute_k", "minus_one"]


@dataclass(frozen=True)
class Names:
    """How one GGUF architecture names the tensors of a block, and which layouts it changed."""

    block: dict[str, str]
    permuted: bool = False  # q and k rows reordered for interleaved rotation
    norm_offset: bool = False  # one added to each norm weight
    unused: frozenset[str] = field(default=frozenset())  # read by the config, or derived from it


_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_ROPE = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})

_LLAMA = Names(_ATTENTION | _MLP | _PRE_NORMS, permuted=True, unused=_ROPE)
_QWEN2 = Names(_ATTENTION | _MLP | _PRE_NORMS, unused=_ROPE)
NAMES: dict[str, Names] = {
    "llama": _LLAMA,
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": Names(_QWEN2.block | _QK_NORMS, unused=_ROPE),
    "olmo2": Names(_ATTENTION | _MLP | _QK_NORMS | _POST_NORMS, unused=_ROPE),
    "gemma3": Names(
        _ATTENTION
        | _MLP
        | _QK_NORMS
        | _POST_NORMS
        | {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"},
        norm_offset=True,
        unused=_ROPE,
    ),
    "phi3": Names(
        _PRE_NORMS
        | {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        unused=_ROPE,
    ),
}

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")


def hf_name(arch: str, name: str) -> tuple[str, Fix] | None:
    """The Hugging Face name and the layout fix of a tensor; None for one that holds no weight of the model.

    Raises KeyError for a tensor that this architecture does not have.
    """
    names = NAMES[arch]
    fix: Fix = "minus_one" if names.norm_offset and name.endswith("norm.weight") else "none"
    if name in names.unused or name.endswith(".attn_rot_embd.weight"):
        return None
    if name in _TOP:
        return _TOP[name], fix
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in names.block:
        raise KeyError(name)
    if names.permuted and match[2] in ("attn_q", "attn_k"):
        fix = "unpermute_q" if match[2] == "attn_q" else "unpermute_k"
    return f"model.layers.{match[1]}.{names.block[match[2]]}.{match[3]}", fix
