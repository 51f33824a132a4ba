"""Log-probabilities of the model's own distribution, before any rule; what vLLM calls raw_logprobs."""

import torch
from torch import Tensor

from octavo.base.wire import TokenLogprobs
from octavo.kernels.ops import Describe
from octavo.worker.sample.step import slabs
from octavo.worker.staging import Ints


def describe_all(describe: Describe, logits: Tensor, tokens: Tensor, top: int, asked: Tensor | None = None) -> Tensor:
    """`describe`, a slab of rows after the other."""
    spans = slabs(*logits.shape)
    return torch.cat([describe(logits[s], tokens[s], top, None if asked is None else asked[s]) for s in spans])


def unpack(lines: Ints, tops: list[int]) -> list[TokenLogprobs]:
    """The rows of `describe` on the host ``[n, 3 + 2 top]``; row i reports its ``tops[i]`` likeliest."""
    width = (lines.shape[1] - 3) // 2
    own = lines[:, 2].copy().view("float32").tolist()
    tokens, ranks = lines[:, 0].tolist(), lines[:, 1].tolist()
    ids = lines[:, 3 : 3 + width].tolist()
    values = lines[:, 3 + width :].copy().view("float32").tolist() if width else [[] for _ in own]
    return [
        TokenLogprobs(token, logprob, rank, row_ids[:top], row_values[:top])
        for token, logprob, rank, row_ids, row_values, top in zip(tokens, own, ranks, ids, values, tops)
    ]
