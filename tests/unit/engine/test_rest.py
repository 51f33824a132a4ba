"""Falling asleep and waking: by the engine's commands over a fake device, and with a real worker's memory."""

import json
from types import SimpleNamespace

import psutil
import pytest
import torch
from engine_fakes import NO_OUTPUTS, expected, make_core, request, run, take
from test_real_engine import TINY, folder, tiny  # noqa: F401 - a fixture

from octavo.base.errors import ConfigError, EngineDead, EngineError
from octavo.base.wire import MEMORY_TAGS, Control
from octavo.engine.assemble import assemble
from octavo.engine.control import execute
from octavo.engine.inproc import InprocClient
from octavo.platform import pinned
from octavo.platform.cpu import CpuPlatform
from octavo.sched.gates import PausedGate
from octavo.worker.sleeper import Sleeper


def tell(core, command, **args):
    return execute(core, Control(1, command, args))


def steps(core, count, tokens, ends):
    for _ in range(count):
        for output in (core.step() or NO_OUTPUTS).each():
            take(output, tokens, ends)


def finish(core, tokens, ends):
    while core.has_work:
        steps(core, 1, tokens, ends)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("before", [0, 1, 3, 6])
def test_requests_set_aside_go_on_with_equal_tokens(depth, before):
    core, device = make_core(depth=depth, latency_s=0.0)
    wanted = [request(f"r{i}", list(range(1, 6 + 7 * i)), max_tokens=12) for i in range(4)]
    tokens, ends = {}, {}
    for one in wanted:
        core.add(one)
    steps(core, before, tokens, ends)
    assert tell(core, "sleep", level=2).value["level"] == 2
    assert device.down == set(MEMORY_TAGS)
    assert core.stats.asleep == 2
    assert core.stats.running == 0
    assert core.stats.kv_usage == 0.0
    steps(core, 5, tokens, ends)  # nothing but what was in flight
    assert tell(core, "is_sleeping").value is True
    assert tell(core, "wake_up").value is True
    finish(core, tokens, ends)
    assert {name: (tokens[name], ends[name].finish) for name in ends} == {one.id: expected(one) for one in wanted}
    assert core.stats.asleep == 0
    assert not device.violations


def test_an_aborting_sleep_ends_what_runs():
    core, _ = make_core()
    core.add(request("a", [1, 2, 3], max_tokens=50))
    core.step()
    tell(core, "sleep", mode="abort")
    tokens, ends = {}, {}
    steps(core, 1, tokens, ends)
    assert ends["a"].finish == "abort"
    assert not core.has_work


def test_a_device_that_fails_in_a_step_before_the_sleep_ends_the_engine():
    """Nothing would go on: who was in that step is in none that comes, and nobody starts."""
    core, device = make_core(depth=2)

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def sample(riders, begin=device.sample):
        begin(riders)
        return SimpleNamespace(result=lost, done=lambda: True)

    device.sample = sample
    core.add(request("a", [1, 2, 3], max_tokens=2))
    core._feed()
    with pytest.raises(EngineDead):
        tell(core, "sleep")


def test_the_level_is_told_once():
    core, _ = make_core()
    tell(core, "sleep", level=1)
    assert core.step().stats.asleep == 1
    assert core.step() is None
    tell(core, "wake_up")
    assert core.step().stats.asleep == 0
    assert core.step() is None


def test_who_comes_while_it_sleeps_is_refused_by_name():
    core, _ = make_core()
    for command in ("pause", "sleep"):
        tell(core, command)
        core.add(request(command, [1, 2, 3]))
        outputs = core.step().each()
        assert [(one.id, one.error_code, one.error_name) for one in outputs] == [(command, 503, "asleep")]
    tell(core, "wake_up")
    core.add(request("later", [1, 2, 3]))
    assert run(core)["later"][1] == "length"


def test_those_who_run_go_on_while_it_falls_asleep():
    core, device = make_core(max_num_seqs=1)
    first, second = request("first", [1, 2, 3]), request("second", [4, 5, 6])
    core.add(first)
    core.add(second)
    core.step()
    tell(core, "pause")
    tokens, ends = {}, {}
    while core.stats.running:
        steps(core, 1, tokens, ends)
    assert list(ends) == ["first"]
    steps(core, 3, tokens, ends)
    assert list(ends) == ["first"]
    tell(core, "resume")
    finish(core, tokens, ends)
    assert list(ends) == ["first", "second"]
    assert not device.violations


def test_a_long_prompt_is_not_slowed_by_the_closed_gate():
    gate = PausedGate()
    gate.closed = True
    waiting, running = type("R", (), {"row": -1})(), type("R", (), {"row": 0})()
    assert (gate.allow(waiting, 9), gate.allow(running, 9)) == (0, 9)


def test_one_tag_at_a_time():
    core, device = make_core()
    tell(core, "sleep", level=2)
    assert tell(core, "wake_up", tags="weights").value is False
    assert device.down == {"kv_cache"}
    assert tell(core, "is_sleeping").value is True
    assert "unknown tag 'weight'" in tell(core, "wake_up", tags="weight").error
    assert tell(core, "wake_up", tags="kv_cache").value is True
    assert tell(core, "wake_up").value is True  # awake already


@pytest.mark.parametrize("error", [ConfigError("no room on the host"), RuntimeError("the driver said no")])
def test_a_sleep_that_is_refused_changes_nothing(error):
    core, device = make_core()
    wanted = request("a", [1, 2, 3], max_tokens=20)
    core.add(wanted)
    tokens, ends = {}, {}
    steps(core, 3, tokens, ends)

    def no(_):
        raise error

    device.sleep = no
    assert tell(core, "sleep").error
    finish(core, tokens, ends)
    assert tokens["a"] == expected(wanted)[0]
    core.add(request("b", [1]))
    assert run(core)["b"][1] == "length"


def test_a_wake_that_fails_is_told_and_may_be_tried_again():
    core, device = make_core()
    tell(core, "sleep")
    wake = device.wake

    def no(_):
        raise MemoryError

    device.wake = no
    assert tell(core, "wake_up").error == "the engine could not wake and stays asleep: the memory is not free"
    assert core.stats.asleep == 1
    device.wake = wake
    assert tell(core, "wake_up").value is True


def waking_core():
    core, device = make_core()
    core.rest._wake_on_request = True
    return core, device


def test_a_request_wakes_the_engine_where_that_is_wanted():
    core, device = waking_core()
    tell(core, "sleep", level=2)
    wanted = request("a", [1, 2, 3])
    core.add(wanted)
    assert not device.down
    assert run(core)["a"][:2] == expected(wanted)


def test_a_request_while_it_falls_asleep_keeps_it_awake():
    core, device = waking_core()
    tell(core, "pause")
    core.add(request("a", [1, 2, 3]))
    assert "it stays awake" in tell(core, "sleep").error
    assert run(core)["a"][1] == "length"
    assert not device.down
    tell(core, "pause")
    assert tell(core, "sleep").value


def test_a_request_that_cannot_wake_it_is_refused_by_name():
    core, device = waking_core()
    tell(core, "sleep")

    def no(_):
        raise MemoryError

    device.wake = no
    core.add(request("a", [1, 2, 3]))
    assert core.step().outputs[0].error_name == "asleep"


# --- a real worker


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"attention_backend": "reference"},
        {"dtype": "bfloat16"},
    ],
)
@pytest.mark.parametrize("level", [1, 2])
def test_a_worker_brings_its_weights_back(folder, options, level):  # noqa: F811
    client = InprocClient(assemble(tiny(folder, **options)))
    wanted = [request(f"r{i}", [3 + i, 9, 27, 81], max_tokens=12, temperature=0.0) for i in range(3)]

    def generate():
        for one in wanted:
            client.submit(one)
        tokens, ends = {}, {}
        while client.has_work:
            for output in client.step().each():
                take(output, tokens, ends)
        return tokens

    before = generate()
    for _ in range(2):
        assert client.control("sleep", level=level)["level"] == level
        assert not client.engine.core.executor.prepare()
        client.control("wake_up", tags="kv_cache")
        client.control("wake_up")
        assert generate() == before
    client.close()


def test_deeper_sleep_after_light(folder):  # noqa: F811
    client = InprocClient(assemble(tiny(folder)))
    client.control("sleep", level=1)
    assert client.control("sleep", level=2)["freed_bytes"] > 0
    assert client.control("sleep", level=1)["level"] == 2
    assert client.control("wake_up") is True
    client.close()


def test_a_model_whose_files_are_gone_stays_asleep(folder, monkeypatch):  # noqa: F811
    from octavo.base.errors import ModelFileError
    from octavo.weights import source

    client = InprocClient(assemble(tiny(folder)))
    client.control("sleep", level=2)

    def gone(*_args, **_kwargs):
        raise ModelFileError("/model", "cannot be read: No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr(source, "open_source", gone)
        with pytest.raises(EngineError, match="stays asleep: /model: cannot be read"):
            client.control("wake_up")
    assert client.control("is_sleeping") is True
    assert client.control("wake_up") is True
    client.close()


def test_a_cpu_gives_its_memory_back(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "vocab_size": 60_000, "hidden_size": 256}))
    client = InprocClient(assemble(tiny(str(tmp_path))))
    held = psutil.Process().memory_info().rss
    client.control("sleep", level=2)
    assert held - psutil.Process().memory_info().rss > 2 * 60_000 * 256 * 4 * 0.9  # embedding and head in fp32
    client.control("wake_up")
    assert psutil.Process().memory_info().rss > held * 0.9
    client.close()


class Stuck:
    why_not = "no virtual memory"


def test_memory_that_cannot_go_is_refused_in_one_line():
    sleeper = Sleeper(None, Stuck(), None, None)
    with pytest.raises(ConfigError, match="this engine cannot sleep: no virtual memory"):
        sleeper.sleep(2)
    assert sleeper.down == set()


class Pins:
    """What the bindings would pin, noted."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __init__(self):
        self.pinned = {}

    def cuMemHostRegister(self, address, size, flags):
        self.pinned[address] = size + flags
        return (0,)

    def cuMemHostUnregister(self, address):
        del self.pinned[address]
        return (0,)


class Apart(CpuPlatform):
    """A host that treats its own memory as a device's: level 1 copies and drops."""

    pins = Pins()

    def set_aside(self, memory, tag):
        return pinned.put_aside(memory, tag, self.pins, 0)


def test_weights_come_back_from_the_hosts_copy(folder, monkeypatch):  # noqa: F811
    for name in ("synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)
    monkeypatch.setattr("octavo.worker.worker.select", lambda _: Apart())
    monkeypatch.setattr(pinned, "CHUNK", 8192)
    client = InprocClient(assemble(tiny(folder, attention_backend="reference")))
    wanted = request("a", [3, 9, 27], max_tokens=12, temperature=0.0)

    def generate():
        client.submit(wanted)
        return [
            token for _ in iter(lambda: client.has_work, False) for one in client.step().each() for token in one.tokens
        ]

    before = generate()
    worker = client.engine.core.executor
    addresses = [each.data_ptr() for each in worker._decoder.parameters()]
    for _ in range(2):
        client.control("sleep", level=1)
        assert len(Apart.pins.pinned) > 3
        assert not any(each.any() for each in worker._decoder.parameters())
        client.control("wake_up")
        assert generate() == before
        assert [each.data_ptr() for each in worker._decoder.parameters()] == addresses
    client.control("sleep", level=1)
    client.control("sleep", level=2)
    client.control("wake_up")
    assert generate() == before
    client.close()
