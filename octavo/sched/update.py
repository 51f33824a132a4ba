"""What the result of a step does to the requests that were in it."""

from itertools import compress

import numpy as np

from octavo.base import scores
from octavo.base.plan import NONE_LEFT, StepPlan, StepResult
from octavo.base.wire import Outputs, TokenOutput
from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.finish import cut, failed
from octavo.sched.ledger import ATTENTION, LIMIT, NOWHERE, STAY, Bools, Longs, Roster
from octavo.sched.request import Request, State

LATE = 4  # the part of a block's tokens, one in so many, by which it may be offered after it is filled


class Update:
    """Applies one result: accepts tokens, ends requests, makes blocks findable.

    Results for requests that ended meanwhile are dropped. Results for preempted ones count: their tokens are
    known from then on.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._ended = False
        self._outputs: list[TokenOutput] = []
        self._ids: list[str] = []  # of those who got a token and nothing else
        self._tokens: list[int] = []
        self._logprobs: list[bytes] = []

    def apply(self, draft: Draft, plan: StepPlan, result: StepResult) -> Outputs:
        """The result must be that of the plan, and the draft the one the plan was made from."""
        who, tokens, logprobs = draft.sampled, result.tokens, result.logprobs
        if len(tokens) != len(who):
            raise ValueError(f"step {plan.step}: {len(tokens)} results for {len(who)} sampled rows")
        plain, filled = self._plain(draft, result)
        ids, lines = who.ids, who.lines
        some = np.count_nonzero(plain)
        if some < len(who):
            mask = plain.tolist() if some else ()
            ids, lines = list(compress(ids, mask)), list(compress(lines, mask))
            tokens, logprobs = list(compress(tokens, mask)), list(compress(logprobs, mask))
        self._board.ledger.lines.add(lines, tokens)
        if filled.size:
            self._commit_next(who, filled)
        if len(tokens) < len(who) or result.prompt_logprobs:
            self._look_closer(draft, plan, result, (~plain).nonzero()[0].tolist())
            ids, tokens = ids + self._ids, tokens + self._tokens
            logprobs = logprobs + self._logprobs if result.logprobs else logprobs
        told = sum([len(output.tokens) for output in self._outputs])
        self._board.counters.generation_tokens += told + len(tokens)
        if self._ended:
            self._board.sweep()
        return Outputs(self._outputs, ids, tokens, logprobs)

    def _plain(self, draft: Draft, result: StepResult) -> tuple[Bools, Longs]:
        """Those that run as they did and got one token that ends nothing; and the places of those of them whose last
        full block is to be offered: of all that have one, as soon as somebody's has waited for `LATE`."""
        who, tokens = draft.sampled, result.tokens
        if draft.starts:  # each has something to be told
            return np.zeros(len(who), dtype=np.bool_), NOWHERE
        columns = self._board.ledger.columns
        wait = max(1, self._board.kv.block_size // LATE)
        left = columns[ATTENTION].take(who.rows) - draft.places  # 1: it ends or fills a block now, less: it filled one
        plain: Bools = left > 1 - wait
        filled = left <= 1
        if who is not self._board.roster:  # some may have gone since
            plain &= columns[STAY].take(who.rows) == who.stays
        if np.count_nonzero(filled):
            plain &= draft.places + 1 < columns[LIMIT].take(who.rows)
        if not who.ends.isdisjoint(tokens):
            plain &= [token not in who.ends for token in tokens]
        if result.more:
            plain[list(result.more)] = False
        if not np.count_nonzero(left == 2 - wait):
            return plain, NOWHERE
        return plain, (filled & plain).nonzero()[0]

    def _commit_next(self, who: Roster, places: Longs) -> None:
        """Offer the block that each of these has filled: the device has computed all tokens but the newest."""
        kv, columns, rows = self._board.kv, self._board.ledger.columns, who.rows.take(places)
        chosen = places.tolist()
        self._board.ledger.lines.settle()
        kv.commit_next([who.requests[place].holding for place in chosen], [who.lines[place] for place in chosen])
        columns[ATTENTION][rows] = np.minimum(columns[ATTENTION][rows] + kv.block_size, columns[LIMIT][rows])

    def _look_closer(self, draft: Draft, plan: StepPlan, result: StepResult, places: list[int]) -> None:
        """Those with something to think of, one by one."""
        told = _prompt_scores(draft, plan, result) if result.prompt_logprobs else {}
        requests, tokens = draft.sampled.requests, result.tokens
        for place in places:
            request = requests[place]
            if request.state is State.DONE:
                continue
            if request.void:
                request.pass_over()
                continue
            accepted = [tokens[place], *result.more.get(place, ())]
            lines = result.logprobs[place] if result.logprobs else b""
            self._accept(request, accepted, lines, told.pop(request, b""))
        for request, score in told.items():
            output = TokenOutput(
                request.id,
                [],
                prompt_logprobs=score,
                cached_tokens=request.cached_tokens,
                queued_s=request.queued_s,
            )
            self._outputs.append(output)

    def _accept(self, request: Request, accepted: list[int], lines: bytes, score: bytes) -> None:
        """Tests the end, and offers filled blocks to the prefix index. `lines`: the tokens', `score`: the prompt's."""
        kept, finish, stop_token = cut(request, accepted)
        request.tokens.extend(kept)
        request.known += len(accepted) - 1
        if not score and not request.may_hit:
            score = request.score(1, b"")  # a prompt of one token, which no result speaks of
        if request.spoken and len(kept) == 1 and finish is None and not score:
            self._ids.append(request.id)
            self._tokens.append(kept[0])
            self._logprobs.append(lines)
            self._commit(request)
            return
        request.spoken = True
        output = TokenOutput(
            request.id,
            kept,
            finish,
            stop_token,
            scores.cut(lines, 0, len(kept)),
            score,
            request.cached_tokens,
            queued_s=request.queued_s,
            preemptions=request.preemptions,
        )
        if finish == "error":
            token = accepted[len(kept)]
            self._board.counters.corrupted += token != NONE_LEFT
            output = failed(output, token)
        self._outputs.append(output)
        if finish != "error":
            self._commit(request)
        if finish is not None:
            self._board.end(request)
            self._ended = True

    def _commit(self, request: Request) -> None:
        """Offer filled blocks to the prefix index: those before the newest token, which the device has computed."""
        kv = self._board.kv
        computed = min(len(request.tokens) - 1, request.computed)  # a preempted request has none
        if computed // kv.block_size > request.holding.committed:
            kv.commit(request.holding, request.tokens, computed)
        request.attention = request.next_attention(kv.block_size)


def _prompt_scores(draft: Draft, plan: StepPlan, result: StepResult) -> dict[Request, bytes]:
    """Lines of prompt positions that each live request has not handed out yet."""
    told = {}
    for index, lines in result.prompt_logprobs.items():
        request = draft.requests[index]
        if request.state is not State.DONE:
            fresh = request.score(plan.starts[index] + 1, lines)
            if fresh:
                told[request] = fresh
    return told
