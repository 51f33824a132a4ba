"""Plans that no request asked for: to measure memory and to wake the device. Ordinary plans, all on block 0."""

from octavo.base.config import Resolved
from octavo.base.params import MAX_LOGPROBS
from octavo.base.plan import PAD_BLOCK, AddedRow, StepPlan
from octavo.base.specs import KVLayout
from octavo.base.wire import Sampling

PROBE_BLOCKS = 2  # that these plans need at most: they write block 0 only
WARM_TOKENS = 16
_STEP = -1
_PLAIN = Sampling(seed=0, max_tokens=1)
# Every rule at once: what a step of sampling can cost at most.
_COSTLY = Sampling(
    seed=0,
    max_tokens=1,
    temperature=0.7,
    top_p=0.9,
    min_p=0.01,
    typical_p=0.9,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    logit_bias=((0, 0.5),),
    allowed_token_ids=(0, 1),
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
)


def largest_plan(layout: KVLayout, max_rows: int, max_tokens: int, max_model_len: int) -> StepPlan:
    """As many rows and tokens as a step may have, the first row as long as can be, every row sampled by every rule."""
    rows = min(max_rows, max_tokens)
    lengths = []
    spare = max_tokens - rows
    for _ in range(rows):
        extra = min(spare, max_model_len - 1)
        lengths.append(1 + extra)
        spare -= extra
    return _plan(layout, lengths, _COSTLY)


def prompt_tokens(resolved: Resolved, wanted: int = WARM_TOKENS) -> int:
    """So many, or what one step can compute of one prompt; by itself, those of the prompt that a start ends with."""
    return max(1, min(wanted, resolved.max_model_len - 1, resolved.max_num_batched_tokens))


def smallest_plan(layout: KVLayout) -> StepPlan:
    """One row of one token, sampled by every rule."""
    return _plan(layout, [1], _COSTLY)


def small_plan(layout: KVLayout, length: int) -> StepPlan:
    """One row of a short prompt, sampled plainly."""
    return _plan(layout, [length], _PLAIN)


def next_plan(plan: StepPlan) -> StepPlan:
    """One more token for each row of `plan`."""
    starts = [start + count for start, count in zip(plan.starts, plan.num_tokens)]
    return StepPlan(_STEP, [], [], [], plan.rows, [1] * len(plan.rows), starts, plan.sample)


def drop_plan(plan: StepPlan) -> StepPlan:
    """No work; the rows of `plan` go."""
    return StepPlan(_STEP, list(plan.rows), [], [], [], [], [], [])


def _plan(layout: KVLayout, lengths: list[int], sampling: Sampling) -> StepPlan:
    added = []
    for row, length in enumerate(lengths):
        blocks = [[PAD_BLOCK] * -(-length // layout.block_size) for _ in layout.groups]
        added.append(AddedRow(row, f"scratch-{row}", [0] * length, length, 0, sampling, blocks))
    rows = list(range(len(lengths)))
    return StepPlan(_STEP, [], added, [], rows, lengths, [0] * len(rows), rows)
