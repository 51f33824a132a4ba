"""Once an engine is prepared no request meets a kernel that is still to be compiled: all would wait seconds for it.

python -m pytest tests/gpu/test_gpu_compiles.py -m gpu
"""

import json
import random

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 150_001,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WAYS = (
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 5},
    {"temperature": 0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logprobs": 3, "logit_bias": {7: 5.0}, "min_tokens": 2},
    {"temperature": 0, "logprobs": 5},
    {"temperature": 0.7, "top_k": 20, "logprobs": 20},
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    from octavo import LLM
    from octavo.bench.standin import write_tokenizer

    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder, CONFIG["vocab_size"])
    (folder / "config.json").write_text(json.dumps(CONFIG))
    llm = LLM(str(folder), load_format="dummy", max_num_seqs=96, gpu_memory_utilization=0.2)
    yield llm
    llm.close()


@pytest.fixture
def compiled():
    """Names of the kernels that have had to be compiled."""
    from triton import knobs

    names: list[str] = []
    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = lambda *, fn, **_: names.append(fn.name)
    yield names
    knobs.runtime.jit_cache_hook = before


def run(llm, lengths, ways, tokens):
    from octavo import SamplingParams

    draw = random.Random(sum(lengths))
    prompts = [{"prompt_token_ids": [draw.randrange(3, 150_000) for _ in range(length)]} for length in lengths]
    sampling = [SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **way) for way in ways]
    return llm.generate(prompts, sampling, use_tqdm=False)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("streams", [1, 2, 3, 7, 33, 90])
def test_streams_of_all_lengths(llm, compiled, streams, way):
    draw = random.Random(streams)
    run(llm, [draw.choice((1, 5, 31, 64, 300, 700)) for _ in range(streams)], [way] * streams, 5)
    assert not compiled


@pytest.mark.parametrize(
    "lengths", [[17], [500], [1000], [1500], [3000], [8000], [512] * 40, [1500, 20, 3000, 1, 600], [90] * 70], ids=str
)
def test_prompts_alone_and_in_crowds(llm, compiled, lengths):
    run(llm, lengths, [WAYS[0]] * len(lengths), 3)
    run(llm, lengths, [WAYS[0]] * len(lengths), 3)  # the second time they are in the prefix cache
    assert not compiled


def test_mixed_ways(llm, compiled):
    run(llm, [40 + place for place in range(25)], [WAYS[place % len(WAYS)] for place in range(25)], 8)
    assert not compiled
