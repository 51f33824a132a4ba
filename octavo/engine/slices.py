"""How long prompts are cut when nobody said how: tokens of one prompt in a step beside others, and of several.

A step makes those who run wait for their next token. A slice that costs about as much as a decode step does is enough
to keep a GPU busy; the deeper a prompt's past, the dearer each of its tokens, so the fewer of them a slice holds. The
deeper those who decode stand in theirs, the longer their step takes without any prompt, and the more a slice may hold.
"""

from octavo.base.config import EngineConfig
from octavo.models.arch import Architecture
from octavo.sched.limits import Slicing

SLICE = 512  # tokens: about a millisecond of an H200 with a 0.6B model, a second of two CPU cores
TOGETHER = 1984  # tokens: enough for any GPU's matrix products; with who decodes beside them a captured step holds them
SLOWER = 2  # an operation of attention takes this many times as long as one of a matrix product
RIDGE = 150  # operations of a matrix product that a GPU does while it reads a byte (H200: 700 TFLOP/s, 4.2 TB/s)
SHARE = 0.4  # of the time that a decode step takes to read keys and values
CACHED = 2  # bytes of a number in a GPU's cache


def slices(config: EngineConfig, arch: Architecture | None, device: str) -> Slicing:
    """How the scheduler is to slice prompts."""
    asked = config.scheduler.long_prefill_token_threshold
    if asked is not None:
        return Slicing(tokens=asked)  # vLLM's meaning: a fixed number
    together = TOGETHER if config.scheduler.max_num_batched_tokens is None else 0
    if arch is None:
        return Slicing(tokens=SLICE, together=together)
    longer = 0.0 if device == "cpu" else beside(arch)
    return Slicing(tokens=SLICE, reach=reach(arch), beside=longer, together=together)


def reach(arch: Architecture) -> int:
    """The past, in tokens, that costs a token of a prompt as much as all the matrix products; 0: windows bound it.

    A weight is one multiplication and addition a token; an attended token is two of each per dimension of all heads.
    """
    heads = [layer.attention for layer in arch.layers if layer.attention.window is None]
    attended = 2 * sum(attention.num_heads * attention.head_dim for attention in heads)
    return _products(arch) // (SLOWER * attended) if attended else 0


def beside(arch: Architecture) -> float:
    """Tokens of a prompt that take `SHARE` of the time in which a cached token of somebody else is read."""
    heads = [layer.attention for layer in arch.layers if layer.attention.window is None]
    read = 2 * CACHED * sum(attention.num_kv_heads * attention.head_dim for attention in heads)
    return SHARE * read * RIDGE / (2 * _products(arch))


def _products(arch: Architecture) -> int:
    """Weights of all the matrix products of a token."""
    return arch.num_parameters() - arch.vocab_size * arch.hidden_size * (1 if arch.tie_embeddings else 2)
