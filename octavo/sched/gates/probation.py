"""After a step that failed: who was in it starts again in small groups, until the one at fault is alone."""

from octavo.sched.gates.base import Gate
from octavo.sched.request import NO_ROW, Request


class ProbationGate(Gate):
    """`suspects`: request id -> how many computed tokens clear it. At most `group` of them run at once; nobody else
    is held up, but for standing in line behind them."""

    def __init__(self) -> None:
        self.suspects: dict[str, int] = {}
        self.group = 1
        self._trying: set[str] = set()

    def suspect(self, reached: dict[str, int], group: int) -> None:
        """Begin anew with these."""
        self.suspects, self.group = dict(reached), group
        self._trying.clear()

    def clear(self, reached: dict[str, int]) -> None:
        """A step went well: those are free that came further in it than in the one that failed."""
        for id, tokens in reached.items():
            if tokens >= self.suspects.get(id, tokens + 1):
                self.acquit(id)

    def acquit(self, id: str) -> None:
        """It has ended, or is free."""
        self.suspects.pop(id, None)
        self._trying.discard(id)

    def allow(self, request: Request, num_tokens: int) -> int:
        """All, unless it is a suspect whose group has not come up."""
        if not self.suspects or request.row != NO_ROW or request.id not in self.suspects:
            return num_tokens
        return num_tokens if request.id in self._trying or len(self._trying) < self.group else 0

    def spend(self, request: Request, num_tokens: int) -> None:
        """It is in the group that runs."""
        del num_tokens
        if request.id in self.suspects:
            self._trying.add(request.id)
