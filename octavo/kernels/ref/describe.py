"""Log-probabilities of chosen and likeliest tokens, in plain torch."""

import torch
from torch import Tensor

FLOOR = -9999.0  # stands for minus infinity, which JSON cannot carry


def describe(
    logits: Tensor,
    tokens: Tensor,
    top: int,
    asked: Tensor | None = None,
    tops: Tensor | None = None,
) -> Tensor:
    """See kernels/ops.Describe: logits ``[n, V]``, tokens ``[n]``, asked ``[n, top] -> [n, 3 + 2 top]`` int32."""
    del tops  # all are told
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
