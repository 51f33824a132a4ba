"""What an operator asks of a running server: to give the device's memory back, to take it again, to forget prefixes.

Paths and parameters are vLLM's.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from octavo.base.errors import EngineDead, EngineError, UserError
from octavo.base.wire import MEMORY_TAGS
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.generate import Engine
from octavo.serve.query import Query

PATIENCE_S = 10
"""For requests that run when the command comes, unless it says another time."""

LONGEST_S = 3600
MOVE_S = 600.0  # for the memory itself: many gigabytes from a slow disk
POLL_S = 0.02


class Refused(UserError):
    """The engine stays as it is; the message is its reason."""

    status = 409
    kind = "conflict_error"


async def sleep(call: Call) -> Reply:
    """Gives device memory back: `level` 1 keeps the weights in host memory, 2 drops them.

    `mode`: abort ends what runs; wait lets it end, for `timeout` seconds if given, and stays awake if it does not; keep
    sets it aside at once, to go on after waking. Without a mode it may end within `timeout` seconds (10), and what then
    still runs is kept.
    """
    query = Query(call.scope)
    level = query.whole("level", 1, 2) or 1
    mode = query.choice("mode", ("abort", "wait", "keep"))
    given = query.whole("timeout", 0, LONGEST_S)
    patience = {"abort": 0, "keep": 0, "wait": LONGEST_S}.get(mode or "", PATIENCE_S)
    engine = call.service.backend.engine
    async with call.service.resting, _falling_asleep(engine):
        drained = await _drained(engine, patience if given is None or mode in ("abort", "keep") else given)
        if mode == "wait" and not drained:
            raise Refused("Requests still run; the engine stays awake.", code="still_running")
        kept = "abort" if mode == "abort" else "keep"
        said = await engine.control("sleep", timeout_s=MOVE_S, level=level, mode=kept)
    return json_reply({"status": "sleeping", **said})


async def wake_up(call: Call) -> Reply:
    """Brings device memory back: all of it, or that of `tags` (weights, kv_cache); awake once all of it is there."""
    tags = Query(call.scope, repeated=("tags",)).choices("tags", MEMORY_TAGS)
    engine = call.service.backend.engine
    async with call.service.resting:
        with _reasons():
            awake = await engine.control("wake_up", timeout_s=MOVE_S, tags=",".join(tags))
    return json_reply({"status": "awake" if awake else "sleeping", "tags_woken": tags or None})


async def is_sleeping(call: Call) -> Reply:
    """Whether any of the device's memory is given back."""
    return json_reply({"is_sleeping": bool(await call.service.backend.engine.control("is_sleeping"))})


async def reset_prefix_cache(call: Call) -> Reply:
    """Forgets all cached prefixes; running requests keep what they share."""
    await call.service.backend.engine.control("reset_prefix_cache")
    return json_reply({"status": "ok"})


@asynccontextmanager
async def _falling_asleep(engine: Engine) -> AsyncIterator[None]:
    """Nobody starts meanwhile; when it comes to nothing, all goes on."""
    with _reasons():
        await engine.control("pause")
        try:
            yield
        except BaseException as error:
            if not isinstance(error, EngineDead):
                await engine.control("resume")
            raise


async def _drained(engine: Engine, seconds: float) -> bool:
    """Waits until nothing runs, for so long at most; whether that came."""
    end = time.monotonic() + seconds
    while (await engine.control("stats"))["running"]:
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(POLL_S)
    return True


@contextmanager
def _reasons() -> Iterator[None]:
    """What the engine answers to an operator is for the operator to read."""
    try:
        yield
    except EngineDead:
        raise
    except EngineError as error:
        raise Refused(str(error), code="refused") from error
