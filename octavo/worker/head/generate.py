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


class GenerateHead:
    """Logits of the next token at chosen places of the hidden states."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, hidden: Tensor, index: Tensor) -> Tensor:
        """``[T, E], [S] int64 -> [S, V]`` fp32, fresh, so that rules may write into it."""
        return self._model.logits(hidden.index_select(0, index))
