"""Rules that forbid tokens or move single ones: allowed ids, bad words, minimum length, bias.

Their lists live on the host, one entry a row that has them, and travel with the step's packed copy. Ids that the
vocabulary does not have are left out: they could only write into a neighbour's row.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import AddedRow
from octavo.kernels.ops import Forbid
from octavo.worker.sample.step import SampleStep
from octavo.worker.staging import Ints, Longs, float_bits, ints

NEVER = -float("inf")


def _legal(ids: Longs, vocab_size: int) -> Longs:
    return ids[(ids >= 0) & (ids < vocab_size)]


class AllowedTokens:
    """Only the listed ids stay. One bit a token ``[ceil(V / 32)]`` on the device for each row that has such a list."""

    hides = True

    def __init__(self, vocab_size: int, upload: Callable[[list[Ints]], list[Tensor]], forbid: Forbid) -> None:
        self._vocab_size = vocab_size
        self._upload = upload
        self._forbid = forbid
        self._masks: dict[int, Tensor] = {}

    def add(self, added: AddedRow) -> None:
        self._masks.pop(added.row, None)
        allowed = added.sampling.allowed_token_ids
        if allowed:
            bits = np.zeros(-(-self._vocab_size // 32) * 32, dtype=np.uint8)
            bits[_legal(np.asarray(allowed, dtype=np.int64), self._vocab_size)] = 1
            (mask,) = self._upload([np.packbits(bits, bitorder="little").view("<i4")])
            self._masks[added.row] = mask.clone()  # on a CPU the upload is a buffer that is used again

    def drop(self, row: int) -> None:
        self._masks.pop(row, None)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:  # noqa: ARG002
        found = [index for index, row in enumerate(rows.tolist()) if row in self._masks] if self._masks else []
        return [ints(found)] if found else None

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        masks = [self._masks[row] for row in step.host_rows.tolist() if row in self._masks]
        self._forbid(logits, staged[0], torch.stack(masks))


class _Words(NamedTuple):
    """W bad words of one row: the last id of each, the number of ids before it, and those ids end to end."""

    last: Ints  # [W]
    before: Ints  # [W]
    ids: Ints  # [sum of before]


class BadWords:
    """The last token of a listed sequence is forbidden when the output ends with the rest of it.

    Only tokens of the output count, as in vLLM. The comparison runs on the device, where the newest token is.
    """

    hides = True

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words: dict[int, _Words] = {}
        self._num_prompt: dict[int, int] = {}

    def add(self, added: AddedRow) -> None:
        self.drop(added.row)
        words = [word for word in added.sampling.bad_words if word and all(0 <= t < self._vocab_size for t in word)]
        if words:
            self._words[added.row] = _Words(
                ints([word[-1] for word in words]),
                ints([len(word) - 1 for word in words]),
                ints([token for word in words for token in word[:-1]]),
            )
            self._num_prompt[added.row] = added.num_prompt

    def drop(self, row: int) -> None:
        self._words.pop(row, None)
        self._num_prompt.pop(row, None)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:
        """Per word: its index among the sampled rows, last id, ids before. Per id before: word, place, id."""
        parts: list[list[Ints]] = []
        words = 0
        for index, row in enumerate(rows.tolist()) if self._words else ():
            found = self._words.get(row)
            if found is None:
                continue
            length = int(num_tokens[index])
            fits = found.before <= length - self._num_prompt[row]
            before = found.before[fits]
            ids = found.ids[np.repeat(fits, found.before)]
            ends = np.cumsum(before)
            place = np.arange(ids.size) - np.repeat(ends, before) + length
            parts.append(
                [
                    np.full(before.size, index, dtype=np.int32),
                    found.last[fits],
                    before,
                    words + np.repeat(np.arange(before.size), before),
                    np.full(ids.size, row, dtype=np.int32),
                    place,
                    ids,
                ]
            )
            words += before.size
        if not words:
            return None
        return [ints(np.concatenate(column)) for column in zip(*parts)]

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:
        index, last, before, word, row, place, ids = staged
        said = step.tokens[row.long(), place.long()]
        equal = torch.zeros_like(before).index_add_(0, word.long(), (said == ids).to(torch.int32))
        cap = torch.full_like(last, float("inf"), dtype=logits.dtype).masked_fill_(equal == before, NEVER)
        # Two words may share a last token: the smaller cap wins.
        flat = index.long() * logits.shape[1] + last.long()
        logits.view(-1).scatter_reduce_(0, flat, cap, "amin", include_self=True)


class MinTokens:
    """No end of sequence and no stop token before `min_tokens` tokens of output. The host alone knows when."""

    hides = True

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._until = np.zeros(max_rows + 1, dtype=np.int64)  # known tokens at which the row becomes free
        self._ends: dict[int, Ints] = {}

    def add(self, added: AddedRow) -> None:
        sampling = added.sampling
        self.drop(added.row)
        eos = () if sampling.eos_ruled else sampling.eos_token_ids
        ends = sorted({*eos, *sampling.stop_token_ids})
        if sampling.min_tokens > 0 and ends:
            self._until[added.row] = added.num_prompt + sampling.min_tokens
            self._ends[added.row] = ints(_legal(np.asarray(ends, dtype=np.int64), self._vocab_size))

    def drop(self, row: int) -> None:
        self._until[row] = 0
        self._ends.pop(row, None)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:
        held = np.flatnonzero(num_tokens < self._until[rows])
        if not held.size:
            return None
        ends = [self._ends[row] for row in rows[held].tolist()]
        return [ints(np.repeat(held, [each.size for each in ends])), np.concatenate(ends)]

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:  # noqa: ARG002
        flat = staged[0].long() * logits.shape[1] + staged[1].long()
        logits.view(-1).index_fill_(0, flat, NEVER)


class LogitBias:
    """A number added to the logits of listed tokens."""

    hides = False

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bias: dict[int, tuple[Ints, Ints]] = {}

    def add(self, added: AddedRow) -> None:
        self.drop(added.row)
        # A repeated id counts once, the last time.
        bias = {token: value for token, value in added.sampling.logit_bias if 0 <= token < self._vocab_size}
        if bias:
            self._bias[added.row] = ints(list(bias)), float_bits(list(bias.values()))

    def drop(self, row: int) -> None:
        self._bias.pop(row, None)

    def stage(self, rows: Longs, num_tokens: Longs) -> list[Ints] | None:  # noqa: ARG002
        found = (
            [(i, *self._bias[row]) for i, row in enumerate(rows.tolist()) if row in self._bias] if self._bias else []
        )
        if not found:
            return None
        index = np.repeat([i for i, _, _ in found], [tokens.size for _, tokens, _ in found])
        return [ints(index), np.concatenate([t for _, t, _ in found]), np.concatenate([v for _, _, v in found])]

    def apply(self, logits: Tensor, step: SampleStep, staged: list[Tensor]) -> None:  # noqa: ARG002
        flat = staged[0].long() * logits.shape[1] + staged[1].long()
        logits.view(-1).index_add_(0, flat, staged[2].view(torch.float32))
