"""Where each tensor of a checkpoint goes. Names are Hugging Face's; a part may come alone (q_proj) or fused (qkv_proj).

A target fills one or more *pieces*; a piece is a range of one parameter, named as its unfused tensor would be.
Loading is complete when every piece was filled exactly once.
"""

from collections.abc import Callable

from octavo.kernels.entry import Entry
from octavo.models.blocks import Block
from octavo.nn.embed import Embedding, Head
from octavo.nn.linear import Linear
from octavo.nn.norm import RmsNorm
from octavo.weights.load import Target


def head_targets(embedding: Embedding, norm: RmsNorm, head: Head) -> dict[str, Target]:
    """Both ends. A tied model's lm_head, if the file has one, is the embedding again and is left out."""
    targets = {
        "model.embed_tokens.weight": _single("model.embed_tokens.weight", embedding.shape, embedding.load_weight),
        "model.norm.weight": _single("model.norm.weight", tuple(norm.weight.shape), norm.load_weight),
    }
    if head.linear is not None:
        targets |= _linear("", head.linear, ("lm_head",))
    else:
        targets["lm_head.weight"] = Target(embedding.shape, (), _skip)
    return targets


def layer_targets(index: int, block: Block) -> dict[str, Target]:
    """All tensors of one layer."""
    prefix = f"model.layers.{index}."
    attention, mlp = block.attention, block.mlp
    targets = _linear(f"{prefix}self_attn.", attention.qkv, ("q_proj", "k_proj", "v_proj"), fused="qkv_proj")
    targets |= _linear(f"{prefix}self_attn.", attention.o, ("o_proj",))
    targets |= _linear(f"{prefix}mlp.", mlp.gate_up, ("gate_proj", "up_proj"), fused="gate_up_proj")
    targets |= _linear(f"{prefix}mlp.", mlp.down, ("down_proj",))
    norms = {name: block.norm(name) for name in block.norms}
    if attention.q_norm is not None and attention.k_norm is not None:
        norms |= {"self_attn.q_norm": attention.q_norm, "self_attn.k_norm": attention.k_norm}
    for name, norm in norms.items():
        full = f"{prefix}{name}.weight"
        targets[full] = _single(full, tuple(norm.weight.shape), norm.load_weight)
    return targets


def _linear(prefix: str, linear: Linear, names: tuple[str, ...], fused: str | None = None) -> dict[str, Target]:
    """Weight and bias of a layer, by shard and, if checkpoints have it so, whole."""
    targets: dict[str, Target] = {}
    parts: list[tuple[str, int | None, tuple[str, ...]]] = [
        (name, shard, (f"{prefix}{name}",)) for shard, name in enumerate(names)
    ]
    if fused is not None:
        parts.append((f"{fused}", None, tuple(f"{prefix}{name}" for name in names)))
    for name, shard, pieces in parts:
        rows = linear.rows(shard)
        height = rows.stop - rows.start
        targets[f"{prefix}{name}.weight"] = Target(
            (height, linear.in_features),
            tuple(f"{piece}.weight" for piece in pieces),
            lambda entry, shard=shard: linear.load_weight(shard, entry),  # type: ignore[misc]
        )
        if linear.bias is not None:
            targets[f"{prefix}{name}.bias"] = Target(
                (height,),
                tuple(f"{piece}.bias" for piece in pieces),
                lambda entry, shard=shard: linear.load_bias(shard, entry),  # type: ignore[misc]
            )
    return targets


def _single(name: str, shape: tuple[int, ...], fill: Callable[[Entry], None]) -> Target:
    return Target(shape, (name,), fill)


def _skip(entry: Entry) -> None:
    """Nothing to do: the tensor repeats another one."""
