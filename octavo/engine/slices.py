"""How long prompts are cut when nobody said how: tokens of one prompt in a step beside others.

A step makes those who run wait for their next token. A slice that costs about as much as a decode step does is enough
to keep a GPU busy; the deeper a prompt's past, the dearer each of its tokens, so the fewer of them a slice holds.
"""

from octavo.base.config import EngineConfig
from octavo.models.arch import Architecture

SLICE = 512  # tokens: about a millisecond of an H200 with a 0.6B model, a second of two CPU cores
SLOWER = 2  # an operation of attention takes this many times as long as one of a matrix product


def slices(config: EngineConfig, arch: Architecture | None) -> tuple[int, int]:
    """Tokens of a slice, and the past at which a token costs twice as much as without one (0: it does not count)."""
    asked = config.scheduler.long_prefill_token_threshold
    if asked is not None:
        return asked, 0  # vLLM's meaning: a fixed number
    return SLICE, 0 if arch is None else reach(arch)


def reach(arch: Architecture) -> int:
    """The past, in tokens, that costs a token of a prompt as much as all the matrix products; 0: windows bound it.

    A weight is one multiplication and addition a token; an attended token is two of each per dimension of all heads.
    """
    heads = [layer.attention for layer in arch.layers if layer.attention.window is None]
    attended = 2 * sum(attention.num_heads * attention.head_dim for attention in heads)
    tables = arch.vocab_size * arch.hidden_size * (1 if arch.tie_embeddings else 2)
    return (arch.num_parameters() - tables) // (SLOWER * attended) if attended else 0
