"""The light load client against a small streaming server."""

import asyncio
from itertools import pairwise

import pytest
from bench_kit import Server, bodies, running

from octavo.base.errors import EngineError
from octavo.bench.raw import Answer, Group, Orders, run, send


def orders(port, *groups, **more):
    return Orders(host="127.0.0.1", port=port, path="/v1/completions", groups=list(groups), **more)


async def test_a_closed_loop_over_kept_connections():
    server = Server()
    async with running(server) as port:
        found = await run(orders(port, Group(bodies=bodies(9), at_once=3)))
    (answers,) = found.groups
    assert [(a.done, a.error, a.tokens, len(a.arrivals)) for a in answers] == [(True, None, 5, 5)] * 9
    assert server.most == len(server.peers) == 3
    assert all(0.004 <= a.ttft < found.seconds for a in answers)
    assert min(later - earlier for a in answers for earlier, later in pairwise(a.arrivals)) > 0.001
    assert 0 < found.cpu_share < 1.5


async def test_a_beat_does_not_wait_and_a_stop_cuts():
    server = Server(gap=0.02)
    async with running(server) as port:
        beat = Group(bodies=bodies(3, tokens=4), start_s=0.05, every_s=0.02)
        endless = Group(bodies=bodies(2, tokens=10_000), at_once=2)
        found = await run(orders(port, endless, beat, stop_s=0.6))
    streams, prompts = found.groups
    assert all(not a.done and a.error is None and len(a.arrivals) > 3 for a in streams)
    assert all(a.done for a in prompts)
    assert [round(b.sent - a.sent, 2) < 0.08 for a, b in pairwise(prompts)] == [True, True]
    assert server.most == 5
    assert found.seconds < 2


@pytest.mark.parametrize(
    ("trouble", "told"),
    [({"status": 404}, "404"), ({"cut": True}, "broke off"), ({"broken": True}, "broke")],
)
async def test_trouble_is_told(trouble, told):
    server = Server()
    vars(server).update(trouble)
    async with running(server) as port:
        found = await run(orders(port, Group(bodies=bodies(2))))
    assert all(not a.done and told in a.error for a in found.groups[0])


async def test_nobody_listens():
    found = await run(orders(1, Group(bodies=bodies(1))))
    assert "Connect" in found.groups[0][0].error
    with pytest.raises(EngineError, match="Connect"):
        _ = found.groups[0][0].ttft
    with pytest.raises(EngineError, match="no text came"):
        _ = Answer().ttft


async def test_in_a_process_of_its_own():
    async with running(Server()) as port:
        found = await asyncio.to_thread(send, orders(port, Group(bodies=bodies(2))))
    assert [a.tokens for a in found.groups[0]] == [5, 5]
