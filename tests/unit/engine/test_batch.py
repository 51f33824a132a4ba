import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import engine_fakes as fakes
import pytest
from engine_fakes import config, expected, request

from octavo.base.config import EngineConfig, SchedulerConfig
from octavo.base.errors import ConfigError, EngineDead, EngineError, UnknownName, UserError
from octavo.engine.batch import BatchRunner
from octavo.engine.inproc import InprocClient
from octavo.engine.keywords import engine_config


def runner(**values):
    wanted = config(**values)
    client = InprocClient.launch(wanted, fakes.assemble)
    return client, BatchRunner(client, wanted.scheduler)


def collect(batch, requests):
    tokens, ends = {}, {}

    def take(output):
        fakes.take(output, tokens, ends)
        return False

    batch.run(requests, take)
    return {name: (tokens[name], ends[name].finish) for name in ends}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_waiting", [1, 3, 1024])
def test_a_small_queue_never_refuses_a_batch(depth, max_waiting):
    client, batch = runner(depth=depth, max_waiting=max_waiting, num_blocks=60)
    wanted = [request(f"r{i}", list(range(i % 50, i % 50 + 20)), max_tokens=5 + i % 30) for i in range(60)]
    assert collect(batch, wanted) == {one.id: expected(one) for one in wanted}
    assert not client.has_work
    assert client.stats.kv_usage == 0


def test_waiting_tokens_are_bounded_too():
    client = InprocClient.launch(config(), fakes.assemble)
    batch = BatchRunner(client, SchedulerConfig(max_waiting_tokens=50))
    seen = []
    submit = client.submit
    client.submit = lambda one: (seen.append(client.engine.core.stats.waiting), submit(one))
    wanted = [request(f"r{i}", list(range(20))) for i in range(20)]
    assert collect(batch, wanted) == {one.id: expected(one) for one in wanted}
    assert max(seen) <= 2


def test_an_early_end_frees_the_request():
    client, batch = runner()
    counts = {}

    def take(output):
        counts[output.id] = counts.get(output.id, 0) + len(output.tokens)
        return counts[output.id] >= 3 and output.id == "a"

    batch.run([request("a", [1], max_tokens=100), request("b", [2], max_tokens=10)], take)
    assert counts == {"a": 3, "b": 10}
    assert client.stats.kv_usage == 0


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, ValueError])
def test_an_interrupt_leaves_nothing_behind(trouble):
    client, batch = runner(depth=2)

    def take(_):
        raise trouble

    with pytest.raises(trouble):
        batch.run([request(f"r{i}", [i]) for i in range(30)], take)
    assert not client.has_work
    assert client.stats.running == client.stats.waiting == 0
    assert client.stats.kv_usage == 0
    assert collect(batch, [request("after", [1])])["after"] == expected(request("after", [1]))


@pytest.mark.parametrize("depth", [1, 2])
def test_ctrl_c_waits_for_the_end_of_the_step(depth):
    client, batch = runner(depth=depth)
    executor = client.engine.core.executor
    forward, finished = executor.forward, []

    def signalled(plan):
        if len(finished) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        forward(plan)
        finished.append(plan.step)

    executor.forward = signalled
    with pytest.raises(KeyboardInterrupt):
        collect(batch, [request(f"r{i}", [i], max_tokens=30) for i in range(5)])
    assert len(finished) >= 3
    assert not client.has_work
    assert client.stats.kv_usage == 0
    assert client.engine.core.failures == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert collect(batch, [request("after", [1])])["after"] == expected(request("after", [1]))


def test_a_second_ctrl_c_is_obeyed_at_once():
    client, batch = runner()
    executor = client.engine.core.executor
    forward, calls = executor.forward, []

    def hung(plan):
        calls.append(plan)
        forward(plan)
        if len(calls) == 2:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    executor.forward = hung
    with pytest.raises(KeyboardInterrupt):
        collect(batch, [request("a", [1], max_tokens=30)])
    assert len(calls) == 2
    assert client.stats.running == 0
    assert not client.has_work


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone():
    _, batch = runner()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(collect, batch, [request("a", [1])]).result()
    assert found["a"] == expected(request("a", [1]))


def test_a_request_that_cannot_be_served_is_named_and_ends_the_batch():
    client, batch = runner()
    with pytest.raises(UserError, match="context"):
        collect(batch, [request("a", [1]), request("b", [1] * 600)])
    assert not client.has_work


def test_a_failed_step_costs_nothing_and_a_failed_request_is_an_engine_error():
    _, batch = runner(fail_steps=[2])
    wanted = [request("a", [1]), request("b", [2, 3])]
    assert collect(batch, wanted) == {one.id: expected(one) for one in wanted}
    _, batch = runner(fail_steps=[1, 2])
    with pytest.raises(EngineError, match="could not compute this request"):
        collect(batch, [request("a", [1])])
    assert collect(batch, [request("a", [1])]) == {"a": expected(request("a", [1]))}


def test_a_dead_engine_is_told_at_once():
    client, batch = runner(fail_steps=list(range(1, 1000)))
    with pytest.raises(EngineError):
        collect(batch, [request("a", [1])])
    with pytest.raises(EngineDead):
        collect(batch, [request("a", [1])])
    assert client.control("ping") == 4


def test_controls_in_process():
    client, _ = runner()
    assert client.control("reset_prefix_cache") is True
    with pytest.raises(EngineError, match="unknown command"):
        client.control("nothing")
    client.close()
    assert client.engine.core.executor.closed


def test_keywords_fill_the_tree():
    wanted = engine_config(
        model="m", max_model_len=128, gpu_memory_utilization=0.5, max_num_seqs=4, device="cpu", seed=3
    )
    assert isinstance(wanted, EngineConfig)
    assert wanted.model.max_model_len == 128
    assert wanted.model.seed == 3
    assert wanted.cache.gpu_memory_utilization == 0.5
    assert wanted.scheduler.max_num_seqs == 4
    assert wanted.device.device == "cpu"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_modle_len": 5}, "did you mean max_model_len"),
        ({"trust_remote_code": True}, "unknown argument 'trust_remote_code'"),
        ({"max_model_len": -1}, "max_model_len takes a whole number"),
        ({"dtype": "bflot16"}, "did you mean bfloat16"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization takes"),
        ({"block_size": 1000}, "from 4 to 256"),
    ],
)
def test_a_wrong_keyword_is_one_clear_line(given, words):
    with pytest.raises(ConfigError, match=words) as caught:
        engine_config(**given)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UnknownName) == words.startswith(("unknown", "did you mean max"))
