"""Growth: those of the running that compute one token and have used up their blocks, served all together.

Every sixteenth token of a request takes it here, so that in a large batch some would be here in every step. What
serving costs hardly depends on how many they are: whoever will be here soon is served with them.
"""

import numpy as np

from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.ledger import HORIZON, LIMIT, NOWHERE, PROMPT, Bools, Longs, Roster

EARLY = 4  # the part of a block's tokens, one in so many, by which it may come before it is needed


def grow(board: Board, draft: Draft, roster: Roster, starts: Longs, known: Longs, single: Bools) -> Longs:
    """Give one more block of each table to those of the roster that need it, and to those that soon will; where they
    stand in it.

    `starts` and `known` are the roster's columns, `single` says who has one token to compute. Nobody is served while
    blocks may run out within the step: then each has to be looked at in its turn.
    """
    if not board.plenty:
        return NOWHERE
    kv, columns, rows = board.kv, board.ledger.columns, roster.rows
    horizons, limits = columns[HORIZON].take(rows), columns[LIMIT].take(rows)
    # Only a block is missing. The end of a prompt is counted elsewhere; what is torn, and so has no horizon, is laid in
    # anew.
    plain = single & (horizons < limits) & (starts >= columns[PROMPT].take(rows))
    left = horizons - known
    near = left.view(np.uint64) < max(1, kv.block_size // EARLY)  # a negative number is a very large one
    places = (plain & near).nonzero()[0]
    if np.count_nonzero(left.take(places)) == places.size:
        return NOWHERE
    holdings = roster.holdings
    blocks = kv.grow([holdings[place] for place in places.tolist()], starts.take(places))
    rows, horizons = rows.take(places), horizons.take(places)
    draft.add_blocks(rows, (horizons - 1) // kv.block_size, blocks)
    columns[HORIZON][rows] = np.minimum(horizons + kv.block_size, limits.take(places))
    return places
