"""Runner: the fixed step of the device.

Table, batch, model; then head, rules, draw, the token into the table, the copy out. Always in this order, with no
feature's name and no wait for the device: what differs between steps is in the plan, what differs between models is
in the objects given at assembly.
"""

from typing import Any

import torch
from torch import Tensor

from octavo.base.errors import EngineError
from octavo.base.plan import StepPlan
from octavo.platform.base import Platform
from octavo.worker.head.generate import GenerateHead
from octavo.worker.landing import Landing
from octavo.worker.launch import Launched, Launcher
from octavo.worker.pending import FailedPending, Outputs, StepPending, failure
from octavo.worker.prompt_logprobs import PromptLogprobs
from octavo.worker.sample.sampler import Drawn, Prepared, Sampler
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable


class Runner:
    """Takes plans in order: ``forward(plan)``, then ``sample(riders)``. Both return while the device still works.

    A step that fails on the host, out of memory for one, is told by its Pending's `result`; the rows of other
    steps stay as they were and the next plan may be given.
    """

    def __init__(
        self,
        platform: Platform,
        stager: Stager,
        table: RequestTable,
        launcher: Launcher,
        head: GenerateHead,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs,
    ) -> None:
        self._platform = platform
        self._stager = stager
        self._landing = Landing(platform, table.max_rows)
        self._table = table
        self._launcher = launcher
        self._head = head
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._launched: Launched | EngineError | None = None

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

    def prepare(self) -> bool:
        """Use a quiet moment between steps; True while there is more to do."""
        return self._launched is None and self._launcher.prepare()

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> Launched:
        self._table.apply(plan)
        self._sampler.apply(plan)
        self._prompt_logprobs.apply(plan)
        return self._launcher.launch(plan, whole=self._prompt_logprobs.asked(plan.rows))

    @torch.inference_mode()
    def _sample(self, launched: Launched, riders: dict[str, Any]) -> StepPending:
        batch = launched.batch
        spans = self._prompt_logprobs.prepare(batch)
        prompt = None if spans is None else self._prompt_logprobs.compute(launched.hidden, self._head, spans)
        prepared: Prepared | None = None
        drawn: Drawn | None = None
        if batch.host_sample_rows.size:
            if not riders and self._sampler.plain(batch.host_sample_rows):
                drawn = Drawn(launched.greedy(), None)
            else:
                prepared = self._sampler.prepare(batch)
                drawn = self._draw(launched, prepared, riders)
        outputs = Outputs(
            tokens=self._landing.take(drawn.tokens) if drawn else None,
            spoiled=self._table.spoiled[batch.host_sample_rows] if self._table.any_spoiled else None,
            logprobs=self._out(drawn.logprobs if drawn else None),
            wanted=prepared.wanted.tolist() if prepared else [],
            tops=prepared.tops if prepared else [],
            prompt=self._out(prompt),
            spans=spans,
        )
        event = self._platform.event()
        self._stager.guard(event)
        return StepPending(launched.plan.step, event, outputs)

    def _draw(self, launched: Launched, prepared: Prepared, riders: dict[str, Any]) -> Drawn:
        drawn = self._sampler.sample(self._head(launched.chosen), prepared, riders)
        batch = launched.batch
        self._table.write(batch.sample_rows, batch.sample_positions, drawn.tokens)
        return drawn

    def _out(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self._platform.download(tensor)
