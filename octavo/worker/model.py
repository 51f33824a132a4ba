"""The model as the worker sees it: tokens to hidden states, and these to logits for the few where a token is drawn."""

from typing import Protocol

from torch import Tensor


class Model(Protocol):
    """What the worker asks of a model; models/decoder.py gives it."""

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: object) -> Tensor:
        """Hidden states: ``[T], [T] -> [T, E]``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N, V]`` fp32, which rules may write into; the model may do so too at the next call."""
        ...

    def likeliest(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N]`` int64; -1 where a logit is not finite."""
        ...
