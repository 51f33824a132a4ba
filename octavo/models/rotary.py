"""From an architecture's `Rope` to the angles of a step.

Two kinds depend on the length of the sequence: `dynamic` (a base that grows) and `longrope` (short or long factors).
transformers takes, at each forward, the length up to the last position given. So a prompt of n tokens, computed at
once and then continued token by token, rotates position p as in a sequence of L = max(n, p + 1) tokens. Octavo
computes exactly that L for every token, from `ForwardContext.prompt_lens`, so the result does not depend on chunks,
preemption or neighbours. Keys already in the cache keep the rotation they were written with when generation
crosses the original length; in transformers, too, except that Phi-3's `generate` then computes the whole cache again.
Without prompt_lens L is p + 1.
"""

import torch
from torch import Tensor

from octavo.models.arch import Rope
from octavo.nn import rope as formula

FIRST_ROWS = 512  # few enough that torch makes them in the calling thread


class Rotary:
    """The rotation of some layers. `at` gives a table and each token's row in it, for one step.

    On a host the table has `FIRST_ROWS` rows and grows with the positions that come: that of a long context takes tens
    of milliseconds and megabytes, and few requests are so long. On a device it is whole, and stays where it is.
    """

    def __init__(self, rope: Rope, max_position: int, device: torch.device) -> None:
        self.rope = rope
        self.max_position = max_position
        self.device = device
        self.attention_factor = attention_factor(rope)
        self._sets = _frequency_sets(rope)
        rows = min(max_position, FIRST_ROWS) if device.type == "cpu" and len(self._sets) == 1 else max_position
        tables = [self._table(frequencies, 0, rows) for frequencies in self._sets]
        self.table = torch.cat(tables).to(device) if tables else None

    def at(self, positions: Tensor, prompt_lens: Tensor | None) -> tuple[Tensor, Tensor]:
        """cos_sin ``[rows, rotary_dim]`` and rope_index ``[T]`` for positions ``[T]``."""
        rope = self.rope
        if rope.kind not in ("dynamic", "longrope"):
            assert self.table is not None
            if self.table.shape[0] < self.max_position:
                self.table = self._reaching(self.table, positions)
            return self.table, positions
        length = positions + 1 if prompt_lens is None else torch.maximum(positions + 1, prompt_lens)
        if self.table is not None:  # longrope: the long half follows the short one
            return self.table, positions + (length > rope.original_max_position) * self.max_position
        frequencies = formula.dynamic_frequencies(rope.theta, rope.dim, rope.factor, rope.original_max_position, length)
        table = formula.cos_sin(positions.float().unsqueeze(1) * frequencies, self.attention_factor)
        return table, torch.arange(positions.shape[0], device=positions.device)

    def _reaching(self, table: Tensor, positions: Tensor) -> Tensor:
        """The host's table, with more rows if `positions` ask for them; twice as many, so that it grows seldom."""
        rows = table.shape[0]
        if not positions.numel() or int(positions.max()) < rows:
            return table
        enough = min(self.max_position, max(2 * rows, int(positions.max()) + 1))
        return torch.cat((table, self._table(self._sets[0], rows, enough)))

    def _table(self, frequencies: Tensor, begin: int, end: int) -> Tensor:
        positions = torch.arange(begin, end).float()
        return formula.cos_sin(torch.outer(positions, frequencies), self.attention_factor)


def attention_factor(rope: Rope) -> float:
    """What cosines and sines are multiplied by."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "yarn":
        return formula.yarn_attention_factor(rope.factor, rope.mscale, rope.mscale_all_dim)
    return formula.longrope_attention_factor(rope.factor, rope.original_max_position)


def _frequency_sets(rope: Rope) -> list[Tensor]:
    """Inverse frequencies of each table: one, two for longrope, none for dynamic."""
    theta, dim, factor, original = rope.theta, rope.dim, rope.factor, rope.original_max_position
    match rope.kind:
        case "default":
            return [formula.default_frequencies(theta, dim)]
        case "linear":
            return [formula.linear_frequencies(theta, dim, factor)]
        case "llama3":
            return [
                formula.llama3_frequencies(theta, dim, factor, rope.low_freq_factor, rope.high_freq_factor, original)
            ]
        case "yarn":
            return [
                formula.yarn_frequencies(theta, dim, factor, rope.beta_fast, rope.beta_slow, original, rope.truncate)
            ]
        case "longrope":
            return [formula.longrope_frequencies(theta, dim, part) for part in (rope.short_factor, rope.long_factor)]
        case "dynamic":
            return []
