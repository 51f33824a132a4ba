"""How the model's part of a step is started: kernel by kernel, or as one captured piece of device work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.base.plan import StepPlan
from octavo.kernels.context import ForwardContext
from octavo.worker.batch import Batch, BatchBuilder
from octavo.worker.head.generate import GenerateHead, Model
from octavo.worker.table import RequestTable


@dataclass(slots=True)
class Launched:
    """A step whose hidden states are on their way."""

    plan: StepPlan
    batch: Batch
    hidden: Tensor | None  # [T, E], where they were asked for
    chosen: Tensor  # [S, E], those of the sampled rows
    greedy: Callable[[], Tensor]  # draws the likeliest tokens [S] int64 and writes them into the table


class Launcher(Protocol):
    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:
        """Enqueue the model on a plan that the table has taken in. `whole`: all hidden states will be read."""
        ...

    def prepare(self) -> bool:
        """Use a quiet moment to make later launches cheaper; True while there is more to do."""
        ...


class EagerLauncher:
    """Builds the batch and calls the model."""

    def __init__(
        self,
        table: RequestTable,
        builder: BatchBuilder,
        model: Model,
        head: GenerateHead,
        kv: list[Tensor],
        layer_group: list[int],
    ) -> None:
        self._table = table
        self._builder = builder
        self._model = model
        self._head = head
        self._kv = kv
        self._layer_group = layer_group

    def launch(self, plan: StepPlan, *, whole: bool) -> Launched:  # noqa: ARG002 - all are there anyway
        batch = self._builder.build(plan)
        context = ForwardContext(batch.groups, self._layer_group, self._kv, batch.prompt_lens)
        hidden = self._model(batch.input_ids, batch.positions, context)
        chosen = hidden.index_select(0, batch.sample_index)
        return Launched(plan, batch, hidden, chosen, lambda: self._greedy(batch, chosen))

    def prepare(self) -> bool:
        return False

    def _greedy(self, batch: Batch, chosen: Tensor) -> Tensor:
        tokens = self._head.likeliest(chosen)
        self._table.write(batch.sample_rows, batch.sample_positions, tokens)
        return tokens
