"""Guide: one request's way through its constraint. Which tokens may come, and which one stands.

What is long in both is done for all guides of a step at once, in grammar/together.py.

A guide with a budget keeps, near the limit, a list of tokens that would make the text whole, never longer than what
is left. A sampled token after which no such list is found does not stand: the first of the list takes its place. So
an output that ends by length is whole. Far from the limit the list is not kept: how often it is looked for depends on
how much is to spare.
"""

from octavo.grammar.base import Matcher, Words
from octavo.grammar.closing import HASTY, PATIENT
from octavo.grammar.compiled import Compiled
from octavo.grammar.growth import DEEPER, FLAT, MEMBERS, MOST, QUIET, START, STRINGS
from octavo.grammar.preface import Preface
from octavo.grammar.spec import GrammarSpec
from octavo.grammar.tight import rest_behind, tighten
from octavo.grammar.trials import FEW, Trials, few, others
from octavo.grammar.vocabulary import VocabularyTable

GAVE_UP = "the constraint became too complex to follow"
BROKEN = "a token does not fit the constraint"
STUCK = "the constraint has come to a place where nothing can follow and nothing may end"
ROOMY = 16  # tokens more than the known way takes
ENDLESS = 1 << 40  # tokens to spare, without a budget


class Guide:
    """What is asked of it, and in which order, is in grammar/together.py and, of one alone, in grammar/alone.py."""

    def __init__(
        self, compiled: Compiled, spec: GrammarSpec, vocabulary: VocabularyTable, ends: frozenset[int], limit: int
    ) -> None:
        """`limit`: tokens that the output may have; `ends`: ids that end it."""
        self.failure: str | None = None
        self.param = spec.param  # the field that the constraint came in
        self._compiled = compiled
        self.vocabulary = vocabulary
        self._spec = spec
        self._matcher: Matcher = compiled.grammar.matcher()
        self._ends = ends
        self._limit = self._left = limit
        self._preface = Preface(vocabulary, spec)
        self._free = spec.thoughts is not None or bool(spec.after)
        self._costs = compiled.closer.costs
        self._moves = vocabulary.moves
        self._place, self._depth = START, 0  # in the text, as far as it is JSON, and brackets that are open
        self._plan: list[int] | None = None
        self._last_way = compiled.opening or []  # to the end, from where it was last looked for
        self._lost = 0  # times in a row that no end was found when one was looked for
        self._spare = ENDLESS
        self._short, self._before = 0, (START, 0)  # of a token that may have no room: its cost, the numbers before it
        self._trials: Trials | None = None
        self._tried_at = -1  # tokens that were left there
        self._said = 0  # the last token
        self.beyond = self._matcher  # behind such a token
        self.seen: tuple[Words, int] | None = None  # masks and the place in them of the one that was filled last
        if spec.must_end:
            self._plan = self._opening()
            self._schedule(limit)

    @property
    def shortest(self) -> int | None:
        """Tokens of the shortest output that was found, None if none was."""
        opening = self._opening()
        return None if opening is None else len(opening)

    @property
    def is_whole(self) -> bool:
        """Whether the output fits the constraint as it stands."""
        before = self._free and not self._preface.is_open
        return self._preface.may_end if before else self._matcher.is_accepting

    @property
    def matcher(self) -> Matcher | None:
        """What says which tokens may come; None before the constraint has begun."""
        return None if self._free else self._matcher

    def let_end(self, row: Words, filled: bool) -> None:
        """Set the ends of sequence where the output may end, in a mask in which they are off. `filled`: what the
        matcher said of the row."""
        filled = filled and (not self._free or self._preface.confine(row, self._matcher))
        if not filled:
            self.failure = self.failure or GAVE_UP
            row.fill(0)
        early = self._limit - self._left < self._spec.min_tokens
        if self._free and filled:
            may_end = self.is_whole and not early
        else:
            whole = self.failure is not None or self._matcher.is_accepting
            empty = (early or not whole) and not row.any()
            if empty and not whole:
                self.failure = STUCK
            may_end = empty or (whole and not early)
        if may_end:
            self.vocabulary.allow(row, self._ends)

    @property
    def is_tight(self) -> bool:
        """Whether there is room for the plan and for nothing longer."""
        if self._plan is None or not 0 < self._left <= len(self._plan):
            return False
        return not self._free and self._compiled.closer.is_json

    def tighten(self, row: Words) -> None:
        """Take out of the mask of a tight guide what is plain to see that no text as short as the plan goes on with:
        so it is not drawn for nothing, and steps in flight need not be computed anew."""
        assert self._plan is not None
        plan = self._plan
        if not others(row, plan[0]):
            return
        tighten(row, self.vocabulary, self._place, plan)
        if self._compiled.closer.is_quick and len(plan) == self._left and 0 < others(row, plan[0]) <= FEW:
            self._try_out(row, plan)

    def _try_out(self, row: Words, plan: list[int]) -> None:
        if self._tried_at != self._left:
            trials = Trials(self._matcher, self._compiled.closer, self.vocabulary, plan, self._last_way)
            if self._trials is not None and self._tried_at == self._left + 1:
                trials.know(self._trials, self._said)
            self._trials, self._tried_at = trials, self._left
            trials.run(token for token in few(row) if token != plan[0] and not self._stands_anyway(token))
        assert self._trials is not None
        self._trials.clear(row)

    def _stands_anyway(self, token: int) -> bool:
        """Whether it is no matter of trials: an end of the text, or a token that is let come without a look."""
        deeper = (self._moves[self._place][token] >> DEEPER) - FLAT if self._moves[self._place][token] > QUIET else 0
        return token in self._ends or self._left - 1 >= self._furthest(self._depth + deeper)

    def _furthest(self, depth: int) -> int:
        """Tokens in which the text can be ended at `depth` brackets, at most."""
        return (depth + 1) * self._costs.bracket + self._costs.rest

    def affords(self, token: int) -> bool:
        """First: whether the token stands, there being room for it and for an end behind it whatever
        it begins, and the matcher has to move by it. If not, `weigh` tells what is to be done."""
        if self._free or token < 0 or token in self._ends or self.failure is not None:
            return False
        return self._books(token)

    def _books(self, token: int) -> bool:
        costs, place, depth = self._costs, self._place, self._depth
        move = self._moves[place][token]
        cost = costs.turns[place]
        if move > QUIET:
            cost += (move >> STRINGS & MOST) * costs.string + (move >> MEMBERS & MOST) * costs.member
            self._depth += (move >> DEEPER) - FLAT
        self._place, self._said = move & QUIET, token
        self._left -= 1
        self._spare -= cost
        if self._spare < 0:  # the end is never further off than this
            self._spare = max(self._spare, self._left - self._furthest(self._depth))
            if self._spare < 0:
                if self._follows(token):
                    return True
                self._short, self._before = cost, (place, depth)
                return False
        if self._plan is not None:
            self._keep(token)
        return True

    def weigh(self, token: int) -> tuple[int, bool] | None:
        """Second: the token that stands, and whether the matcher has still to move by it. None: `search` is to
        tell, given the mask of what is `beyond` the token."""
        if not self._short:
            if self.failure is not None or token < 0 or (token in self._ends and self.is_whole):
                self._left -= 1
                return token, False
            if self._free:
                if not self._preface.ends_before(token, self._matcher):
                    return self._weigh_free(token), False
                self._begin()
                return (token, True) if self.affords(token) else self.weigh(token)
            if self._books(token):  # an end of sequence that is a token like others to it
                return token, True
        cost, self._short = self._short, 0
        return self._look(token, cost)

    def search(self, token: int, row: "Words | None") -> int:
        """Third: the token that stands. `row`: the mask behind it; None if there is none."""
        matcher, self._matcher = self._matcher, self.beyond
        if row is not None and self._closes(row):
            return token
        if self._plan is None:  # no end was found: look again behind the next token
            self._schedule(self._left)
            return token
        self._matcher = matcher
        return self._refuse()

    def _begin(self) -> None:
        self._enter()
        if self._preface.is_opening and self._preface.marker():
            self._plan = None  # it led through the thoughts whose opening this looked like

    def _enter(self) -> None:
        self._free = False
        if self._spec.optional and self._spec.finish_within_budget:
            self._spare = 0  # nothing had to come, so no end of it was looked for

    def _weigh_free(self, token: int) -> int:
        cost = self._preface.cost(token)
        if self._preface.is_opening:  # it may turn out to be the constraint's
            cost += self._costs.turns[START]
        self._left -= 1
        self._spare -= cost
        if self._spare < 0 and self._plan is None:  # it was let go while there was room to spare
            self._plan = self._opening()
            self._schedule(self._left + 1)
            self._spare -= cost
        if self._spare >= 0:
            self._keep(token)
            if not self._read(token):
                self.failure = BROKEN
            return token
        state, matcher = self._preface.state, self._matcher.copy()
        if self._read(token) and (self._follows(token) or self._closes()):
            return token
        if self._plan is None:
            self._schedule(self._left)
            return token
        self._free, self._preface.state, self._matcher = True, state, matcher
        self._place, self._depth = START, 0
        return self._stand_in()

    def _keep(self, token: int) -> None:
        """There is room for the token: a plan is kept only as long as it is followed."""
        if self._plan is not None:
            self._plan = self._plan[1:] if self._plan[:1] == [token] else None

    def _look(self, token: int, cost: int) -> tuple[int, bool] | None:
        """As `weigh`, of a token that there may be no room for."""
        if self._stays(token):
            return token, True
        behind = self._trials.behind(token) if self._trials and self._tried_at == self._left + 1 else None
        if behind is not None:
            return token, self._goes(*behind)
        if self._plan is None:  # it was let go while there was room to spare
            row = self.seen and self.seen[0][self.seen[1]]
            self._plan = self._way(self._left + 1, PATIENT if self._lost else 1, row)
            self._schedule(self._left + 1)
            self._spare -= cost
            if self._spare >= 0:
                self._keep(token)
                return token, True
            if self._follows(token):
                return token, True
        fits = self._leads_on(token)
        if fits is not None:
            return (token, True) if fits else (self._refuse(), False)
        self.beyond = self._matcher.copy()
        return None if self.beyond.accept(token) else (self.search(token, None), False)

    def _refuse(self) -> int:
        self._place, self._depth = self._before
        return self._stand_in()

    def _stand_in(self) -> int:
        """The first token of the plan; at the end of it, the end of the sequence."""
        if not self._plan:
            return min(self._ends, default=-1)
        token, self._plan = self._plan[0], self._plan[1:]
        if self._free and not self._preface.ends_before(token, self._matcher):
            stands = self._read(token)
        else:
            self._begin()
            self._walk(token)
            stands = self._matcher.accept(token)
        if not stands:
            self.failure = BROKEN
        self._schedule(self._left)
        return token

    def _walk(self, token: int) -> None:
        move = self._moves[self._place][token]
        self._place, self._said = move & QUIET, token
        if move > QUIET:
            self._depth += (move >> DEEPER) - FLAT

    def _follows(self, token: int) -> bool:
        """Whether the token is the plan's own."""
        if not self._plan or self._plan[0] != token:
            return False
        self._plan = self._plan[1:]
        self._schedule(self._left)
        return True

    def _goes(self, plan: list[int], matcher: Matcher | None) -> bool:
        """Go where a trial has led. Whether the matcher has still to move."""
        self._plan = plan
        if matcher is not None:
            self._matcher, self._last_way = matcher, plan
        self._schedule(self._left)
        return matcher is None

    def _stays(self, token: int) -> bool:
        """Whether the way to the end that is known leads there from behind the token too, as within a string."""
        way = self._last_way if self._plan is None else self._plan
        if len(way) > self._left or not self._matcher.closes([token, *way]):
            return False
        self._plan = way
        self._schedule(self._left)
        return True

    def _leads_on(self, token: int) -> bool | None:
        """Of a token that goes some of the plan's way: whether there is room for the rest. None: it is another one."""
        if not self._plan:
            return None
        known, rest = rest_behind(self._matcher, self.vocabulary, self._plan, token)
        if rest is None or len(rest) > self._left:
            return False if known else None
        self._plan = rest
        self._schedule(self._left)
        return True

    def _closes(self, row: "Words | None" = None) -> bool:
        """Find a plan for where the token has led. The old plan stays if there is none short enough."""
        old, left = self._plan, self._left
        if self._free or old is None or len(old) > left or not self._matcher.closes(old):
            roomy = old is not None and left - len(old) >= ROOMY
            found = self._way(left, PATIENT if old is None else HASTY if roomy else None, row)
            if found is None or len(found) > left:
                return False
            self._plan = found
        self._schedule(left)
        return True

    def _way(self, left: int, patience: int | None, row: "Words | None" = None) -> list[int] | None:
        """Tokens that end the output from here, few if there are few left. Where no end is known, patience is due:
        without one the output may end unfinished. Where one is, a token is lost for which none is found: it is worth
        a search in the likely places as long as there is room for much."""
        if self._free:
            return self._opening()
        closer = self._compiled.closer
        found = closer.resume(self._matcher, self._last_way, left, row)
        if found is None and self._plan is not None:
            found = closer.follow(self._matcher, self._last_way, left)
        if found is None and patience is not None:
            found = closer.close(self._matcher, left, patience)
        if found:  # in as few tokens as can be: where there is room for no more of them, nothing longer fits
            found = self._last_way = closer.repacked(self._matcher, found)
        return found

    def _schedule(self, left: int) -> None:
        """What may be spent before the next look: a token each, and whatever tokens put the end further off."""
        if self._plan is not None:
            self._lost, self._spare = 0, left - len(self._plan)
            return
        self._lost += 1  # a long search that is in vain is tried again ever more seldom
        self._spare = min(1 << self._lost, 1 + left // 4)

    def _opening(self) -> list[int] | None:
        """A whole output from the start of the constraint, its marker included while that has not come."""
        opening = self._compiled.opening
        if opening is None or not self._free:
            return opening
        marker = self._preface.marker()
        return None if marker is None else marker + opening

    def _read(self, token: int) -> bool:
        """Go on by a token before the constraint; what stands behind a marker within it, but whitespace, is the
        constraint's."""
        opening = self._preface.is_opening
        rest = self._preface.read(token, opening and self._matcher.accept(token))
        if opening and not self._preface.is_open:
            self._matcher = self._compiled.grammar.matcher()
        if rest is None:
            return True
        self._enter()
        tokens = self.vocabulary.greedy(rest) if rest.strip() else []
        if tokens is None:
            return False
        for each in tokens:
            self._walk(each)
        return self._matcher.push(tokens)
