"""What the result of a step does to the requests that were in it."""

from collections.abc import Iterable
from itertools import repeat

from octavo.base.plan import StepPlan, StepResult
from octavo.base.wire import TokenLogprobs, TokenOutput
from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.finish import BAD_LOGITS, cut
from octavo.sched.request import Request, State

Scores = list[TokenLogprobs | None]


class Update:
    """Applies one result: accepts tokens, ends requests, makes blocks findable.

    Results for requests that ended meanwhile are dropped. Results for preempted ones count: their tokens are
    known from then on.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._ended = False
        self.outputs: list[TokenOutput] = []

    def apply(self, draft: Draft, plan: StepPlan, result: StepResult) -> None:
        """The result must be that of the plan, and the draft the one the plan was made from."""
        if len(result.tokens) != len(draft.sampled):
            raise ValueError(f"step {plan.step}: {len(result.tokens)} results for {len(draft.sampled)} sampled rows")
        scores = _prompt_scores(draft, plan, result) if result.prompt_logprobs else {}
        outputs, done = self.outputs, State.DONE
        for request, accepted, details in zip(draft.sampled, result.tokens, _per_sample(result)):
            if request.state is done:
                continue
            if request.void:
                request.pass_over()
                continue
            score = scores.pop(request, None) if scores else None
            tokens = request.tokens
            token = accepted[0]
            if token < 0 or token in request.ends or len(accepted) != 1:
                self._accept(request, accepted, details, score)
                continue
            if len(tokens) + 1 >= request.attention:
                if not request.may_hit or len(tokens) + 1 >= request.limit:
                    self._accept(request, accepted, details, score)
                    continue
                tokens.append(token)
                self._commit(request)
            else:
                tokens.append(token)
            outputs.append(_going_on(request, accepted, details, score))
        for request, score in scores.items():
            outputs.append(_going_on(request, [], None, score))
        self._board.counters.generation_tokens += sum([len(output.tokens) for output in outputs])
        if self._ended:
            self._board.sweep()

    def _accept(
        self, request: Request, accepted: list[int], details: list[TokenLogprobs] | None, score: Scores | None
    ) -> None:
        """The careful way: tests the end, and offers filled blocks to the prefix index."""
        kept, finish, stop_token = cut(request, accepted)
        request.tokens += kept
        request.known += len(accepted) - 1
        if score is None and not request.may_hit:
            score = request.score(1, [])  # a prompt of one token, which no result speaks of
        error = BAD_LOGITS if finish == "error" else None
        if details is not None:
            details = details[: len(kept)]
        self.outputs.append(
            TokenOutput(
                request.id,
                kept,
                finish,
                stop_token,
                details,
                score,
                request.cached_tokens,
                error,
                queued_s=request.queued_s,
            )
        )
        if finish is not None:
            self._board.end(request)
            self._ended = True
        else:
            self._commit(request)

    def _commit(self, request: Request) -> None:
        """Offer filled blocks to the prefix index: those before the newest token, which the device has computed."""
        kv = self._board.kv
        computed = min(len(request.tokens) - 1, request.computed)  # a preempted request has none
        if computed // kv.block_size > request.holding.committed:
            kv.commit(request.holding, request.tokens, computed)
        request.set_attention(kv.block_size)


def _going_on(
    request: Request, tokens: list[int], details: list[TokenLogprobs] | None, score: Scores | None
) -> TokenOutput:
    """The output of a request that has not ended."""
    return TokenOutput(
        request.id, tokens, None, None, details, score, request.cached_tokens, None, 500, None, None, request.queued_s
    )


def _per_sample(result: StepResult) -> Iterable[list[TokenLogprobs] | None]:
    """The log-probabilities of each sampled row, or None."""
    logprobs = result.logprobs
    return [logprobs.get(index) for index in range(len(result.tokens))] if logprobs else repeat(None)


def _prompt_scores(draft: Draft, plan: StepPlan, result: StepResult) -> dict[Request, Scores]:
    """Prompt log-probabilities that each live request has not handed out yet."""
    scores = {}
    for index, entries in result.prompt_logprobs.items():
        request = draft.requests[index]
        if request.state is not State.DONE:
            fresh = request.score(plan.starts[index] + 1, entries)
            if fresh:
                scores[request] = fresh
    return scores
