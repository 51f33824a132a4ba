"""The seat of structured output: compiles beside the loop, fills masks while the device computes, judges tokens."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from octavo.base import scores
from octavo.base.errors import ConfigError, Overloaded, UserError
from octavo.base.plan import StepPlan, StepResult
from octavo.base.wire import EngineRequest, TokenOutput, Vocabulary
from octavo.engine.seat import Review
from octavo.grammar.alone import take
from octavo.grammar.compiled import Compiled
from octavo.grammar.compiler import Compiler, no_end
from octavo.grammar.crew import Anyone, Crew
from octavo.grammar.guide import Guide
from octavo.grammar.registry import choices
from octavo.grammar.rows import HostMemory
from octavo.grammar.spec import RIDER, GrammarSpec, decode_spec
from octavo.sched.finish import refused

log = logging.getLogger(__name__)

FLOOR = -9999.0  # log-probability of a token that the model did not choose
MAX_STEPS = 16  # more than are ever in flight
PARAM = "structured_outputs"


class _Held:
    """A request that waits for its constraint."""

    __slots__ = ("future", "guide", "request", "since", "spec")

    def __init__(self, request: EngineRequest, spec: GrammarSpec, future: "Future[Compiled]") -> None:
        self.request = request
        self.spec = spec
        self.future = future
        self.guide: Anyone | None = None  # once it is compiled
        self.since = time.perf_counter()


class _Rider:
    """A request on a row of the device."""

    __slots__ = ("guide", "id", "rides")

    def __init__(self, id: str, guide: Anyone) -> None:
        self.id = id
        self.guide = guide
        self.rides = True  # until a token of its does not hold, which steps in flight build on


class _Crowd:
    """The riders of a step, with what is asked of them again as long as the next steps have the same."""

    __slots__ = ("found", "guides", "places", "rows", "sample")

    def __init__(self, plan: StepPlan, found: list[tuple[int, _Rider]]) -> None:
        self.rows, self.sample = plan.rows, plan.sample
        self.found = found  # places in the sample
        self.guides = [rider.guide for _, rider in found]
        self.places = np.array([place for place, _ in found], dtype=np.int32)


class ConstrainedSeat:
    """See engine/seat.py. `vocab_size`: width of the logits; `max_held`: requests that may wait; `memory`: from
    which the executor sends masks; `followers`: processes that may help to follow."""

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        max_held: int,
        memory: HostMemory | None = None,
        followers: int = 0,
    ) -> None:
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_held = max_held
        self._memory = memory
        self._followers = followers
        self._compiler: Compiler | None = None
        self._crew: Crew | None = None
        self._cold = True
        self._held: dict[str, _Held] = {}
        self._guides: dict[str, Anyone] = {}
        self._rows: dict[int, _Rider] = {}  # of the device, as far as they have a guide
        self._crowd: _Crowd | None = None  # of the newest step, until one of it goes
        self._sampled: dict[int, _Crowd] = {}  # by step
        self.figures: dict[str, float] = {}  # empty until a constraint comes: it goes out with every step

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def in_turn(self) -> bool:
        """A mask needs the token before it."""
        return bool(self._guides)

    def provide(self, vocabulary: Vocabulary) -> None:
        if self._compiler is None:
            self._compiler = Compiler(vocabulary, self._vocab_size)
            self._crew = Crew(self._compiler.setup, self._compiler.table, self._memory, self._followers)

    def prepare(self) -> None:
        if self._compiler is not None and self._cold:
            self._cold = False
            self._compiler.warm()
            if self._crew is not None:
                self._crew.start()

    # --- before a request runs

    def hold(self, request: EngineRequest) -> bool:
        data = request.riders.get(RIDER)
        if data is None:
            return False
        if self._compiler is None:
            raise UserError("structured output needs a model with a tokenizer", param=PARAM)
        if len(self._held) >= self._max_held:
            raise Overloaded("too many constraints wait to be compiled; try again later")
        try:
            spec = decode_spec(data)
            choices(spec.backend)
        except msgspec.MsgspecError:
            raise UserError("the constraint cannot be read", param=PARAM) from None
        except ConfigError as error:
            raise UserError(str(error), param=PARAM) from None
        future = self._compiler.submit(spec)
        held = _Held(request, spec, future)
        if future.done():
            self._count("grammar_cache_hits")
            self._admit(held)
            if self._has_begun(held):
                return False
        self._held[request.id] = held
        self._count("grammar_waiting")
        return True

    def ready(self) -> tuple[list[EngineRequest], list[TokenOutput]]:
        requests: list[EngineRequest] = []
        outputs: list[TokenOutput] = []
        if not self._held:
            return requests, outputs
        for held in [held for held in self._held.values() if held.future.done()]:
            try:
                if held.guide is None:
                    self._count("grammar_compiles")
                    self._count("grammar_compile_seconds", time.perf_counter() - held.since)
                    self._admit(held)
                if not self._has_begun(held):
                    continue
                requests.append(held.request)
            except UserError as error:
                outputs.append(refused(held.request.id, error))
            del self._held[held.request.id]
            self._count("grammar_waiting", -1)
        return requests, outputs

    def _has_begun(self, held: _Held) -> bool:
        assert self._crew is not None
        assert held.guide is not None
        return self._crew.has_begun(held.guide)

    def drop(self, ids: Sequence[str]) -> list[TokenOutput]:
        dropped = [id for id in ids if self._held.pop(id, None) is not None]
        for id in dropped:
            self.ended(id)
            self._count("grammar_waiting", -1)
        return [TokenOutput(id, [], "abort") for id in dropped]

    def _count(self, name: str, by: float = 1) -> None:
        self.figures[name] = self.figures.get(name, 0) + by

    def _admit(self, held: _Held) -> None:
        """Raises UserError for a constraint that was refused, and for one that max_tokens has no room for."""
        request, spec = held.request, held.spec
        assert self._compiler is not None
        assert self._crew is not None
        try:
            compiled = held.future.result()
        except UserError:
            raise
        except Exception as error:
            log.error("a constraint could not be compiled", exc_info=error)
            raise UserError("structured output: the constraint could not be compiled", param=spec.param) from None
        sampling = request.sampling
        limit = min(max(1, sampling.max_tokens), self._max_model_len - len(request.tokens))
        ends = frozenset(token for token in sampling.eos_token_ids if token < self._vocab_size)
        if not ends:
            raise UserError("structured output needs a model with an end of sequence", param=spec.param)
        guide = Guide(compiled, spec, self._compiler.table, ends, limit)
        if spec.must_end and not spec.insist and guide.shortest is None:
            spec = replace(spec, finish_within_budget=False)
            guide = Guide(compiled, spec, self._compiler.table, ends, limit)
        if spec.must_end:
            shortest = guide.shortest
            if shortest is None:
                raise no_end(spec)
            if shortest > limit:
                raise UserError(
                    f"structured output: the shortest text that fits the constraint needs {shortest} tokens; "
                    f"max_tokens leaves {limit}",
                    param="max_tokens",
                )
        taken = [] if request.progress is None else request.progress.tokens
        if not all(take(guide, each) == each for each in taken):
            raise UserError("structured output: the constraint could not be taken up again", param=spec.param)
        held.guide = self._guides[request.id] = self._crew.add(guide, compiled, spec, ends, limit, taken)

    # --- steps

    def riders(self, plan: StepPlan) -> dict[str, Any]:
        rows = self._rows
        if plan.dropped or plan.added:
            self._crowd = None
        for row in plan.dropped:
            rows.pop(row, None)
        if not self._guides:
            rows.clear()
            return {}
        for added in plan.added:
            guide = self._guides.get(added.id)
            if guide is not None:
                rows[added.row] = _Rider(added.id, guide)
            else:
                rows.pop(added.row, None)
        crowd = self._crowd
        if crowd is None or crowd.rows != plan.rows or crowd.sample != plan.sample:
            crowd = self._crowd = self._gathered(plan)
        if not crowd.found:
            return {}
        self._sampled[plan.step] = crowd
        if len(self._sampled) > MAX_STEPS:  # steps that failed and had no result
            del self._sampled[min(self._sampled)]
        assert self._crew is not None
        begin = time.perf_counter()
        masks = self._crew.fill(crowd.guides)
        self._count("grammar_mask_seconds", time.perf_counter() - begin)
        return {RIDER: (crowd.places, masks)}

    def _gathered(self, plan: StepPlan) -> _Crowd:
        rows, on, guides = self._rows, plan.rows, self._guides
        found = [
            (place, rider)
            for place, index in enumerate(plan.sample)
            if (rider := rows.get(on[index])) is not None and rider.rides and guides.get(rider.id) is rider.guide
        ]
        assert self._crew is not None
        rank = self._crew.rank
        found.sort(key=lambda each: rank(each[1].guide))
        return _Crowd(plan, found)

    def review(self, plan: StepPlan, result: StepResult) -> Review | None:
        crowd = self._sampled.pop(plan.step, None)
        if crowd is None or self._crew is None:
            return None
        found, guides = crowd.found, crowd.guides
        if crowd is not self._crowd:  # some may have ended meanwhile
            found = [each for each in found if self._guides.get(each[1].id) is each[1].guide]
            guides = [rider.guide for _, rider in found]
        tokens = [result.tokens[place] for place, _ in found]
        standing = self._crew.take(guides, tokens)
        failed = {
            rider.id: UserError(f"structured output: {rider.guide.failure}", param=rider.guide.param)
            for _, rider in found
            if rider.guide.failure is not None
        }
        if standing == tokens and not failed:
            return None
        altered: dict[str, tuple[int, int]] = {}
        for (place, rider), sampled, stands in zip(found, tokens, standing):
            if stands != sampled and rider.id not in failed:
                altered[rider.id] = place, stands
                rider.rides = False
                self._crowd = None
        return Review(_altered(result, list(altered.values())), list(altered), failed)

    def ended(self, id: str) -> None:
        guide = self._guides.pop(id, None)
        if guide is not None and self._crew is not None:
            self._crew.remove(guide)
            self._crowd = None

    def shutdown(self) -> None:
        if self._crew is not None:
            self._crew.close()
        if self._compiler is not None:
            self._compiler.close()


def _altered(result: StepResult, changes: list[tuple[int, int]]) -> StepResult:
    """The result with other tokens at some places, their log-probabilities as far as they are known."""
    tokens, logprobs = list(result.tokens), list(result.logprobs)
    for place, token in changes:
        tokens[place] = token
        if logprobs and logprobs[place]:
            logprobs[place] = scores.write([_score(scores.read(logprobs[place])[0], token)])
    return replace(result, tokens=tokens, logprobs=logprobs)


def _score(entry: scores.TokenLogprobs | None, token: int) -> scores.TokenLogprobs:
    assert entry is not None
    if token in entry.ids:
        place = entry.ids.index(token)
        return replace(entry, token=token, logprob=entry.logprobs[place], rank=place + 1)
    return replace(entry, token=token, logprob=FLOOR, rank=max(entry.rank, len(entry.ids)) + 1)
