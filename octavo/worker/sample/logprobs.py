"""Log-probabilities of the model's own distribution, before any rule; what vLLM calls raw_logprobs."""

import torch
from torch import Tensor

from octavo.base.wire import TokenLogprobs
from octavo.worker.sample.step import slabs
from octavo.worker.staging import Ints

FLOOR = -9999.0  # stands for minus infinity, which JSON cannot carry


def describe_all(logits: Tensor, tokens: Tensor, top: int, asked: Tensor | None = None) -> Tensor:
    """`describe`, a slab of rows after the other."""
    spans = slabs(*logits.shape)
    return torch.cat([describe(logits[s], tokens[s], top, None if asked is None else asked[s]) for s in spans])


def describe(logits: Tensor, tokens: Tensor, top: int, asked: Tensor | None = None) -> Tensor:
    """Of each row of raw logits ``[n, V]``: the token's log-probability and rank, and the `top` likeliest.

    Gives ``[n, 3 + 2 top]`` int32: token, rank, log-probability bits, ids, log-probability bits. Rank 1 is the
    likeliest; equals share a rank. `asked` ``[n, top]`` int64 holds ids to report in place of the likeliest, -1 for
    none.
    """
    top = min(top, logits.shape[1])
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(1, tokens[:, None])
    rank = (logits > own).sum(-1, keepdim=True) + 1
    if top:
        values, ids = logits.topk(top, dim=-1)
        if asked is not None:
            asked = asked[:, :top]
            ids = torch.where(asked >= 0, asked, ids)
            values = logits.gather(1, ids)
    else:
        values, ids = own[:, :0], tokens[:, None][:, :0]
    whole = torch.cat([tokens[:, None], rank, ids], 1).to(torch.int32)
    real = torch.nan_to_num(torch.cat([own, values], 1) - total, nan=FLOOR, neginf=FLOOR)
    bits = real.view(torch.int32)
    return torch.cat([whole[:, :2], bits[:, :1], whole[:, 2:], bits[:, 1:]], 1)


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
