"""How each kind of layer spends blocks, frees them and accepts prefix hits: one file a kind."""

from octavo.base.specs import KVSpec
from octavo.kv.policy.base import LayerPolicy
from octavo.kv.policy.full import FullPolicy
from octavo.kv.policy.sliding import SlidingPolicy

__all__ = ["FullPolicy", "LayerPolicy", "SlidingPolicy", "policy_for"]


def policy_for(spec: KVSpec, block_size: int) -> LayerPolicy:
    """The policy of a group of layers with this spec."""
    if spec.window is None:
        return FullPolicy(block_size)
    return SlidingPolicy(block_size, spec.window)
