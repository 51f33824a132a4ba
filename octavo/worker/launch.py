"""How the model's part of a step is started: kernel by kernel, or as one captured piece of device work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.base.plan import StepPlan
from octavo.base.specs import KVLayout
from octavo.kernels.context import ForwardContext
from octavo.worker.batch import Batch, BatchBuilder
from octavo.worker.model import Model
from octavo.worker.table import RequestTable


@dataclass(slots=True)
class Launched:
    """A step whose hidden states are on their way."""

    plan: StepPlan
    batch: Batch
    hidden: Tensor | None  # [T, E], where they were asked for
    chosen: Tensor  # [S, E], those of the sampled rows
    greedy: Callable[[], Tensor]  # draws the likeliest tokens [S] int64 and writes them into the table
    draws: "Draws | None" = None  # None: logits and draw are the caller's to do


@dataclass(frozen=True, slots=True)
class Draws:
    """The same for rows that have a temperature, in parts: what the logits are to forbid may come later."""

    score: Callable[[], Tensor]  # logits [S, V] fp32, which may be written over, but not kept
    keep: Callable[[], object]  # a copy of them as they stand then, for `describe`
    rules: Mapping[str, Callable[[], object]]  # changes to the logits, each by its rider's name
    draw: Callable[[], Tensor]  # tokens [S] int64 from them as they stand then; writes them into the table
    describe: Callable[[], Tensor]  # sample.logprobs.describe of those tokens and the most likeliest, by the copy


@dataclass(frozen=True, slots=True)
class Ground:
    """What steps work on, however they are launched."""

    table: RequestTable
    model: Model
    layout: KVLayout
    kv: list[Tensor]  # layer -> its part of each block; see worker/assemble.kv_views


class Launcher(Protocol):
    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:
        """Have the table take a plan in, and enqueue the model on it. `whole`: all hidden states will be read."""
        ...

    def expect(self, plan: StepPlan) -> None:
        """Do what can be done of the next `launch` while the step before is not sampled yet. The plan adds no rows and
        drops none."""
        ...

    def prepare(self) -> bool:
        """Use a quiet moment to make later launches cheaper; True while there is more to do."""
        ...


class EagerLauncher:
    """Builds the batch and calls the model."""

    def __init__(self, ground: Ground, builder: BatchBuilder) -> None:
        self._ground = ground
        self._builder = builder
        self._layer_group = ground.layout.layer_groups

    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:  # noqa: ARG002 - all are there anyway
        self._ground.table.apply(plan)
        batch = self._builder.build(plan)
        context = ForwardContext(batch.groups, self._layer_group, self._ground.kv, batch.prompt_lens)
        hidden = self._ground.model(batch.input_ids, batch.positions, context)
        chosen = hidden.index_select(0, batch.sample_index)
        return Launched(plan, batch, hidden, chosen, lambda: self._greedy(batch, chosen))

    def expect(self, plan: StepPlan) -> None:
        """All of it comes with `launch`."""

    def prepare(self) -> bool:
        return False

    def _greedy(self, batch: Batch, chosen: Tensor) -> Tensor:
        tokens = self._ground.model.likeliest(chosen)
        self._ground.table.write(batch.sample_rows, batch.sample_positions, tokens)
        return tokens
