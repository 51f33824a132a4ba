"""Rules that narrow the distribution: temperature, then min_p, top_k and top_p, then typical_p. They leave greedy rows
alone."""

from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.kernels import ops
from octavo.kernels.ref.search import best_until
from octavo.worker.columns import Columns, is_greedy
from octavo.worker.sample.masks import NEVER
from octavo.worker.sample.step import Asked, SampleStep, chosen, give, slabs, take
from octavo.worker.staging import Ints, Longs


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


class Narrow(_Filter):
    """min_p, top_k and top_p."""

    def __init__(self, max_rows: int, narrow: ops.Narrow) -> None:
        super().__init__(max_rows)
        self._narrow = narrow

    def wanted(self, added: AddedRow) -> bool:
        sampling = added.sampling
        return sampling.min_p > 0.0 or sampling.top_k > 0 or sampling.top_p < 1.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part, columns = take(logits, index), step.columns.select(index)
        for span in slabs(*part.shape):
            mine = columns.part(span)
            self._narrow(part[span], mine.top_k, mine.top_p, mine.min_p)
        give(logits, index, part)


class Typical(_Filter):
    """Tokens whose surprise is nearest the distribution's entropy (Meister et al. 2023), up to mass `typical_p`."""

    def wanted(self, added: AddedRow) -> bool:
        return added.sampling.typical_p < 1.0

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index = chosen(staged[0])
        part = take(logits, index)
        typical_p = step.columns.select(index).typical_p
        for span in slabs(*part.shape):
            keep_typical(part[span], typical_p[span])
        give(logits, index, part)


def keep_typical(logits: Tensor, typical_p: Tensor) -> None:
    """The cut of `Typical`, in place: logits ``[s, V]``, typical_p ``[s]``."""
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs.clamp(min=-1e30)).sum(-1, keepdim=True)
    closeness = -(log_probs + entropy).abs()
    logits.masked_fill_(~best_until(closeness, probs, typical_p), NEVER)
