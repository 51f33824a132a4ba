"""The load generator against a small streaming server."""

import math
from itertools import pairwise

import pytest
from bench_kit import Server, bodies, running

from octavo.base.errors import ConfigError
from octavo.bench.load import Outcome, Pace, run_load
from octavo.bench.serve import ServeBenchOptions, body_of, load_of, rows_of


def url_of(port):
    return f"http://127.0.0.1:{port}/v1/completions"


async def test_every_time_is_measured():
    server = Server(gap=0.01)
    async with running(server) as port:
        (outcome,), seconds = await run_load(url_of(port), bodies(1), Pace())
    assert outcome.error is None
    assert (outcome.tokens, outcome.prompt_len, len(outcome.itl)) == (5, 3, 4)
    assert 0.01 <= outcome.ttft < outcome.e2e <= seconds
    assert outcome.tpot == pytest.approx((outcome.e2e - outcome.ttft) / 4)
    assert min(outcome.itl) > 0.004


async def test_closed_loop_keeps_its_concurrency():
    server = Server()
    done = []
    async with running(server) as port:
        outcomes, _ = await run_load(url_of(port), bodies(12, 3), Pace(concurrency=3), on_done=done.append)
    assert server.most == 3
    assert len(done) == 12
    assert all(outcome.error is None for outcome in outcomes)


async def test_failures_are_told():
    server = Server()
    async with running(server) as port:
        server.status = 429
        (refused,), _ = await run_load(url_of(port), bodies(1), Pace())
        server.status, server.cut = 200, True
        (cut,), _ = await run_load(url_of(port), bodies(1), Pace())
    (gone,), _ = await run_load("http://127.0.0.1:9/v1/completions", bodies(1), Pace())
    assert refused.error == "HTTP 429: no such thing"
    assert cut.error
    assert gone.error


def test_poisson_arrivals_have_their_rate():
    due = Pace(rate=50.0, seed=1).arrivals(5000)
    assert due == sorted(due)
    assert due[-1] == pytest.approx(100, rel=0.1)
    gaps = [b - a for a, b in pairwise(due)]
    average = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - average) ** 2 for gap in gaps) / len(gaps))
    assert spread == pytest.approx(average, rel=0.1)  # as an exponential has it
    even = Pace(rate=50.0, burstiness=100.0, seed=1).arrivals(1000)
    assert max(b - a for a, b in pairwise(even)) < 0.04
    assert Pace().arrivals(3) == [0.0, 0.0, 0.0]


def test_rows_leave_out_failures():
    outcomes = [
        Outcome(prompt_len=10, tokens=3, ttft=0.1, itl=[0.1, 0.3], e2e=0.5),
        Outcome(error="HTTP 500"),
        Outcome(prompt_len=10, tokens=1, ttft=0.3, itl=[], e2e=0.3),
    ]
    rows = {row.id: row for row in rows_of(outcomes, 2.0, "n")}
    assert (rows["n-completed"].value, rows["n-completed"].fraction) == (2, 0.66667)
    assert rows["n-output-tok-s"].value == 2.0
    assert rows["n-total-tok-s"].value == 12.0
    assert rows["n-ttft-p50-ms"].value == 200.0
    assert rows["n-tpot-mean-ms"].value == 200.0
    assert rows["n-itl-p50-ms"].value == 200.0


def test_bodies_and_loads():
    options = ServeBenchOptions(num_prompts=3, random_input_len=8, random_output_len=4)
    load = load_of(options)
    assert [len(prompt) for prompt in load.prompts] == [8, 8, 8]
    body = body_of(options, "m", [1, 2], 4)
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([1, 2], 4, True)
    chat = body_of(ServeBenchOptions(endpoint="chat"), "m", list(range(8)), 4)
    assert chat["messages"][0]["content"] == "w0 w1"
    assert len(load_of(ServeBenchOptions(dataset_name="sharegpt", num_prompts=5))) == 5
    with pytest.raises(ConfigError):
        load_of(ServeBenchOptions(dataset_path="x"))
