"""The second waist: what the scheduler tells the worker to do in one step, and what comes back.

A plan holds differences only: rows that appear, rows that go, blocks that were added. A row is an index into
the worker's RequestTable and belongs to one request from `AddedRow` until `dropped`.

The rule of progress: row r has `known` tokens and `computed` tokens. A step computes `num_tokens[i]` of them
from `starts[i]`. If that reaches the end of what is known, the row is in `sample`, and the sampled token lands
at position ``starts[i] + num_tokens[i]`` of the row's token line on the device, where the next step finds it.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from octavo.base.wire import Sampling


class AddedRow(Struct, frozen=True, array_like=True):
    """A request that takes a row: new, or back after preemption (then `tokens` holds its output so far too)."""

    row: int
    id: str
    tokens: Sequence[int]  # all known tokens: the prompt, then output so far; a list or an array of 32 bits
    num_prompt: int
    num_computed: int  # found in the prefix cache
    sampling: Sampling
    blocks: list[list[int]]  # per KV group, the block table up to now; 0 marks a freed or unneeded place


class NewBlocks(Struct, frozen=True, array_like=True):
    """Blocks appended to the tables of rows that already exist; columns as those of a StepPlan, one entry a block."""

    rows: Sequence[int]
    groups: Sequence[int]  # KV group
    places: Sequence[int]  # index in the row's table of that group
    blocks: Sequence[int]


class StepPlan(Struct, frozen=True, array_like=True):
    """One step. `rows`, `num_tokens` and `starts` run in parallel; order is the order in the batch.

    These columns are lists, or 64-bit arrays that numpy takes as they lie. A column never changes once it is in a
    plan, and the plans of steps with the same rows may share one.
    """

    step: int
    dropped: list[int]  # rows to forget, before `added` takes effect
    added: list[AddedRow]
    new_blocks: list[NewBlocks]
    rows: Sequence[int]
    num_tokens: Sequence[int]
    starts: Sequence[int]
    sample: Sequence[int]  # indexes into `rows` of those that yield a token this step
    riders: dict[str, Any] = {}  # a feature's own small struct, by the feature's name; the core never opens it

    @property
    def total_tokens(self) -> int:
        return sum(self.num_tokens)


class StepResult(Struct, frozen=True, array_like=True):
    """What the device made of a plan; all lists run in parallel with ``plan.sample``."""

    step: int
    tokens: list[int]  # one a sampled row; -1 when its logits were not finite; NONE_LEFT
    logprobs: list[bytes] = []  # lines (base/scores) of each sampled row, one a token; no entries where nobody asked
    prompt_logprobs: dict[int, bytes] = {}  # index into plan.rows -> lines of positions starts+1 ..
    more: dict[int, list[int]] = {}  # index into plan.sample -> tokens accepted behind that one, where drafts stood
    riders: dict[str, Any] = {}


NONE_LEFT = -2
"""Instead of a token: the model's logits are sound, but the rules of the request forbid every one."""

PAD_BLOCK = 0  # block 0 is never given out: padding writes land there
