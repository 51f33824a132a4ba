"""Runner: the fixed step of the device.

Table, batch, model; then head, rules, draw, the token into the table, the copy out. Always in this order, with no
feature's name and no wait for the device: what differs between steps is in the plan, what differs between models is
in the objects given at assembly.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import StepPlan
from octavo.kernels.context import ForwardContext
from octavo.platform.base import Platform
from octavo.worker.batch import Batch, BatchBuilder
from octavo.worker.head.generate import GenerateHead, Model
from octavo.worker.pending import FailedPending, Outputs, StepPending, failure
from octavo.worker.prompt_logprobs import PromptLogprobs, PromptSpans
from octavo.worker.sample.sampler import Drawn, Prepared, Sampler
from octavo.worker.table import RequestTable


@dataclass(slots=True)
class _Launched:
    """A step between `forward` and `sample`."""

    plan: StepPlan
    batch: Batch
    hidden: Tensor  # [T, E]
    prepared: Prepared | None
    spans: PromptSpans | None


class Runner:
    """Takes plans in order: ``forward(plan)``, then ``sample(riders)``. Both return while the device still works.

    A step that fails on the host, out of memory for one, is told by its Pending's `result`; the rows of other
    steps stay as they were and the next plan may be given.
    """

    def __init__(
        self,
        platform: Platform,
        table: RequestTable,
        builder: BatchBuilder,
        model: Model,
        head: GenerateHead,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs,
        kv: list[Tensor],
        layer_group: list[int],
    ) -> None:
        self._platform = platform
        self._table = table
        self._builder = builder
        self._model = model
        self._head = head
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._kv = kv
        self._layer_group = layer_group
        self._launched: _Launched | EngineError | None = None

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step."""
        if self._launched is not None:
            raise EngineError(f"step {plan.step} came before the last one was sampled")
        try:
            self._launched = self._forward(plan)
        except Exception as error:
            self._launched = failure(plan.step, error)

    def sample(self, riders: dict[str, Any]) -> StepPending | FailedPending:
        """Enqueue the sampling of the step last given to `forward`. `riders`: what the rules of their names read."""
        launched, self._launched = self._launched, None
        if launched is None:
            raise EngineError("sample without a step")
        if isinstance(launched, EngineError):
            return FailedPending(launched)
        try:
            return self._sample(launched, riders)
        except Exception as error:
            return FailedPending(failure(launched.plan.step, error))

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> _Launched:
        self._table.apply(plan)
        self._sampler.apply(plan)
        self._prompt_logprobs.apply(plan)
        batch = self._builder.build(plan)
        prepared = self._sampler.prepare(batch)
        spans = self._prompt_logprobs.prepare(batch)
        context = ForwardContext(batch.groups, self._layer_group, self._kv, batch.prompt_lens)
        hidden = self._model(batch.input_ids, batch.positions, context)
        return _Launched(plan, batch, hidden, prepared, spans)

    @torch.inference_mode()
    def _sample(self, launched: _Launched, riders: dict[str, Any]) -> StepPending:
        batch, prepared, spans = launched.batch, launched.prepared, launched.spans
        drawn: Drawn | None = None
        if prepared is not None:
            logits = self._head(launched.hidden, batch.sample_index)
            drawn = self._sampler.sample(logits, prepared, riders)
            self._table.write(batch.sample_rows, batch.sample_positions, drawn.tokens.clamp(min=0))
        prompt = None if spans is None else self._prompt_logprobs.compute(launched.hidden, self._head, spans)
        outputs = Outputs(
            tokens=self._out(drawn.tokens if drawn else None),
            spoiled=self._table.spoiled[batch.host_sample_rows],
            logprobs=self._out(drawn.logprobs if drawn else None),
            wanted=prepared.wanted.tolist() if prepared else [],
            tops=prepared.tops if prepared else [],
            prompt=self._out(prompt),
            spans=spans,
        )
        return StepPending(launched.plan.step, self._platform.event(), outputs)

    def _out(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self._platform.download(tensor)
