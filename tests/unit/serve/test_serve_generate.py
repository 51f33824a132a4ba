"""Many choices of one request: their pieces come in portions, with a turn for others between."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

from octavo.base.wire import EngineRequest, EngineStats, Sampling, TokenOutput
from octavo.serve.generate import AT_ONCE, Generation
from octavo.serve.journey import Journey
from octavo.serve.metrics import Metrics
from octavo.text.collect import TextDelta

CHOICES = 3 * AT_ONCE + 1
STEPS = 3


class Engine:
    """Steps that all choices are in: one begins once all of them wait for it."""

    def __init__(self) -> None:
        self._waiting = 0
        self._begun = asyncio.Event()

    def submit(self, request: EngineRequest) -> Any:
        return Outputs(request.id, self)

    async def next_step(self) -> None:
        self._waiting += 1
        begun = self._begun
        if self._waiting == CHOICES:
            self._waiting, self._begun = 0, asyncio.Event()
            begun.set()
        await begun.wait()


class Outputs:
    def __init__(self, id: str, engine: Engine) -> None:
        self._id = id
        self._engine = engine

    async def __aiter__(self) -> AsyncIterator[TokenOutput]:
        for step in range(STEPS):
            await self._engine.next_step()
            yield TokenOutput(self._id, [step], finish="length" if step == STEPS - 1 else None)

    def close(self) -> None:
        pass


class Plain:
    """A collector that takes tokens for what they are."""

    num_output_tokens = 0

    def feed(self, output: TokenOutput) -> TextDelta:
        return TextDelta(tokens=output.tokens, finish_reason=output.finish)


async def test_pieces_of_many_choices_come_in_portions_and_others_have_a_turn() -> None:
    engine: Any = Engine()
    collector: Any = Plain()
    requests = [
        EngineRequest(id=str(i), tokens=[1], sampling=Sampling(seed=1, max_tokens=STEPS)) for i in range(CHOICES)
    ]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen: list[list[int]] = [[] for _ in range(CHOICES)]
    sizes, before = [], []
    beside = asyncio.create_task(other())
    generation = Generation(engine, Metrics("m", EngineStats), [(each, collector) for each in requests], Journey())
    async with generation:
        async for pieces in generation.steps():
            sizes.append(len(pieces))
            before.append(turns)
            for piece in pieces:
                seen[piece.index] += piece.delta.tokens
    beside.cancel()
    assert seen == [list(range(STEPS))] * CHOICES
    assert max(sizes) == AT_ONCE
    assert all(now > last for last, now in pairwise(before))
