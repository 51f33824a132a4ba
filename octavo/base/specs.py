"""What one layer keeps per token, and how layers share blocks. No torch.

All layers with the same needs form groups of equal size. A physical block holds `block_size` tokens for every
layer of ONE group, so blocks of one pool serve any group; a request has one block table per group.
Layers that fill a group up count as padding: their place in the block stays unused.
"""

from collections.abc import Sequence

from msgspec import Struct


class KVSpec(Struct, frozen=True, array_like=True):
    """Needs of one attention layer."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None  # sliding window in tokens, the current one included; None: all of the past


class KVGroup(Struct, frozen=True, array_like=True):
    spec: KVSpec
    layers: tuple[int, ...]  # model layer indexes; position in the tuple is the slot in the block


class KVLayout(Struct, frozen=True, array_like=True):
    """How KV memory is cut. Storage is ``[num_blocks, num_slots, 2, num_kv_heads, block_size, head_dim]``."""

    groups: tuple[KVGroup, ...]
    block_size: int
    num_blocks: int  # block 0 included, which is never given out
    dtype_bytes: int

    @property
    def num_slots(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def layer_groups(self) -> list[int]:
        """The KV group of each layer."""
        found = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return [found[layer] for layer in range(len(found))]

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.groups, self.block_size, self.dtype_bytes)


def group_layers(specs: Sequence[KVSpec]) -> tuple[KVGroup, ...]:
    """Groups of layers with one spec each, no larger than the rarest spec's number of layers.

    Gemma 3 (5 sliding layers to 1 full) becomes several sliding groups and one full one. Mixed head shapes
    are refused: blocks of one pool have one shape.
    """
    by_spec: dict[KVSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(layer)
    shapes = {(spec.num_kv_heads, spec.head_dim) for spec in by_spec}
    if len(shapes) > 1:
        raise ValueError(f"layers of one model must share one KV shape, found {sorted(shapes)}")
    size = min(len(layers) for layers in by_spec.values())
    # A lone odd layer must not cut the others into groups of one.
    largest = max(len(layers) for layers in by_spec.values())
    if size * 16 < largest:
        size = largest
    groups = []
    for spec, layers in by_spec.items():
        for start in range(0, len(layers), size):
            groups.append(KVGroup(spec, tuple(layers[start : start + size])))
    return tuple(groups)


INT8_EXTRA_DIMS = 2


def cache_specs(specs: Sequence[KVSpec], dtype: str) -> list[KVSpec]:
    """The layers' needs in a cache of `dtype`: int8 keeps a scale of two bytes for each head and token, which counts
    as two more dims."""
    extra = INT8_EXTRA_DIMS if dtype == "int8" else 0
    return [KVSpec(spec.num_kv_heads, spec.head_dim + extra, spec.window) for spec in specs]


def block_bytes(groups: Sequence[KVGroup], block_size: int, dtype_bytes: int) -> int:
    """Bytes of one physical block over all its layer slots, keys and values."""
    spec = groups[0].spec
    slots = max(len(group.layers) for group in groups)
    return slots * 2 * spec.num_kv_heads * block_size * spec.head_dim * dtype_bytes
