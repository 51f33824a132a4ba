"""One token from each row of logits: the likeliest for greedy rows, a draw keyed by (seed, position) for others."""

from torch import Tensor

from octavo.kernels.ops import Ops
from octavo.worker.columns import Columns

TOKEN_STREAM = 0  # the stream of random numbers that tokens are drawn from


def draw(ops: Ops, logits: Tensor, positions: Tensor, columns: Columns, any_random: bool) -> Tensor:
    """Tokens ``[S]`` int64 from logits ``[S, V]``; -1 where the row's logits are not finite or forbid every token.

    Among equals the lowest id is the greedy choice. A random row's number depends on its seed and on the position
    where the token will stand, so neighbours, preemption and planning ahead do not change it.
    """
    if not any_random:
        return ops.greedy(logits)
    return ops.draw(logits, columns.seed, positions, columns.temperature, TOKEN_STREAM)
