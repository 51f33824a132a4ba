"""Engines over FakeExecutor, in this process and (named in `Launch.assembly`) in a process of their own."""

import os
import pathlib

import msgspec

from octavo.base.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.base.errors import ConfigError
from octavo.base.specs import KVSpec
from octavo.base.wire import EngineRequest, Outputs, Sampling
from octavo.engine.assemble import Phases, finish
from octavo.engine.resolve import resolve
from octavo.models.arch import Architecture, Attention, Layer, Mlp, Rope
from octavo.platform.base import Facts
from octavo.testing.fake_executor import FakeExecutor, expected_tokens, fold_model

VOCAB = 200
HERE = pathlib.Path(__file__).parent
SPEC = KVSpec(1, 8)

MACHINE = Facts(
    device="cpu",
    name="no machine",
    total_memory=1 << 30,
    free_memory=1 << 30,
    cores=1,
    dtypes=("float32",),
    asynchronous=False,
)

ARCH = Architecture(
    family="fake",
    vocab_size=VOCAB,
    hidden_size=8,
    layers=(
        Layer(
            attention=Attention(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=Rope(dim=8)),
            mlp=Mlp(intermediate_size=8),
        ),
    ),
    max_position=512,
    dtype="float32",
    norm_eps=1e-6,
)


def config(*, depth=1, num_blocks=129, max_waiting=1024, max_num_seqs=8, max_num_batched_tokens=64, **fake):
    """A configuration; `fake` are arguments of FakeExecutor, carried in the model's name."""
    return EngineConfig(
        model=ModelConfig(model=msgspec.json.encode(fake).decode()),
        cache=CacheConfig(num_gpu_blocks_override=num_blocks, block_size=4),
        scheduler=SchedulerConfig(
            async_scheduling=depth > 1,
            max_waiting=max_waiting,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
    )


def assemble(config):
    fake = msgspec.json.decode(config.model.model)
    executor = FakeExecutor(VOCAB, **fake)
    resolved = resolve(config, ARCH, MACHINE)
    return finish(config, resolved, ARCH.kv_specs(), VOCAB, executor, Phases())


def assemble_refused(_):
    raise ConfigError("the model does not exist\nand this is a second line")


def assemble_crash(_):
    raise RuntimeError("unforeseen")


class _NoMemory(FakeExecutor):
    def start(self, _):
        raise MemoryError


def assemble_out_of_memory(config):
    return finish(config, resolve(config, ARCH, MACHINE), ARCH.kv_specs(), VOCAB, _NoMemory(VOCAB), Phases())


def assemble_vanish(_):
    os._exit(9)


def make_core(**values):
    """(core, its FakeExecutor)"""
    core = assemble(config(**values)).core
    return core, core.executor


def request(name, tokens, max_tokens=8, **sampling):
    return EngineRequest(id=name, tokens=tokens, sampling=Sampling(seed=7, max_tokens=max_tokens, **sampling))


def expected(wanted):
    return expected_tokens(fold_model(VOCAB), wanted.tokens, wanted.sampling, ARCH.max_position)


def run(core, limit=2000):
    """Step until idle: id -> (tokens, finish, last output)."""
    tokens, ends = {}, {}
    for _ in range(limit):
        if not core.has_work:
            break
        for output in (core.step() or NO_OUTPUTS).each():
            take(output, tokens, ends)
    assert not core.has_work
    return {name: (tokens[name], ends[name].finish, ends[name]) for name in ends}


def take(output, tokens, ends):
    assert output.id not in ends, "an output after the last"
    tokens.setdefault(output.id, []).extend(output.tokens)
    if output.finish is not None:
        ends[output.id] = output


NO_OUTPUTS = Outputs()
