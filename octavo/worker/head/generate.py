"""The head that generates: hidden states to logits, for the few positions where a token is drawn."""

from typing import Protocol

from torch import Tensor


class Model(Protocol):
    """What the worker asks of a model; models/decoder.py gives it."""

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: object) -> Tensor:
        """Hidden states: ``[T], [T] -> [T, E]``."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N, V]`` fp32."""
        ...

    def likeliest(self, hidden: Tensor) -> Tensor:
        """``[N, E] -> [N]`` int64; -1 where a logit is not finite."""
        ...


class GenerateHead:
    """What the hidden states of a few chosen places say of the next token."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, chosen: Tensor) -> Tensor:
        """``[S, E] -> [S, V]`` fp32, which rules may write into; the model may do so too at the next call."""
        return self._model.logits(chosen)

    def likeliest(self, chosen: Tensor) -> Tensor:
        """``[S, E] -> [S]`` int64; -1 where a logit is not finite."""
        return self._model.likeliest(chosen)
