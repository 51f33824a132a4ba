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
from octavo.platform.base import Platform
from octavo.worker.landing import Landing
from octavo.worker.launch import Launched, Launcher
from octavo.worker.model import Model
from octavo.worker.pending import FailedPending, Outputs, StepPending, failure
from octavo.worker.prompt_logprobs import PromptLogprobs
from octavo.worker.sample.logprobs import TOLD_INTS
from octavo.worker.sample.sampler import NOBODY, Drawn, Prepared, Sampler, Wanted
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable


@dataclass(slots=True)
class _Begun:
    """A step that is computed; what its sampling starts from, unless that is the likeliest tokens."""

    launched: Launched
    prepared: Prepared | None = None  # None: nothing is asked of the draw but temperatures
    logits: Tensor | None = None  # [S, V] fp32
    wanted: Wanted = NOBODY


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
        model: Model,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs,
    ) -> None:
        self._platform = platform
        self._stager = stager
        self._tokens = Landing(platform, torch.int64, table.max_rows)
        self._told = Landing(platform, torch.int32, table.max_rows * TOLD_INTS)
        self._table = table
        self._launcher = launcher
        self._model = model
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._begun: _Begun | EngineError | None = None
        self._inference = torch.inference_mode()  # kept, since to make one costs more than to enter it

    def expect(self, plan: StepPlan) -> None:
        """Prepare what `forward` will do for this plan, while the step before it is still to be sampled."""
        if not plan.added and not plan.dropped:
            with self._inference:
                self._launcher.expect(plan)

    def forward(self, plan: StepPlan) -> None:
        """Enqueue the model's part of a step."""
        if self._begun is not None:
            raise EngineError(f"step {plan.step} came before the last one was sampled")
        try:
            with self._inference:
                self._begun = self._forward(plan)
        except Exception as error:
            self._begun = failure(plan.step, error)

    def sample(self, riders: dict[str, Any]) -> StepPending | FailedPending:
        """Enqueue the sampling of the step last given to `forward`. `riders`: what the rules of their names read."""
        begun, self._begun = self._begun, None
        if begun is None:
            raise EngineError("sample without a step")
        if isinstance(begun, EngineError):
            return FailedPending(begun)
        try:
            with self._inference:
                return self._sample(begun, riders)
        except Exception as error:
            return FailedPending(failure(begun.launched.plan.step, error))

    def prepare(self) -> bool:
        """Use a quiet moment between steps; True while there is more to do."""
        return self._begun is None and self._launcher.prepare()

    def _forward(self, plan: StepPlan) -> "_Begun":
        self._sampler.apply(plan)
        self._prompt_logprobs.apply(plan)
        launched = self._launcher.launch(plan, whole=self._prompt_logprobs.asked(plan.rows))
        rows = launched.batch.host_sample_rows
        # The riders may be long in coming: all that does not need them is the device's to do meanwhile.
        return _Begun(launched) if self._sampler.plain(rows) else self._with_logits(launched)

    def _with_logits(self, launched: Launched) -> "_Begun":
        draws, rows = launched.draws, launched.batch.host_sample_rows
        if draws is None or not self._sampler.bare(rows):
            prepared = self._sampler.prepare(launched.batch)
            return _Begun(launched, prepared, self._model.logits(launched.chosen), prepared.wanted)
        begun = _Begun(launched, None, draws.score(), self._sampler.wanted(rows))
        if begun.wanted.places:
            draws.keep()
        return begun

    def _sample(self, begun: "_Begun", riders: dict[str, Any]) -> StepPending:
        launched = begun.launched
        batch = launched.batch
        drawn: Drawn | None = None
        if batch.host_sample_rows.size:
            if riders and begun.logits is None:
                begun = self._with_logits(launched)
            drawn = self._draw(begun, riders)
        # After the draw: a model may write over the logits that it gave last.
        spans = self._prompt_logprobs.prepare(batch)
        prompt = None
        if spans is not None and launched.hidden is not None:
            prompt = self._prompt_logprobs.compute(launched.hidden, self._model, spans)
        outputs = Outputs(
            tokens=self._tokens.take(drawn.tokens) if drawn else None,
            spoiled=self._table.spoiled[batch.host_sample_rows] if self._table.any_spoiled else None,
            logprobs=self._told.take(drawn.logprobs) if drawn and drawn.logprobs is not None else None,
            wanted=begun.wanted.places,
            tops=begun.wanted.tops,
            prompt=None if prompt is None else self._platform.download(prompt),
            spans=spans,
        )
        event = self._platform.event()
        self._stager.guard(event)
        return StepPending(launched.plan.step, event, outputs)

    def _draw(self, begun: "_Begun", riders: dict[str, Any]) -> Drawn:
        if begun.logits is None:
            return Drawn(begun.launched.greedy(), None)
        if begun.prepared is None:
            draws = begun.launched.draws
            assert draws is not None
            self._sampler.replay_riders(draws.rules, riders)
            return Drawn(draws.draw(), draws.describe() if begun.wanted.places else None)
        drawn = self._sampler.sample(begun.logits, begun.prepared, riders)
        batch = begun.launched.batch
        self._table.write(batch.sample_rows, batch.sample_positions, drawn.tokens)
        return drawn
