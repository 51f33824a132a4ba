"""Sampler: the rules in order, then the draw. The host settles in `prepare` what a step needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.base.plan import NONE_LEFT, AddedRow, StepPlan
from octavo.kernels.ops import Ops
from octavo.worker.batch import Batch
from octavo.worker.columns import Columns, is_bare, is_greedy, is_plain
from octavo.worker.sample.logprobs import describe_all
from octavo.worker.sample.step import TOKEN_STREAM, LogitRule, RiderRule, SampleStep
from octavo.worker.staging import Ints, Longs, Stager, ints
from octavo.worker.table import RequestTable


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who of the sampled rows reports log-probabilities."""

    places: list[int]
    tops: list[int]  # how many tokens each of them reports beside its own


NOBODY = Wanted([], [])


@dataclass(slots=True)
class Prepared:
    """The sampling of one step, settled before the model runs."""

    step: SampleStep
    rules: list[tuple[LogitRule, list[Tensor]]]  # those with work to do, and their numbers
    any_random: bool
    wanted: Wanted
    wanted_index: Tensor | None  # its places on the device, int64
    asked: Tensor | None  # [places, max(tops)] int64: ids to report instead of the likeliest, -1 for none


@dataclass(slots=True)
class Drawn:
    """What was sampled, still on the device."""

    tokens: Tensor  # [S] int64; -1: the row's logits were not finite; NONE_LEFT: the rules forbid every token
    logprobs: Tensor | None  # sample.logprobs.describe of the rows in Prepared.wanted, or of all


class Sampler:
    """Holds the rules and what each row asked of them."""

    def __init__(
        self,
        ops: Ops,
        table: RequestTable,
        stager: Stager,
        rules: Sequence[LogitRule],
        rider_rules: Mapping[str, RiderRule] = {},
    ) -> None:
        """`rider_rules`: by the name of the rider that they read; they come before all others."""
        self._rider_rules = dict(rider_rules)
        self._ops = ops
        self._table = table
        self._stager = stager
        self._rules = tuple(rules)
        rows = table.max_rows + 1
        self._greedy = np.zeros(rows, dtype=np.bool_)
        self._special: set[int] = set()  # rows that want anything but their likeliest token
        self._ruled: set[int] = set()  # those of them that want more than a draw
        self._tops = np.full(rows, -1, dtype=np.int64)
        self._telling: set[int] = set()  # rows whose `_tops` says so
        self._asked: dict[int, Ints] = {}

    def apply(self, plan: StepPlan) -> None:
        """Tell the rules which rows went and came."""
        for row in plan.dropped:
            self._drop(row)
        for added in plan.added:
            self._add(added)

    def plain(self, rows: Longs) -> bool:
        """Whether these rows ``[S]`` want their likeliest tokens and nothing else."""
        return not self._special or self._special.isdisjoint(rows.tolist())

    def bare(self, rows: Longs) -> bool:
        """Whether these rows ``[S]`` want no more than what is_bare says."""
        return not self._ruled or self._ruled.isdisjoint(rows.tolist())

    def wanted(self, rows: Longs) -> Wanted:
        """Who of these rows ``[S]`` reports log-probabilities."""
        if not self._telling:
            return NOBODY
        tops = self._tops[rows]
        places = np.flatnonzero(tops >= 0)
        return Wanted(places.tolist(), tops[places].tolist())

    def prepare(self, batch: Batch) -> Prepared:
        """Settle and upload what the draw of this batch needs."""
        rows, num_tokens = batch.host_sample_rows, batch.host_sample_positions
        staged = [(rule, rule.stage(rows, num_tokens)) for rule in self._rules]
        active = [(rule, arrays) for rule, arrays in staged if arrays is not None]
        wanted = self.wanted(rows)
        places, tops = ints(wanted.places), np.array(wanted.tops, dtype=np.int64)
        asked = self._stage_asked(rows[places], tops) if self._asked and places.size else None
        views: list[Tensor] = []
        if active or places.size:
            last = [] if asked is None else [asked.reshape(-1)]
            views = self._stager.send([places, *(array for _, arrays in active for array in arrays), *last])
        rules, at = [], 1
        for rule, arrays in active:
            rules.append((rule, views[at : at + len(arrays)]))
            at += len(arrays)
        greedy = self._greedy[rows]
        step = SampleStep(
            rows=batch.sample_rows,
            positions=batch.sample_positions,
            columns=Columns(self._table.columns.index_select(0, batch.sample_rows)),
            tokens=self._table.tokens,
            num_tokens=num_tokens,
            host_rows=rows,
        )
        return Prepared(
            step=step,
            rules=rules,
            any_random=not greedy.all(),
            wanted=wanted,
            wanted_index=views[0].long() if places.size else None,
            asked=None if asked is None else views[at].long().view(asked.shape),
        )

    def sample(self, logits: Tensor, prepared: Prepared, riders: Mapping[str, Any] = {}) -> Drawn:
        """Draw from logits ``[S, V]`` fp32, which are written over. Nothing here waits for the device."""
        raw = None if prepared.wanted_index is None else logits.index_select(0, prepared.wanted_index)
        sound = None
        if any(rule.hides for rule, _ in prepared.rules):
            sound = logits.amax(-1).isfinite()
        self.apply_riders(logits, riders)
        for rule, staged in prepared.rules:
            rule.apply(logits, prepared.step, staged)
        tokens = self._draw(logits, prepared)
        if sound is not None:
            tokens = torch.where(sound, torch.where(tokens < 0, NONE_LEFT, tokens), -1)
        if raw is None or prepared.wanted_index is None:
            return Drawn(tokens, None)
        chosen = tokens.index_select(0, prepared.wanted_index).clamp(min=0)
        return Drawn(tokens, describe_all(self._ops.describe, raw, chosen, max(prepared.wanted.tops), prepared.asked))

    def _draw(self, logits: Tensor, prepared: Prepared) -> Tensor:
        """Tokens ``[S]`` int64 from logits ``[S, V]``; -1 where a row's are not finite or forbid every token."""
        if not prepared.any_random:
            return self._ops.greedy(logits)
        step, columns = prepared.step, prepared.step.columns
        return self._ops.draw(logits, columns.seed, step.positions, columns.temperature, TOKEN_STREAM)

    def apply_riders(self, logits: Tensor, riders: Mapping[str, Any]) -> None:
        """Have the rules that read them write over logits ``[S, V]``."""
        for name, payload in riders.items():
            if name in self._rider_rules:
                self._rider_rules[name].apply(logits, payload)

    def replay_riders(self, works: Mapping[str, Callable[[], object]], riders: Mapping[str, Any]) -> None:
        """The same where the rules' work has been captured: `works` start it, by the rules' names."""
        for name, payload in riders.items():
            if name in self._rider_rules:
                self._rider_rules[name].lay(payload)
                works[name]()

    def _stage_asked(self, rows: Longs, tops: Longs) -> Ints | None:
        """Ids that the rows asked for, ``[len(rows), max(tops)]``, -1 where there is none."""
        if not any(row in self._asked for row in rows.tolist()):
            return None
        asked = np.full((rows.size, int(tops.max())), -1, dtype=np.int32)
        for index, row in enumerate(rows.tolist()):
            ids = self._asked.get(row)
            if ids is not None:
                asked[index, : ids.size] = ids
        return asked

    def _add(self, added: AddedRow) -> None:
        """The rules hear of rows that want something of them; a plain one has nothing for any."""
        self._drop(added.row)
        self._greedy[added.row] = is_greedy(added.sampling)
        self._tops[added.row] = added.sampling.logprobs
        if is_plain(added.sampling):
            return
        if added.sampling.logprobs >= 0:
            self._telling.add(added.row)
        asked = added.sampling.logprob_token_ids
        if asked and added.sampling.logprobs >= 0:
            self._asked[added.row] = ints(asked)
            self._tops[added.row] = len(asked)
        self._special.add(added.row)
        if not is_bare(added.sampling):
            self._ruled.add(added.row)
        for rule in self._rules:
            rule.add(added)

    def _drop(self, row: int) -> None:
        if row in self._special:
            self._special.remove(row)
            self._ruled.discard(row)
            self._telling.discard(row)
            self._asked.pop(row, None)
            for rule in self._rules:
                rule.drop(row)
