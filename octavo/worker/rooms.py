"""Which shapes of steps are captured, and which of them a plan takes."""

from collections.abc import Container, Sequence

from octavo.kernels.ahead import Room
from octavo.worker.lineup import Lineup

MAX_DECODE_ROWS = 512
MIXED_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048)
MIXED_ROWS = 64
# Of several prompts at once, where the device has memory for such steps.
LONG_TOKENS = (2560, 3072, 4096, 5120, 6144, 8192)
LONG_ROWS = 128
FRESH_TOKENS = 256  # of the shortest prompt that gains by a room of its own
LOOSE = 1.25  # times what a long plan needs, a room may be
WASTE = 2  # a room may be this many times what the plan needs, if the right one is not there yet


def rooms_for(max_rows: int, max_tokens: int, *, fresh: bool) -> list[Room]:
    """All rooms of an engine, in the order in which they are worth having. `fresh`: prompts that come alone gain by
    rooms of their own."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, MAX_DECODE_ROWS + 1, 32)]
    rows = sorted({min(size, max_rows, max_tokens) for size in sizes})
    decode = [Room(size, size, mixed=False) for size in rows]
    tokens = sorted({size for size in MIXED_TOKENS if size <= max_tokens})
    mixed = [Room(min(MIXED_ROWS, size, max_rows), size, mixed=True) for size in tokens]
    alone = [Room(1, size, mixed=True, fresh=True) for size in tokens if fresh and size >= FRESH_TOKENS]
    long = LONG_TOKENS if max_tokens >= 2 * LONG_TOKENS[-1] else ()
    crowds = [Room(min(LONG_ROWS, max_rows), size, mixed=True) for size in long]
    crowds += [Room(1, size, mixed=True, fresh=True) for size in long if fresh]
    # One stream first, then prompts beside it, then the powers of two, then the steps between, then crowds of prompts.
    coarse = [room for room in decode if room.rows & (room.rows - 1) == 0]
    fine = [room for room in decode if room not in coarse]
    return [*coarse[:1], *mixed, *alone, *coarse[1:], *fine, *crowds]


def tightest_first(rooms: Sequence[Room]) -> list[Room]:
    """In the order that `holding` wants."""
    return sorted(rooms, key=lambda room: (room.tokens, room.rows))


def holding(lineup: Lineup, rooms: Sequence[Room]) -> list[Room]:
    """Those of `rooms` that hold a lineup, tightest first as they stand."""
    mixed, rows, tokens, fresh = lineup.mixed, lineup.rows.size, lineup.total, lineup.fresh
    # A long step is the device's to do in any case: room that nobody fills would cost more than launches do.
    most = max(MIXED_TOKENS[-1], LOOSE * tokens)
    return [
        room
        for room in rooms
        if tokens <= room.tokens <= most and room.rows >= rows and room.mixed == mixed and fresh >= room.fresh
    ]


def fitting(able: Sequence[Room], tokens: int, ready: Container[Room]) -> Room | None:
    """The first of `able`, unless another is ready and tight enough for so many tokens. None: there is none."""
    if not able:
        return None
    if able[0] in ready:
        return able[0]
    return next((room for room in able if room in ready and room.tokens <= WASTE * tokens), able[0])
