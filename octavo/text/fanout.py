"""Siblings of one request (n > 1), and their seeds."""

_MASK = (1 << 64) - 1


def sibling_id(request_id: str, index: int, n: int) -> str:
    """``id`` alone, ``id-0``, ``id-1`` ... among several."""
    return request_id if n == 1 else f"{request_id}-{index}"


def sibling_seed(seed: int, index: int) -> int:
    """An unsigned 64-bit seed for each sibling. The first keeps the caller's own, modulo 2**64."""
    return seed & _MASK if index == 0 else mix(seed, index)


def mix(seed: int, index: int) -> int:
    """The `index`-th output of SplitMix64 from `seed` (Steele, Lea and Flood 2014): far apart for near arguments."""
    value = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
