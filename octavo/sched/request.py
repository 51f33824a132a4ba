"""Request: the one mutable object of the plan side.

    WAITING -- start --> RUNNING -- end --> DONE
       ^                    |
       +----- preempt ------+          WAITING -- end --> DONE

A request is preempted with its newest token still on the device now and then; that token is appended when its
result arrives, and only then may the request start again.
"""

from collections.abc import MutableSequence
from enum import Enum
from typing import cast

from octavo.base import scores
from octavo.base.wire import EngineRequest, Progress
from octavo.kv.holding import Holding
from octavo.sched.ledger import ALWAYS, ATTENTION, COMPUTED, HORIZON, KNOWN, LIMIT, PROMPT, WIDTH, Ledger, Number


class State(Enum):
    """See the module's text for the transitions."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


Order = tuple[int, int]
"""Smaller is served first and preempted last: (class, place of arrival)."""

NO_ROW = -1


class Request:
    """A sequence and how far it has got. Progress is a number: each step lets `computed` chase `known`.

    `known` counts the tokens of `tokens` and those that steps in flight will yield; `computed` counts tokens
    whose keys and values are in the cache, or will be after the steps in flight.
    """

    known = Number(KNOWN)
    computed = Number(COMPUTED)
    # Two marks keep the steady decode to one comparison each; they only say when to look closer.
    horizon = Number(HORIZON)  # plan: `known` from which blocks are missing or no token may follow
    attention = Number(ATTENTION)  # update: number of tokens at which the request ends or fills a block

    __slots__ = (
        "_ledger",
        "arrived_s",
        "billed",
        "cached_tokens",
        "ends",
        "holding",
        "id",
        "limit",
        "line",
        "max_wait_s",
        "min_known",
        "num_prompt",
        "numbers",
        "order",
        "preemptions",
        "queued_s",
        "row",
        "ruled_ends",
        "sampling",
        "scored",
        "spoken",
        "state",
        "tenant",
        "torn",
        "void",
    )

    def __init__(self, wire: EngineRequest, order: Order, holding: Holding, max_model_len: int) -> None:
        sampling = wire.sampling
        self.id = wire.id
        self.sampling = sampling
        self.line = list(wire.tokens)  # `tokens`, as far as they are written down
        self.num_prompt = len(wire.tokens)
        self.order = order
        self.tenant = wire.tenant
        self.billed = self.num_prompt  # how many of `line` were counted against the tenant
        self.holding = holding
        self.state = State.WAITING
        self.row = NO_ROW
        self._ledger: Ledger | None = None
        self.numbers = cast(MutableSequence[int], [0] * WIDTH)
        self.limit = min(self.num_prompt + sampling.max_tokens, max_model_len)
        self.numbers[KNOWN] = self.numbers[PROMPT] = self.num_prompt
        self.numbers[LIMIT] = self.limit
        self.ends = frozenset(sampling.eos_token_ids + sampling.stop_token_ids)
        self.ruled_ends = sampling.eos_token_ids if sampling.eos_ruled else ()
        self.min_known = self.num_prompt + sampling.min_tokens
        self.cached_tokens = -1  # prompt tokens found in the cache at the first start; -1 before it
        self.spoken = False  # an output with a token was given
        self.scored = 0  # prompt positions whose log-probabilities were handed out
        self.torn = False  # the device's line of tokens is not ours any more: lay it in anew
        self.void = 0  # results in flight that built on a token which does not hold
        self.arrived_s = 0.0  # monotonic
        self.max_wait_s = wire.max_wait_s  # 0: no bound
        self.queued_s = 0.0  # from arrival to the first start
        self.preemptions = 0
        if wire.progress is not None:
            self._resume(wire.progress)

    def _resume(self, progress: Progress) -> None:
        """As after a preemption, though another engine did the work so far."""
        self.line += progress.tokens
        self.known = len(self.line)
        self.scored = progress.scored
        self.cached_tokens = progress.cached_tokens
        self.queued_s = progress.queued_s

    @property
    def tokens(self) -> list[int]:
        """All that are told of it: the prompt, then its output."""
        if self._ledger is not None:
            self._ledger.lines.settle()
        return self.line

    @property
    def started(self) -> bool:
        """Whether it has run, though it may have been preempted since."""
        return self.cached_tokens >= 0

    @property
    def in_flight(self) -> bool:
        """Whether a step in flight will yield a token."""
        return self.known > len(self.tokens)

    @property
    def may_hit(self) -> bool:
        """Whether the prefix cache may stand in for computing. Prompt log-probabilities need every logit once."""
        return self.sampling.prompt_logprobs < 0 or self.scored >= self.num_prompt

    def sit(self, row: int, ledger: Ledger) -> None:
        """Take a row of the worker and of the ledger."""
        self.row, self._ledger = row, ledger
        self.numbers = cast(MutableSequence[int], ledger.enter(row, self.numbers))

    def rise(self, ledger: Ledger) -> int:
        """Give the row back."""
        row, self.row, self._ledger = self.row, NO_ROW, None
        self.numbers = ledger.leave(row)
        return row

    def tear(self) -> None:
        """The device's newest token does not hold. What steps in flight make of it does not count, and no step is
        planned until they have ended."""
        self.torn = True
        self.void = self.known - len(self.tokens)
        self.horizon, self.attention = 0, ALWAYS

    def pass_over(self) -> None:
        """One of the results in flight that do not count has come; after the last the token that holds is computed."""
        self.void -= 1
        self.known -= 1
        if not self.void and self.state is State.RUNNING:
            self.computed = len(self.tokens) - 1

    def next_horizon(self) -> int:
        """What `horizon` is to be after the holding has changed."""
        capacity = self.holding.capacity
        return capacity + 1 if capacity < self.limit else self.limit

    def next_attention(self, block_size: int) -> int:
        """What `attention` is to be after tokens were committed."""
        if not self.spoken or not self.may_hit:
            return ALWAYS  # until the whole prompt is scored, and the first token told with what belongs to it
        filled = (self.holding.committed + 1) * block_size + 1
        return filled if filled < self.limit else self.limit

    def score(self, start: int, lines: bytes) -> bytes:
        """Those of `lines`, for positions from `start` on, that were not handed out before; a blank for position 0.

        A prompt that was preempted is computed again, but each position is reported once.
        """
        fresh = scores.cut(lines, max(0, max(1, self.scored) - start))
        if self.scored == 0:
            fresh = scores.blank(scores.top_of(lines) if lines else self.sampling.prompt_logprobs) + fresh
        self.scored += scores.count(fresh)
        return fresh
