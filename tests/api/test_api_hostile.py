"""Hostile schemas, tools and grammars at the HTTP level: refused in time, by name, whatever the kind."""

import time

import pytest
from api_live import Live

from octavo.bench.structured.hostile import IN_TIME_S, TURN, corpus

CASES = corpus()


@pytest.mark.parametrize(
    ("name", "fields"), CASES, ids=[name[:40].encode("ascii", "replace").decode() for name, _ in CASES]
)
def test_no_kind_of_harm_is_the_server_s_fault(live: Live, name: str, fields: dict) -> None:
    """The engine behind this server is a fake: what it would refuse, it answers. What the text side sees is a 400."""
    begin = time.monotonic()
    answer = live.post("/v1/chat/completions", {"messages": TURN, "max_tokens": 4, **fields})
    assert answer.status in (200, 400, 413), (name, answer.body[:300])
    assert time.monotonic() - begin < 3 * IN_TIME_S
    if answer.status != 200:
        assert 0 < len(answer.error["message"]) <= 1024
    assert live.complete(max_tokens=2).status == 200
