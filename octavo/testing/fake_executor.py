"""FakeExecutor: an Executor without torch that believes nothing.

It keeps rows as a worker would, from plans alone, and simulates the KV cache: each block remembers which tokens
were written to it, at which positions and for which group. Every forward checks the laws of a plan and that the
blocks a row reads hold that row's own tokens, so that wrong sharing, early freeing and overwriting are all found.
The next token is a pure function of the tokens before it (and of the seed, for sampled requests).
"""

import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.base.clock import Clock, SystemClock
from octavo.base.config import Resolved
from octavo.base.errors import EngineError
from octavo.base.plan import PAD_BLOCK, AddedRow, NewBlocks, StepPlan, StepResult
from octavo.base.scores import TokenLogprobs, write
from octavo.base.specs import KVLayout
from octavo.base.wire import Sampling

NextToken = Callable[[Sequence[int], int, Sampling], int]
"""(all known tokens, how many of them are prompt, sampling) -> next token"""


class PlanViolation(AssertionError):
    """A plan broke one of its laws, or a row would have read another's keys and values."""


def fold_model(vocab_size: int) -> NextToken:
    """A model whose next token is a checksum of all tokens so far; greedy requests ignore the seed.

    `allowed_token_ids` is obeyed, so that tests can keep to tokens with a printable text.
    """

    def next_token(tokens: Sequence[int], num_prompt: int, sampling: Sampling) -> int:
        del num_prompt
        digest = zlib.crc32(b"".join(t.to_bytes(4, "little") for t in tokens))
        if sampling.temperature > 0:
            digest = zlib.crc32(sampling.seed.to_bytes(8, "little"), digest)
        if sampling.allowed_token_ids:
            return sampling.allowed_token_ids[digest % len(sampling.allowed_token_ids)]
        return digest % vocab_size

    return next_token


def expected_tokens(
    model: NextToken, prompt: Sequence[int], sampling: Sampling, max_model_len: int = 1 << 30
) -> tuple[list[int], str]:
    """What a request must yield whatever its batch, schedule or cache: (output tokens, finish reason)."""
    tokens = list(prompt)
    ends = (*sampling.eos_token_ids, *sampling.stop_token_ids)
    output: list[int] = []
    while True:
        token = model(tokens, len(prompt), sampling)
        tokens.append(token)
        output.append(token)
        if token in ends and len(output) >= sampling.min_tokens:
            return output, "stop"
        if len(output) >= sampling.max_tokens or len(tokens) >= max_model_len:
            return output, "length"


@dataclass(slots=True)
class _Row:
    """A request as the worker's table knows it."""

    id: str
    tokens: list[int]
    num_prompt: int
    computed: int
    sampling: Sampling
    tables: list[list[int]]  # per group
    broken: bool = False  # a failed step or bad logits: tokens after this mean nothing


@dataclass(slots=True)
class _Block:
    """What one physical block holds."""

    group: int = -1
    start: int = -1  # position of the first slot
    tokens: list[int | None] = field(default_factory=list)
    poisoned: bool = False  # written by a step that failed


class FakePending:
    """A result that shows itself when its time has come."""

    def __init__(self, result: StepResult | None, ready_at: float, clock: Clock, on_failure: Callable[[], None]):
        self._result = result
        self._ready_at = ready_at
        self._clock = clock
        self._on_failure = on_failure

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._clock.now() >= self._ready_at

    def result(self) -> StepResult:
        """Wait and give the result; EngineError for a step that was made to fail."""
        wait = self._ready_at - self._clock.now()
        if wait > 0:
            advance = getattr(self._clock, "advance", time.sleep)
            advance(wait)
        if self._result is None:
            self._on_failure()
            raise EngineError("the step failed (injected)")
        return self._result


class FakeExecutor:
    """See the module's text.

    `latency_s` is the time of one step on a device that runs steps one after another; `fail_steps` are numbers
    (``StepPlan.step``) of steps whose result raises EngineError; `bad_logits` are ids of requests whose sampled
    token is always -1.
    """

    def __init__(
        self,
        vocab_size: int = 1000,
        *,
        next_token: NextToken | None = None,
        latency_s: float = 0.0,
        fail_steps: Collection[int] = (),
        bad_logits: Collection[str] = (),
        capacity_bytes: int = 64 << 20,
        max_rows: int | None = None,
        max_tokens: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.next_token = next_token or fold_model(vocab_size)
        self.latency_s = latency_s
        self.fail_steps = set(fail_steps)
        self.bad_logits = set(bad_logits)
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self.rows: dict[int, _Row] = {}
        self.steps = 0
        self.expected = 0  # steps that were told of before the one before was sampled
        self._expected: StepPlan | None = None
        self.tokens_computed = 0
        self.violations: list[str] = []  # for callers that turn every exception into a failed step
        self.closed = False
        self.down: set[str] = set()  # tags whose memory is given back
        self._capacity_bytes = capacity_bytes
        self._clock: Clock = clock or SystemClock()
        self._ready_at = 0.0
        self._plan: StepPlan | None = None
        self._last_step = -1
        self._failing = False
        self._undelivered = 0

    # --- the Executor protocol

    def kv_capacity(self) -> int:
        """What the constructor was told."""
        return self._capacity_bytes

    def adopt(self, resolved: Resolved) -> None:
        """It believes nothing."""

    def kv_dtype(self) -> str:
        """The fake keeps no keys and values."""
        return "float32"

    def start(self, layout: KVLayout) -> None:
        """Allocate the simulated cache."""
        self._layout = layout
        self._blocks = [_Block() for _ in range(layout.num_blocks)]

    def host_memory(self, length: int) -> Any:
        return np.empty(length, dtype=np.int32)

    def pin(self, array: Any) -> bool:
        del array
        return True

    def unpin(self, array: Any) -> None:
        """It is as it was."""

    def expect(self, plan: StepPlan) -> None:
        """Nothing is prepared, but this plan has to come next."""
        self._law(self._plan is not None, "a step is expected while none waits to be sampled")
        self._expected = plan
        self.expected += 1

    def forward(self, plan: StepPlan) -> None:
        """Check the plan, write its tokens to their blocks, check what each row reads. Raises PlanViolation."""
        self._law(self._plan is None, "forward was called twice without sample between")
        self._law(self._expected is None or plan is self._expected, "another step comes than was expected")
        self._expected = None
        self._law(not self.down, "a step came while the device slept")
        self._law(plan.step > self._last_step, f"step {plan.step} follows step {self._last_step}")
        self._last_step = plan.step
        self._plan = plan
        self.steps += 1
        self._apply_differences(plan)
        self._check_shape(plan)
        self._failing = plan.step in self.fail_steps or any(self.rows[row].broken for row in plan.rows)
        written = self._write(plan)
        for row, count in zip(plan.rows, plan.num_tokens):
            self._check_reads(row, count)
            self.rows[row].computed += count
        if self._failing:
            for block in written:
                self._blocks[block].poisoned = True
        self.tokens_computed += plan.total_tokens

    def sample(self, riders: dict[str, Any]) -> FakePending:
        """Sample the step last given to `forward`; the pending result completes `latency_s` later."""
        plan = self._plan
        if plan is None:
            raise PlanViolation("sample was called without forward")
        self._plan = None
        result = None if self._failing else self._result(plan, riders)
        if result is None:
            self._undelivered += 1
            for row in plan.rows:
                self._break(self.rows[row])
        self._ready_at = max(self._ready_at, self._clock.now()) + self.latency_s
        return FakePending(result, self._ready_at, self._clock, self._failure_delivered)

    def prepare(self) -> bool:
        return False

    def sleep(self, level: int) -> int:
        """Forget what the blocks hold, as a device would."""
        self._law(self._plan is None, "memory was taken from a step in flight")
        self._blocks = [_Block() for _ in self._blocks]
        self.down = {"weights", "kv_cache"}
        return level

    def wake(self, tags: Sequence[str]) -> list[str]:
        self.down -= set(tags)
        return sorted(self.down)

    def shutdown(self) -> None:
        """Only noted."""
        self.closed = True

    # --- laws

    def _law(self, holds: bool, text: str) -> None:
        if not holds:
            self.violations.append(text)
            raise PlanViolation(text)

    def _apply_differences(self, plan: StepPlan) -> None:
        for row in plan.dropped:
            self._law(row in self.rows, f"row {row} is dropped but nobody has it")
            del self.rows[row]
        for added in plan.added:
            self._add(added)
        for new in plan.new_blocks:
            self._add_blocks(new)

    def _add(self, added: AddedRow) -> None:
        self._law(added.row not in self.rows, f"row {added.row} is added but taken")
        self._law(added.row >= 0, f"row {added.row} is negative")
        self._law(self.max_rows is None or added.row < self.max_rows, f"row {added.row} is beyond the table")
        self._law(all(row.id != added.id for row in self.rows.values()), f"request {added.id} has a row already")
        self._law(len(added.blocks) == len(self._layout.groups), "a block table is missing")
        self._law(0 <= added.num_computed < len(added.tokens), "an added row must have a token left to compute")
        self._law(0 < added.num_prompt <= len(added.tokens), "the prompt must be part of the known tokens")
        self._law(all(0 <= t < self.vocab_size for t in added.tokens), "a token is outside the vocabulary")
        for blocks in added.blocks:
            self._check_blocks(blocks)
        self.rows[added.row] = _Row(
            added.id,
            list(added.tokens),
            added.num_prompt,
            added.num_computed,
            added.sampling,
            [list(blocks) for blocks in added.blocks],
        )

    def _add_blocks(self, new: NewBlocks) -> None:
        self._check_blocks(new.blocks)
        for row, group, place, block in zip(new.rows, new.groups, new.places, new.blocks, strict=True):
            self._law(row in self.rows, f"new blocks for row {row}, which nobody has")
            tables = self.rows[row].tables
            self._law(0 <= group < len(tables), "a new block for a group that is not there")
            self._law(place == len(tables[group]), f"a new block at {place} of a table of {len(tables[group])}")
            tables[group].append(block)
        lengths = [{len(table) for table in self.rows[row].tables} for row in new.rows]
        self._law(all(len(each) == 1 for each in lengths), "new blocks for another number of groups")

    def _check_blocks(self, blocks: Sequence[int]) -> None:
        num_blocks = self._layout.num_blocks
        self._law(all(0 <= block < num_blocks for block in blocks), "a block is outside the pool")

    def _check_shape(self, plan: StepPlan) -> None:
        self._law(len(plan.rows) > 0, "a plan without rows")
        self._law(len(plan.rows) == len(plan.num_tokens) == len(plan.starts), "rows, num_tokens, starts differ")
        self._law(len(set(plan.rows)) == len(plan.rows), "a row stands twice in one plan")
        self._law(self.max_tokens is None or plan.total_tokens <= self.max_tokens, "too many tokens in a step")
        sample = set(plan.sample)
        self._law(len(sample) == len(plan.sample), "an index stands twice in sample")
        for i, (row, count, start) in enumerate(zip(plan.rows, plan.num_tokens, plan.starts)):
            self._law(row in self.rows, f"row {row} is planned but nobody has it")
            state = self.rows[row]
            known = len(state.tokens)
            self._law(count > 0, f"row {row} is planned with {count} tokens")
            self._law(start == state.computed, f"row {row} starts at {start}, computed {state.computed}")
            self._law(start + count <= known, f"row {row} would compute {start + count} of {known} known tokens")
            self._law((start + count == known) == (i in sample), f"row {row}: sample says {i in sample}")

    # --- the simulated KV cache

    def _write(self, plan: StepPlan) -> Collection[int]:
        """All writes of a step come before its reads. Returns the blocks written to."""
        size = self._layout.block_size
        writers: dict[int, int] = {}  # block -> row that writes to it in this step
        for row, count, start in zip(plan.rows, plan.num_tokens, plan.starts):
            state = self.rows[row]
            for group, table in enumerate(state.tables):
                self._law(len(table) * size >= start + count, f"row {row} has no block for token {start + count - 1}")
                for place in range(start // size, (start + count - 1) // size + 1):
                    block = table[place]
                    self._law(block != PAD_BLOCK, f"row {row} would write to block 0, place {place}")
                    self._law(block not in writers, f"rows {row} and {writers.get(block)} write block {block}")
                    writers[block] = row
                    self._write_block(state, group, block, place, start, start + count)
        self._check_written_are_private(writers, {added.row for added in plan.added})
        return writers

    def _write_block(self, state: _Row, group: int, block: int, place: int, start: int, end: int) -> None:
        size = self._layout.block_size
        cell = self._blocks[block]
        base = place * size
        if start <= base or cell.group != group or cell.start != base:
            cell.group, cell.start, cell.tokens = group, base, [None] * size
            cell.poisoned = False
        first, last = max(start, base), min(end, base + size)
        cell.tokens[first - base : last - base] = state.tokens[first:last]

    def _check_written_are_private(self, writers: dict[int, int], added: set[int]) -> None:
        """Nobody writes where another row reads; but a row added in this step may read what another writes in it."""
        for row, state in self.rows.items():
            if row in added:
                continue
            for group, table in enumerate(state.tables):
                live = table[self._first_live(group, state.computed) :]
                if not writers.keys().isdisjoint(live):
                    for block in live:
                        writer = writers.get(block, row)
                        self._law(writer == row, f"row {writer} writes block {block}, which row {row} reads")

    def _first_live(self, group: int, computed: int) -> int:
        """Index in a table of the first block that a row may still read."""
        window = self._layout.groups[group].spec.window
        return 0 if window is None else max(0, computed - window + 1) // self._layout.block_size

    def _check_reads(self, row: int, count: int) -> None:
        state = self.rows[row]
        size = self._layout.block_size
        end = state.computed + count
        for group, table in enumerate(state.tables):
            window = self._layout.groups[group].spec.window
            oldest = 0 if window is None else max(0, state.computed - window + 1)
            for place in range(oldest // size, (end - 1) // size + 1):
                base = place * size
                first, last = max(oldest, base), min(end, base + size)
                cell = self._blocks[table[place]]
                if cell.poisoned:
                    self._law(self._failing or self._undelivered > 0, f"row {row} reads what a failed step wrote")
                    self._failing = True
                    continue
                holds = (
                    table[place] != PAD_BLOCK
                    and cell.group == group
                    and cell.start == base
                    and cell.tokens[first - base : last - base] == state.tokens[first:last]
                )
                self._law(holds, f"row {row} ({state.id}) group {group}: block {table[place]} is not its own at {base}")

    # --- results

    def _result(self, plan: StepPlan, riders: dict[str, Any]) -> StepResult:
        masks = masks_of(riders)
        tokens: list[int] = []
        logprobs: list[bytes] = []
        for i, index in enumerate(plan.sample):
            state = self.rows[plan.rows[index]]
            logprobs.append(b"")
            if state.id in self.bad_logits:
                self._break(state)
                tokens.append(-1)
                continue
            token = self.next_token(state.tokens, state.num_prompt, state.sampling)
            token = nearest_allowed(token, masks.get(i))
            tokens.append(token)
            if state.sampling.logprobs >= 0:
                line = fake_logprobs(state.tokens, token, state.sampling.logprobs, self.vocab_size)
                logprobs[i] = write([line])
            state.tokens.append(token)
        prompt_logprobs: dict[int, bytes] = {}
        for i, (row, count, start) in enumerate(zip(plan.rows, plan.num_tokens, plan.starts)):
            state = self.rows[row]
            last = min(start + count + 1, state.num_prompt)
            if state.sampling.prompt_logprobs >= 0 and start + 1 < last:
                k = state.sampling.prompt_logprobs
                places = range(start + 1, last)
                prompt_logprobs[i] = write(
                    [fake_logprobs(state.tokens[:p], state.tokens[p], k, self.vocab_size) for p in places]
                )
        return StepResult(plan.step, tokens, logprobs if any(logprobs) else [], prompt_logprobs)

    def _break(self, state: _Row) -> None:
        """The row's token line goes on with a token that stands for nothing."""
        if state.computed == len(state.tokens):
            state.tokens.append(0)
        state.broken = state.broken or state.id not in self.bad_logits

    def _failure_delivered(self) -> None:
        """From now on the caller knows that everything in flight is lost."""
        self._undelivered = 0


def masks_of(riders: dict[str, Any]) -> dict[int, set[int]]:
    """Place in the sample -> tokens that its mask allows."""
    if "grammar" not in riders:
        return {}
    rows, masks = riders["grammar"]
    return {
        int(row): {32 * word + bit for word, value in enumerate(mask.tolist()) for bit in range(32) if value >> bit & 1}
        for row, mask in zip(rows, masks)
    }


def nearest_allowed(token: int, allowed: set[int] | None) -> int:
    """The token itself or the next one that the mask allows, round the end; -1 if it allows none."""
    if allowed is None or token in allowed:
        return token
    return min(allowed, key=lambda other: (other < token, other), default=-1)


def fake_logprobs(before: Sequence[int], token: int, k: int, vocab_size: int) -> TokenLogprobs:
    """Log-probabilities that depend on the tokens before and nothing else; the chosen token is the likeliest."""
    seed = zlib.crc32(b"".join(t.to_bytes(4, "little") for t in before))
    k = min(k, vocab_size)
    logprob = -(1 + seed % 1000) / 1024  # a float of 32 bits can hold it
    return TokenLogprobs(
        token=token,
        logprob=logprob,
        rank=1,
        ids=[(token + i) % vocab_size for i in range(k)],
        logprobs=[logprob - i for i in range(k)],
    )
