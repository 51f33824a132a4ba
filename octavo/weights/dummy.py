"""Random weights from nothing but an Architecture, for sizing and for speed tests without a download.

The source looks like an unfused Hugging Face checkpoint, so that models fill themselves from it as from any other.
Tensors are made on the device they go to: many gigabytes take seconds on a GPU.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from octavo.models.arch import NORMS, Architecture, Layer
from octavo.weights.source import Entry, EntrySource

STD = 0.02  # transformers' usual initialisation; keeps activations finite at any depth


@dataclass(frozen=True)
class DummyEntry:
    """A tensor that is made when asked for; its values depend on seed, name and the kind of device only."""

    name: str
    shape: tuple[int, ...]
    seed: int
    device: torch.device | str = "cpu"
    constant: float | None = None
    qtype: str = "F32"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * 4

    def load(self, dtype: torch.dtype) -> Tensor:
        """Normal values of deviation `STD`, or the constant."""
        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        if self.constant is not None:
            return out.fill_(self.constant)
        digest = blake2b(f"{self.seed}:{self.name}".encode(), digest_size=8).digest()
        generator = torch.Generator(device=self.device)
        generator.manual_seed(int.from_bytes(digest, "little") >> 1)
        return out.normal_(0.0, STD, generator=generator)

    def raw(self) -> Tensor:
        """The bytes of the fp32 form ``[rows, 4 columns]``."""
        return self.load(torch.float32).view(-1, self.shape[-1]).view(torch.uint8)


class DummySource(EntrySource):
    """All tensors that an architecture has."""

    def __init__(
        self,
        arch: Architecture,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
        progress: bool | None = None,
    ) -> None:
        one = 1.0 - arch.norm_offset  # as a checkpoint of this family stores a norm weight of one
        entries: dict[str, Entry] = {}
        for name, shape in tensor_shapes(arch).items():
            constant = one if name.endswith("norm.weight") else None
            entries[name] = DummyEntry(name, shape, seed, device, constant)
        super().__init__(entries, progress)


def tensor_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of an unfused Hugging Face checkpoint of this architecture."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (arch.vocab_size, arch.hidden_size)}
    for index, layer in enumerate(arch.layers):
        prefix = f"model.layers.{index}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(arch.hidden_size, layer).items()}
    shapes["model.norm.weight"] = (arch.hidden_size,)
    if not arch.tie_embeddings:
        shapes["lm_head.weight"] = (arch.vocab_size, arch.hidden_size)
    return shapes


def _layer_shapes(hidden: int, layer: Layer) -> dict[str, tuple[int, ...]]:
    attention, mlp = layer.attention, layer.mlp
    q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    inner = mlp.intermediate_size
    linears = {
        "self_attn.q_proj": (q, hidden, attention.qkv_bias),
        "self_attn.k_proj": (kv, hidden, attention.qkv_bias),
        "self_attn.v_proj": (kv, hidden, attention.qkv_bias),
        "self_attn.o_proj": (hidden, q, attention.o_bias),
        "mlp.gate_proj": (inner, hidden, mlp.bias),
        "mlp.up_proj": (inner, hidden, mlp.bias),
        "mlp.down_proj": (hidden, inner, mlp.bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    shapes |= {f"{name}.weight": (hidden,) for name in filter(None, NORMS[layer.norms])}
    if attention.qk_norm != "none":
        per_head = attention.qk_norm == "head"
        shapes["self_attn.q_norm.weight"] = (attention.head_dim if per_head else q,)
        shapes["self_attn.k_norm.weight"] = (attention.head_dim if per_head else kv,)
    return shapes
