"""Sleep on a real GPU: memory as its driver has it, captured steps that outlive it, and equal tokens.

python -m pytest tests/gpu/test_gpu_sleep.py -m gpu

Alone on the card, so without -n: the driver's figures count everybody.
"""

import json

import pytest
import torch

from octavo.base.errors import EngineError
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.assemble import assemble
from octavo.engine.inproc import InprocClient
from octavo.engine.keywords import engine_config
from octavo.platform import pinned
from octavo.platform.arena import WEIGHTS, Arena

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

MIB = 1 << 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def used():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what a test's own arithmetic left with torch
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from octavo.bench.gpu.sleep_rows import write_weights

    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_weights(folder)
    return str(folder)


def launch(folder, **options):
    options = {"kv_cache_memory_bytes": 4 << 30, "device": "cuda", "max_num_seqs": 32, **options}
    return InprocClient(assemble(engine_config(model=folder, **options)))


@pytest.fixture(scope="module")
def client(folder):
    client = launch(folder)
    client.prepare()
    yield client
    client.close()


def generate(client, count=6, max_tokens=40):
    for index in range(count):
        tokens = list(range(5 + index, 60 + 30 * index))
        client.submit(EngineRequest(f"r{index}", tokens, Sampling(seed=0, max_tokens=max_tokens, temperature=0.0)))
    return finish(client, {})


def finish(client, tokens):
    while client.has_work:
        for output in client.step().each():
            assert output.error is None
            tokens.setdefault(output.id, []).extend(output.tokens)
    return tokens


def test_the_arena_works_here(client):
    assert client.engine.core.executor._memory.why_not == ""


def test_arena_addresses_and_contents():
    from octavo.platform.registry import select

    platform = select("cuda")
    arena = platform.arena()
    assert isinstance(arena, Arena)
    before = used()
    small = arena.tensor(WEIGHTS, (1000,), torch.float32).fill_(2.0)
    large = arena.tensor(WEIGHTS, (300 * MIB,), torch.bfloat16).fill_(3.0)
    address = large.data_ptr()
    assert used() - before >= 600 * MIB
    aside = platform.set_aside(arena, WEIGHTS)
    assert used() - before <= 32 * MIB
    aside.bring_back()
    assert large.data_ptr() == address
    assert (small == 2.0).all()
    assert (large == 3.0).all()
    del small, large
    arena.close()
    assert used() - before <= 32 * MIB


@pytest.mark.parametrize("level", [1, 2])
def test_memory_goes_and_tokens_stay(client, level):
    worker = client.engine.core.executor
    steps = {room: id(step) for room, step in worker._runner._launcher._launcher._steps.items()}
    assert steps
    client.control(
        "reset_prefix_cache"
    )  # a prompt is computed whole each time: in other batches bf16 rounds differently
    tokens = generate(client)
    before = used()
    weights = sum(each.nbytes for each in worker._decoder.parameters())
    for _ in range(3):
        given = client.control("sleep", level=level)["freed_bytes"]
        assert given >= (4 << 30) - 64 * MIB + weights
        assert before - used() >= given - 64 * MIB
        client.control("wake_up")
        assert abs(used() - before) <= 256 * MIB
        assert generate(client) == tokens
    assert {room: id(step) for room, step in worker._runner._launcher._launcher._steps.items()} == steps


def test_requests_set_aside_go_on(folder):
    """In fp32: what is computed anew stands in other batches, and bf16 rounds differently there."""
    config = engine_config(model=folder, device="cuda", dtype="float32", kv_cache_memory_bytes=2 << 30)
    client = InprocClient(assemble(config))
    expected = generate(client)
    client.control("reset_prefix_cache")
    for index in range(6):
        tokens = list(range(5 + index, 60 + 30 * index))
        client.submit(EngineRequest(f"r{index}", tokens, Sampling(seed=0, max_tokens=40, temperature=0.0)))
    tokens = {}
    for _ in range(12):
        for output in client.step().each():
            tokens.setdefault(output.id, []).extend(output.tokens)
    client.control("sleep", level=2)
    client.control("wake_up", tags="kv_cache")
    client.control("wake_up", tags="weights")
    assert finish(client, tokens) == expected
    client.close()


def test_level_one_is_refused_without_room_and_nothing_changes(client, monkeypatch):
    tokens = generate(client)
    monkeypatch.setattr(pinned, "memory_limits", lambda: (100 * MIB, 200 * MIB))
    with pytest.raises(EngineError, match="level 2 drops them"):
        client.control("sleep", level=1)
    assert generate(client) == tokens


def test_a_card_that_others_hold_part_of(folder):
    """The cache is fitted to what is free, and the engine starts."""
    free, _ = torch.cuda.mem_get_info()
    others = torch.empty(free - (6 << 30), dtype=torch.uint8, device="cuda")
    client = InprocClient(assemble(engine_config(model=folder, device="cuda", load_format="dummy")))
    layout = client.engine.core.executor._runner._table
    assert layout.num_blocks > 100
    assert len(generate(client, count=2, max_tokens=8)["r0"]) == 8
    client.close()
    del others
    torch.cuda.empty_cache()
