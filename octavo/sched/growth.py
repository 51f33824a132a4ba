"""Growth: those of the running that compute one token and have used up their blocks, served all together.

Every sixteenth token of a request takes it here, so that in a large batch some are here in every step.
"""

from octavo.sched.board import Board
from octavo.sched.draft import Draft
from octavo.sched.ledger import ATTENTION, HORIZON, Bools, Longs, Roster
from octavo.sched.request import Request


def grow(board: Board, draft: Draft, roster: Roster, starts: Longs, known: Longs, steady: Bools) -> None:
    """Give one more block of each table to those of the roster that need it, and mark them as steady as the others.

    `starts`, `known` and `steady` are the roster's columns. Nobody is served while blocks may run out within the
    step: then each has to be looked at in its turn.
    """
    if not board.plenty:
        return
    places = (~steady & (known - starts == 1)).nonzero()[0]
    begins = starts.take(places)
    requests = [roster.requests[place] for place in places.tolist()]
    plain = [_is_plain(request, begin) for request, begin in zip(requests, begins.tolist())]
    if not all(plain):
        places, begins = places[plain], begins[plain]
        requests = [roster.requests[place] for place in places.tolist()]
    if requests:
        rows = roster.rows.take(places)
        blocks = board.kv.grow([request.holding for request in requests])
        draft.add_blocks(rows, begins // board.kv.block_size, blocks)
        _settle(board, draft, requests, rows)
        steady[places] = True


def _is_plain(request: Request, begin: int) -> bool:
    """Whether only a block is missing. The end of a prompt is counted elsewhere; what is torn is laid in anew."""
    inside = request.num_prompt <= begin < request.limit - 1
    return inside and begin == request.holding.capacity and not request.torn


def _settle(board: Board, draft: Draft, requests: list[Request], rows: Longs) -> None:
    """The blocks they have filled can be found from now on."""
    kv, size = board.kv, board.kv.block_size
    horizons, attentions = [], []
    for request in requests:
        holding = request.holding
        full = holding.capacity - size  # before the new block
        sure = min(full, len(request.tokens))
        if sure // size > holding.committed:
            draft.committed += kv.commit(holding, request.tokens, sure)
        horizons.append(request.next_horizon())
        attentions.append(request.next_attention(size))
    columns = board.ledger.columns
    columns[HORIZON][rows], columns[ATTENTION][rows] = horizons, attentions
