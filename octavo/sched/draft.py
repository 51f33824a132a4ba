"""Draft: a StepPlan while it is being written, and the record of one that is in flight."""

from octavo.base.plan import AddedRow, NewBlocks, StepPlan
from octavo.kv.holding import Grant
from octavo.sched.request import Request


class Draft:
    """Parallel lists, one entry a planned row; `requests` and `sampled` are what the results will be for."""

    __slots__ = ("added", "committed", "counts", "new_blocks", "requests", "rows", "sample", "sampled", "starts")

    def __init__(self) -> None:
        self.added: list[AddedRow] = []
        self.new_blocks: list[NewBlocks] = []
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.sample: list[int] = []
        self.requests: list[Request] = []
        self.sampled: list[Request] = []
        self.committed: list[int] = []  # blocks that became findable because of this step

    def add_row(self, request: Request) -> None:
        """The request takes a row of the worker; its blocks are reserved, its tokens all known."""
        request.torn = False
        self.added.append(
            AddedRow(
                row=request.row,
                id=request.id,
                tokens=request.tokens.copy(),
                num_prompt=request.num_prompt,
                num_computed=request.computed,
                sampling=request.sampling,
                blocks=[table.copy() for table in request.holding.tables],
            )
        )

    def add_blocks(self, request: Request, grant: Grant) -> None:
        """The tables of a row grew, if they did."""
        if grant.blocks is not None:
            self.new_blocks.append(NewBlocks(request.row, [grant.first] * len(grant.blocks), grant.blocks))

    def advance(self, request: Request, num_tokens: int) -> None:
        """Compute this many tokens of the request; at the end of what is known, one more will be known."""
        start = request.computed
        request.computed = end = start + num_tokens
        if end == request.known:
            self.sample.append(len(self.rows))
            self.sampled.append(request)
            request.known = end + 1
        self.rows.append(request.row)
        self.counts.append(num_tokens)
        self.starts.append(start)
        self.requests.append(request)

    def plan(self, step: int, dropped: list[int]) -> StepPlan:
        """The finished plan. It shares its lists with the draft, which changes no more."""
        return StepPlan(
            step=step,
            dropped=dropped,
            added=self.added,
            new_blocks=self.new_blocks,
            rows=self.rows,
            num_tokens=self.counts,
            starts=self.starts,
            sample=self.sample,
        )
