"""The two ends of a decoder: token embedding and the head that turns hidden states into logits."""

import torch
from torch import Tensor, nn

from octavo.kernels.entry import Entry
from octavo.nn.kit import Kit
from octavo.nn.linear import Linear


class Embedding(nn.Module):
    """``[T] int64 -> [T, E]``, times `multiplier`, which is rounded to the model's type first (as Gemma's was).

    `tied`: the same matrix is the head's.
    """

    def __init__(self, vocab_size: int, hidden_size: int, multiplier: float, tied: bool, kit: Kit) -> None:
        super().__init__()
        self.multiplier = float(torch.tensor(multiplier, dtype=kit.dtype))
        self.shape = (vocab_size, hidden_size)
        self.tied = tied
        self.ops = kit.ops
        self.method = kit.method
        self.method.create_table(self, vocab_size, hidden_size, kit.dtype, kit.empty)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.method.look_up(self.ops, self, input_ids)
        return x if self.multiplier == 1.0 else x * self.multiplier

    def load_weight(self, entry: Entry) -> None:
        self.method.load_table(self, entry)


class Head(nn.Module):
    """``[N, E] -> [N, V]`` fp32. `linear` is None when the embedding's matrix serves here too."""

    def __init__(
        self, embedding: Embedding, linear: Linear | None, divisor: float, softcap: float | None, kit: Kit
    ) -> None:
        super().__init__()
        self.linear = linear
        self.embedding = embedding if linear is None else None
        self.divisor = divisor
        self.softcap = softcap
        self.ops = kit.ops

    def forward(self, hidden: Tensor) -> Tensor:
        return self.finish(self._scores(hidden).float())

    def finish(self, logits: Tensor) -> Tensor:
        """What some families do to logits before anyone sees them."""
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def likeliest(self, hidden: Tensor) -> Tensor:
        """The token that `forward` rates highest, without the fp32 logits: ``[N, E] -> [N]`` int64; see ops.Greedy."""
        if self.softcap is not None:  # it may make equals of different scores
            return self.ops.greedy(self(hidden))
        return self.ops.greedy(self._scores(hidden))

    def _scores(self, hidden: Tensor) -> Tensor:
        if self.linear is not None:
            scores: Tensor = self.linear(hidden)
            return scores
        assert self.embedding is not None
        return self.embedding.method.apply_table(self.ops, self.embedding, hidden)
