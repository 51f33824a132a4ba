"""Rules that narrow the distribution: temperature, min_p, top_k with top_p, typical_p. They leave greedy rows alone."""

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.worker.columns import Columns, is_greedy
from octavo.worker.sample.masks import NEVER
from octavo.worker.sample.search import best_until
from octavo.worker.sample.step import Asked, SampleStep, chosen, give, take
from octavo.worker.staging import Ints, Longs

CANDIDATES = 1024  # the likeliest tokens are looked at first; partial selection is far cheaper than a sort


class _Filter:
    """Keeps one flag a row; `wanted` says which sampling parameters set it."""

    hides = True

    def __init__(self, max_rows: int) -> None:
        self._asked = Asked(max_rows)

    def wanted(self, added: AddedRow) -> bool:
        raise NotImplementedError

    def add(self, added: AddedRow) -> None:
        self._asked.set(added.row, not is_greedy(added.sampling) and self.wanted(added))

    def drop(self, row: int) -> None:
        self._asked.set(row, False)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:  # noqa: ARG002
        return self._asked.index(rows)


class Temperature(_Filter):
    """Logits over temperature."""

    hides = False

    def wanted(self, added: AddedRow) -> bool:
        return added.sampling.temperature != 1.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:  # noqa: ARG002
        over_temperature(logits, step.columns)


def over_temperature(logits: Tensor, columns: Columns) -> None:
    """Logits ``[S, V]`` over their rows' temperature, in place; greedy rows stay."""
    temperature = columns.temperature
    logits.div_(temperature.masked_fill(temperature == 0.0, 1.0)[:, None])


class MinP(_Filter):
    """Tokens less likely than `min_p` times the likeliest go (Nguyen et al. 2024)."""

    hides = False

    def wanted(self, added: AddedRow) -> bool:
        return added.sampling.min_p > 0.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part = take(logits, index)
        floor = part.amax(-1) + step.columns.select(index).min_p.log()
        part.masked_fill_(part < floor[:, None], NEVER)
        give(logits, index, part)


class TopKTopP(_Filter):
    """The k likeliest tokens, and of these the fewest that hold probability `top_p` (Holtzman et al. 2020).

    Tokens as likely as the last one kept stay too.
    """

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows)
        self._top_k = np.zeros(max_rows + 1, dtype=np.int64)
        self._top_p = np.zeros(max_rows + 1, dtype=np.bool_)

    def wanted(self, added: AddedRow) -> bool:
        sampling = added.sampling
        self._top_k[added.row] = max(sampling.top_k, 0)
        self._top_p[added.row] = sampling.top_p < 1.0
        return sampling.top_k > 0 or sampling.top_p < 1.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part = take(logits, index)
        columns = step.columns.select(index)
        asked = self._asked.index(step.host_rows)
        rows = step.host_rows[asked[0]] if asked and asked[0].size else step.host_rows
        limits = self._top_k[rows]
        largest = int(limits.max())
        if limits.min() == 0 or largest > CANDIDATES:
            self._wide(part, columns.top_k, columns.top_p, bool((limits > 0).any()), bool(self._top_p[rows].any()))
        else:
            keep_among_best(part, columns.top_k, columns.top_p, largest)
        give(logits, index, part)

    @staticmethod
    def _wide(logits: Tensor, top_k: Tensor, top_p: Tensor, any_k: bool, any_p: bool) -> None:
        """Some row has no top_k, or a large one."""
        if not logits.is_cuda and keep_among_best(logits, top_k, top_p, CANDIDATES, check=True):
            return
        if any_k:
            k = torch.where(top_k > 0, top_k.float(), float("inf"))
            logits.masked_fill_(~best_until(logits, torch.ones_like(logits), k), NEVER)
        if any_p:
            p = torch.where(top_p < 1.0, top_p, float("inf"))
            probs = logits.softmax(-1)
            logits.masked_fill_(~best_until(probs, probs, p), NEVER)


def keep_among_best(logits: Tensor, top_k: Tensor, top_p: Tensor, width: int, check: bool = False) -> bool:
    """Both cuts from the `width` largest logits alone. True: done.

    That is exact where each row's set lies among them. With `check` the device is asked whether it does, which
    a CPU answers at once; if not, nothing has changed and the answer is False.
    """
    width = min(width, logits.shape[1])
    values = logits.topk(width, dim=-1).values
    place = torch.arange(width, device=logits.device)
    limited = (top_k > 0) & (top_k <= width)
    values = values.masked_fill(limited[:, None] & (place >= top_k[:, None]), NEVER)
    total = values.logsumexp(-1)
    if check:
        total = torch.where(limited, total, logits.logsumexp(-1))
    mass = (values - total[:, None]).exp_().cumsum(-1)
    if check and width < logits.shape[1]:
        found = (top_k == 0) & (top_p < 1.0) & (mass[:, -1] >= top_p)
        if not bool((found | limited).all()):
            return False
    # A token stays while those before it hold less than top_p.
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    kept = (before < top_p.masked_fill(top_p >= 1.0, 2.0)[:, None]) & (values > NEVER)
    last = kept.sum(-1, keepdim=True).clamp_(min=1) - 1
    logits.masked_fill_(logits < values.gather(1, last), NEVER)
    return True


class Typical(_Filter):
    """Tokens whose surprise is nearest the distribution's entropy (Meister et al. 2023), up to mass `typical_p`."""

    def wanted(self, added: AddedRow) -> bool:
        return added.sampling.typical_p < 1.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part = take(logits, index)
        log_probs = part.log_softmax(-1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs.clamp(min=-1e30)).sum(-1, keepdim=True)
        closeness = -(log_probs + entropy).abs()
        keep = best_until(closeness, probs, step.columns.select(index).typical_p)
        part.masked_fill_(~keep, NEVER)
        give(logits, index, part)
