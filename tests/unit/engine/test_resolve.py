import pytest

from octavo.base.config import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.base.errors import ConfigError
from octavo.engine.resolve import RULES, resolve
from octavo.models.arch import Architecture
from octavo.platform.base import Facts

GIB = 1 << 30
CPU = Facts(
    device="cpu",
    name="a CPU",
    total_memory=16 * GIB,
    free_memory=8 * GIB,
    cores=6,
    dtypes=("float32", "bfloat16", "float16"),
    asynchronous=False,
)
BIG_GPU = Facts(
    device="cuda",
    name="a big GPU",
    total_memory=80 * GIB,
    free_memory=79 * GIB,
    cores=32,
    dtypes=("bfloat16", "float16", "float32"),
    asynchronous=True,
    capability=(9, 0),
)
OLD_GPU = Facts(
    device="cuda",
    name="an old GPU",
    total_memory=16 * GIB,
    free_memory=15 * GIB,
    cores=4,
    dtypes=("float16", "float32"),
    asynchronous=True,
    capability=(7, 5),
)


def arch(dtype="bfloat16"):
    return Architecture(
        family="test", vocab_size=100, hidden_size=256, layers=(), max_position=4096, dtype=dtype, norm_eps=1e-6
    )


def config(**values):
    model = {name: values.pop(name) for name in ("dtype", "load_format", "max_model_len") if name in values}
    device = {name: values.pop(name) for name in ("device", "threads", "tensor_parallel_size") if name in values}
    return EngineConfig(model=ModelConfig(**model), device=DeviceConfig(**device), scheduler=SchedulerConfig(**values))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            CPU,
            {
                "device": "cpu",
                "dtype": "float32",
                "max_num_seqs": 64,
                "max_num_batched_tokens": 2048,
                "depth": 1,
                "threads": 6,
            },
        ),
        (
            BIG_GPU,
            {
                "device": "cuda",
                "dtype": "bfloat16",
                "max_num_seqs": 1024,
                "max_num_batched_tokens": 16_384,
                "depth": 2,
                "threads": 8,
            },
        ),
        (
            OLD_GPU,
            {
                "device": "cuda",
                "dtype": "float16",
                "max_num_seqs": 256,
                "max_num_batched_tokens": 8192,
                "depth": 2,
                "threads": 4,
            },
        ),
    ],
)
def test_defaults_of_each_machine(facts, expected):
    resolved = resolve(EngineConfig(), arch(), facts)
    assert {name: getattr(resolved, name) for name in expected} == expected
    assert resolved.max_model_len == 4096
    assert resolved.block_size == 16
    assert all(len(note.splitlines()) == 1 for note in resolved.notes)


@pytest.mark.parametrize(
    ("asked", "facts", "field", "value"),
    [
        ({"dtype": "bfloat16"}, CPU, "dtype", "bfloat16"),
        ({"max_model_len": 100}, CPU, "max_model_len", 100),
        ({"async_scheduling": True}, CPU, "depth", 2),
        ({"async_scheduling": False}, BIG_GPU, "depth", 1),
        ({"threads": 3}, CPU, "threads", 3),
        ({"max_num_seqs": 5000}, CPU, "max_num_batched_tokens", 5000),
        ({"max_num_batched_tokens": 32}, CPU, "max_num_seqs", 32),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 8}, CPU, "max_num_seqs", 8),
        ({"load_format": "dummy"}, CPU, "load_format", "dummy"),
        ({}, CPU, "load_format", "gguf"),
    ],
)
def test_what_is_asked_wins(asked, facts, field, value):
    assert getattr(resolve(config(**asked), arch(), facts, file_format="gguf"), field) == value


@pytest.mark.parametrize(
    ("asked", "facts", "words"),
    [
        ({"tensor_parallel_size": 2}, BIG_GPU, "later version"),
        ({"device": "cuda"}, CPU, "this machine offers cpu"),
        ({"dtype": "bfloat16"}, OLD_GPU, "an old GPU cannot compute in bfloat16"),
        ({"max_model_len": 4097}, CPU, "context of 4096"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, CPU, "below max_num_seqs"),
    ],
)
def test_what_cannot_be_is_one_clear_line(asked, facts, words):
    with pytest.raises(ConfigError, match=words) as caught:
        resolve(config(**asked), arch(), facts)
    assert "\n" not in str(caught.value)


def test_rules_settle_every_field_and_reasons_are_noted():
    from octavo.base.config import Resolved

    assert {name for name, _ in RULES} | {"notes"} == set(Resolved.__struct_fields__)
    notes = resolve(EngineConfig(), arch(), OLD_GPU).notes
    assert any(note.startswith("dtype float16: an old GPU cannot") for note in notes)
