"""The likeliest tokens of each row, in plain torch: top_k, top_p, min_p."""

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.kernels.ref.search import best_until

CANDIDATES = 1024  # the likeliest tokens are looked at first; partial selection is far cheaper than a sort
_NEVER = -float("inf")


def narrow(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """See kernels/ops.Narrow: logits ``[S, V]``, the others ``[S]``.

    A CPU's tensors are asked what can be left out: they answer at once.
    """
    host = not logits.is_cuda
    if not host or bool((min_p > 0).any()):
        floor = logits.amax(-1) + min_p.log()
        logits.masked_fill_(logits < floor[:, None], _NEVER)
    if not host:
        _wide(logits, top_k, top_p)
        return
    limits = top_k.tolist()
    if min(limits) > 0 and max(limits) <= CANDIDATES:
        keep_among_best(logits, top_k, top_p, max(limits))
    elif (any(limits) or bool((top_p < 1).any())) and not keep_among_best(logits, top_k, top_p, CANDIDATES, check=True):
        _wide(logits, top_k, top_p)


def _wide(logits: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Over all tokens, whatever the limits."""
    k = torch.where(top_k > 0, top_k.float(), float("inf"))
    logits.masked_fill_(~best_until(logits, torch.ones_like(logits), k), _NEVER)
    p = torch.where(top_p < 1.0, top_p, float("inf"))
    probs = logits.softmax(-1)
    logits.masked_fill_(~best_until(probs, probs, p), _NEVER)


def keep_among_best(logits: Tensor, top_k: Tensor, top_p: Tensor, width: int, check: bool = False) -> bool:
    """Both cuts from the `width` largest logits alone. True: done.

    That is exact where each row's set lies among them. With `check` it is asked whether it does; if not, nothing has
    changed and the answer is False.
    """
    width = min(width, logits.shape[1])
    values = logits.topk(width, dim=-1).values
    place = torch.arange(width, device=logits.device)
    limited = (top_k > 0) & (top_k <= width)
    values = values.masked_fill(limited[:, None] & (place >= top_k[:, None]), _NEVER)
    total = values.logsumexp(-1)
    if check:
        total = torch.where(limited, total, logits.logsumexp(-1))
    mass = (values - total[:, None]).exp_().cumsum(-1)
    if check and width < logits.shape[1]:
        found = (top_k == 0) & (top_p < 1.0) & (mass[:, -1] >= top_p)
        neutral = (top_k == 0) & (top_p >= 1.0)
        if not bool((found | limited | neutral).all()):
            return False
    # A token stays while those before it hold less than top_p.
    before = F.pad(mass[:, :-1], (1, 0))
    kept = (before < top_p.masked_fill(top_p >= 1.0, 2.0)[:, None]) & (values > _NEVER)
    last = kept.sum(-1, keepdim=True).clamp_(min=1) - 1
    floor = values.gather(1, last).masked_fill_(((top_k == 0) & (top_p >= 1.0))[:, None], _NEVER)
    logits.masked_fill_(logits < floor, _NEVER)
    return True
