"""The engine over the real worker: a tiny model of random weights, on a CPU, in this process and in its own."""

import asyncio
import json

import pytest
from engine_fakes import request, run

from octavo.base.errors import ConfigError
from octavo.engine.assemble import assemble
from octavo.engine.client import EngineClient
from octavo.engine.keywords import engine_config

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    return str(folder)


def tiny(folder, **options):
    values = {"num_gpu_blocks_override": 100, "threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    return engine_config(model=folder, load_format="dummy", device="cpu", **{**values, **options})


def wanted():
    greedy = [request(f"g{i}", [3 + (i * 5 + j) % 190 for j in range(4 + 13 * i)], temperature=0.0) for i in range(5)]
    return [*greedy, *(request(f"s{i}", [7, 8, 9 + i], max_tokens=12) for i in range(3))]


@pytest.fixture(scope="module")
def truth(folder):
    """Tokens of each request when it is alone, a step at a time."""
    core = assemble(tiny(folder, enable_prefix_caching=False)).core
    tokens = {}
    for one in wanted():
        core.add(one)
        tokens[one.id] = run(core)[one.id][:2]
    return tokens


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, {"async_scheduling": True, "block_size": 4}])
def test_batched_overlapped_and_alone_give_the_same_tokens(folder, truth, options):
    engine = assemble(tiny(folder, **options))
    for one in wanted():
        engine.core.add(one)
    assert {name: result[:2] for name, result in run(engine.core).items()} == truth
    engine.core.shutdown()


async def test_the_same_from_a_process_of_its_own(folder, truth):
    async with await EngineClient.launch(tiny(folder), log_level="error") as client:
        assert client.ready.vocab_size == 200
        assert set(client.ready.phases) == {"read_model", "resolve", "load_weights", "kv_cache", "scheduler"}

        async def read(one):
            tokens, last = [], None
            async for output in client.submit(one):
                tokens += output.tokens
                last = output
            return tokens, last.finish

        found = await asyncio.gather(*(read(one) for one in wanted()))
    assert dict(zip((one.id for one in wanted()), found)) == truth


async def test_a_model_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError) as caught:
        await EngineClient.launch(engine_config(model="/nonexistent/model", device="cpu"), log_level="error")
    assert "\n" not in str(caught.value)


def test_a_context_too_long_for_the_cache_is_fitted(folder):
    engine = assemble(tiny(folder, num_gpu_blocks_override=5))
    assert engine.ready.max_model_len == 65
    assert any(note.startswith("max_model_len 65: 256 tokens need") for note in engine.ready.notes)
    one = request("a", list(range(3, 50)), max_tokens=15, temperature=0.0)
    engine.core.add(one)
    assert len(run(engine.core)["a"][0]) <= 15


def test_a_prefix_is_not_shared_over_the_edge_of_a_rotation(tmp_path):
    """Longrope turns all of a long prompt by other angles: what a short prompt cached must not serve it."""
    from octavo.models.registry import read_architecture
    from octavo.testing.tiny import tiny as tiny_model

    model = tiny_model("phi3-longrope")
    folder = str(model.save(tmp_path / "model"))
    edge = next(r.original_max_position for r in read_architecture(model.config).ropes() if r.kind == "longrope")
    prompt = [3 + i * 7 % 90 for i in range(edge + 9)]
    long = request("long", prompt, temperature=0.0, max_tokens=8)

    def answer(*before):
        core = assemble(
            engine_config(model=folder, device="cpu", threads=1, num_gpu_blocks_override=60, block_size=4)
        ).core
        for one in (*before, long):
            core.add(one)
            results = run(core)
        return results["long"][:2], core.stats.prefix_hits

    alone, _ = answer()
    short = request("short", prompt[: edge - 4], temperature=0.0, max_tokens=2)
    again = request("again", prompt, temperature=0.0, max_tokens=2)
    assert answer(short) == (alone, 0)
    assert answer(again) == (alone, (len(prompt) - 1) // 4 * 4)
