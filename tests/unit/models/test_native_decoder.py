"""The native decoder against the torch one: every family, any mix of chunks, any KV type."""

import pytest
import torch

from octavo.base.config import CacheConfig, DeviceConfig, EngineConfig
from octavo.base.errors import ConfigError
from octavo.base.specs import INT8_EXTRA_DIMS
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import unpack
from octavo.kernels.ops import select
from octavo.models.decoder import Decoder, build
from octavo.models.native import NativeDecoder, accelerate
from octavo.nn.embed import Embedding
from octavo.nn.linear import Linear
from octavo.nn.quant.native import Native
from octavo.testing.parity import TOLERANCE, Chunk, PagedModel, prompt_tokens
from octavo.testing.tiny import CASES, tiny
from octavo.weights.load import load_weights

module = native()
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(module is None, reason="the CPU kernels are not built"),
]
NAMES = [name for name in CASES if name != "phi3-longrope"]  # its factors fit one head dim only
ISAS = module.instruction_sets() if module is not None else []
CPU = torch.device("cpu")


class NativePaged(PagedModel):
    """PagedModel over the native decoder. Its cache starts as NaN, as the reference's does."""

    def __init__(self, model, isa="", quantization=None, kv_dtype=torch.float32, block_size=16, threads=2, bits="auto"):
        super().__init__(model, block_size=block_size, num_blocks=64)
        shape, narrow = list(self.pool.shape), kv_dtype == torch.int8
        if narrow:
            shape[-1] += INT8_EXTRA_DIMS
        self.pool = torch.full(shape, 77 if narrow else float("nan"), dtype=kv_dtype)
        places = {layer: slot for group in self.groups for slot, layer in enumerate(group.layers)}
        self.views = [self.pool[:, places[layer]] for layer in range(len(places))]
        method = Native(module.Machine(threads, False, isa), quantization)
        decoder = build(self.arch, select(CPU, "reference"), torch.float32, CPU, method=method)
        load_weights(decoder, model.checkpoint)
        config = EngineConfig(
            cache=CacheConfig(kv_cache_dtype=str(kv_dtype).removeprefix("torch.")),
            device=DeviceConfig(cpu_activations=bits),
        )
        self.decoder, kept = accelerate(decoder, block_size, config, torch.float32)
        assert isinstance(self.decoder, NativeDecoder)
        assert kept == kv_dtype


class Dequantized:
    """The torch decoder over a native one's weights, unpacked."""

    def __init__(self, model, paged):
        self.plain = PagedModel(model, block_size=16)
        for mine, theirs in zip(self.plain.decoder.modules(), paged.decoder.decoder.modules()):
            if isinstance(mine, Linear):
                for piece, row in theirs.packed.pieces:
                    mine.weight[row : row + piece.rows] = unpack(piece)
            if isinstance(mine, Embedding) and theirs.table.head is not None:
                self.head = unpack(theirs.table.head.pieces[0][0])

    def prefill(self, tokens):
        decoder = self.plain.decoder
        if decoder.head.embedding is not None:  # the head's form of a tied table is quantized, the table is not
            decoder.head.embedding = None
            decoder.head.linear = lambda x: x @ self.head.T
        return self.plain.prefill(self.plain.sequence(tokens))


def model_of(name):
    return tiny(name, head_dim=16)


def tokens_of(count, seed=0):
    return prompt_tokens(count, seed)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_as_in_torch(name):
    model = model_of(name)
    tokens = tokens_of(75)
    plain, paged = PagedModel(model, block_size=16), NativePaged(model)
    want = plain.prefill(plain.sequence(tokens))
    got = paged.prefill(paged.sequence(tokens))
    assert (got - want).abs().max() < TOLERANCE * 5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["qwen2", "gemma2", "gemma3", "qwen3", "olmo2"])
def test_every_instruction_set(name, isa):
    model = model_of(name)
    tokens = tokens_of(40)
    plain, paged = PagedModel(model, block_size=16), NativePaged(model, isa)
    want = plain.prefill(plain.sequence(tokens))
    got = paged.prefill(paged.sequence(tokens))
    assert (got - want).abs().max() < TOLERANCE * 5


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_narrow_caches(kv_dtype):
    model = model_of("qwen2")
    tokens = tokens_of(50)
    plain, paged = PagedModel(model, block_size=16), NativePaged(model, kv_dtype=kv_dtype)
    want = plain.prefill(plain.sequence(tokens))
    got = paged.prefill(paged.sequence(tokens))
    assert (got - want).abs().mean() < (0.02 if kv_dtype == torch.float16 else 0.1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_an_int8_cache_is_the_same_in_any_chunks(name, isa):
    model = model_of(name)
    tokens = tokens_of(70)
    paged = NativePaged(model, isa, kv_dtype=torch.int8)
    whole = paged.prefill(paged.sequence(tokens))
    assert whole.isfinite().all()
    for chunk in (1, 7, 33):
        assert torch.equal(paged.prefill(paged.sequence(tokens), chunk), whole), chunk


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "olmo2"])
def test_wide_activations_keep_log_probabilities(name):
    """Beside the decoder in fp32 over the values that the packed weights stand for."""
    model = model_of(name)
    tokens = tokens_of(80)
    errors = {}
    for bits in ("int8", "int16"):
        paged = NativePaged(model, quantization="int8", bits=bits)
        got = paged.prefill(paged.sequence(tokens))
        want = Dequantized(model, paged).prefill(tokens)
        errors[bits] = (got - want).abs().max()
    assert errors["int16"] < 0.05  # of random weights, whose logits spread four times as far as a real model's
    assert errors["int16"] < errors["int8"] / 50


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name", ["qwen2", "gemma3", "gemma2", "mistral", "olmo3", "phi3"])
def test_chunks_do_not_change_a_bit(name, quantization):
    model = model_of(name)
    tokens = tokens_of(70)
    paged = NativePaged(model, quantization=quantization, kv_dtype=torch.float16)
    whole = paged.prefill(paged.sequence(tokens))
    for chunk in (1, 7, 16, 33):
        assert torch.equal(paged.prefill(paged.sequence(tokens), chunk), whole), chunk


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_neighbours_do_not_change_a_bit(name):
    model = model_of(name)
    paged = NativePaged(model, quantization="int8", kv_dtype=torch.float16)
    mine = tokens_of(37, 1)
    alone = paged.prefill(paged.sequence(mine))
    row, others = paged.sequence(mine), [paged.sequence(tokens_of(60, seed)) for seed in range(2, 7)]
    parts = []
    for count in (5, 1, 16, 1, 14):
        chunks = [Chunk(other, 3 + index) for index, other in enumerate(others)]
        parts.append(paged.step([*chunks[:2], Chunk(row, count), *chunks[2:]])[2])
    assert torch.equal(torch.cat(parts), alone)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen3", {"threads": 1}),
        ("qwen3", {"threads": 3}),
        ("gemma3", {"block_size": 32}),
        ("gemma3", {"block_size": 64}),
    ],
)
def test_threads_and_longer_blocks_do_not_change_a_bit(name, other):
    model, tokens = model_of(name), tokens_of(100)
    plain, changed = NativePaged(model), NativePaged(model, **other)
    assert torch.equal(plain.prefill(plain.sequence(tokens)), changed.prefill(changed.sequence(tokens)))


def test_after_a_prefix_hit():
    model = model_of("qwen2")
    tokens = tokens_of(60)
    paged = NativePaged(model, kv_dtype=torch.float16)
    donor = paged.sequence(tokens)
    whole = paged.prefill(donor)
    again = paged.share(donor, tokens)
    assert again.computed == 48
    assert torch.equal(paged.prefill(again), whole[48:])


@pytest.mark.parametrize(("name", "block_size"), [("qwen2", 4), ("mistral", 16)])
def test_what_is_not_covered_runs_in_torch(name, block_size):
    model = tiny(name)  # head dims of 10 and 14
    method = Native(module.Machine(1, False, ""))
    paged = PagedModel(model, block_size=block_size)
    decoder = build(paged.arch, select(CPU, "reference"), torch.float32, CPU, method=method)
    load_weights(decoder, model.checkpoint)
    tokens = tokens_of(30)
    want = paged.prefill(paged.sequence(tokens))
    paged.decoder, kept = accelerate(decoder, block_size, EngineConfig(), torch.float32)
    assert isinstance(paged.decoder, Decoder)
    assert kept == torch.float32
    with pytest.raises(ConfigError, match="kv_cache_dtype int8 needs"):
        accelerate(decoder, block_size, EngineConfig(cache=CacheConfig(kv_cache_dtype="int8")), torch.float32)
    got = paged.prefill(paged.sequence(tokens))
    assert (got - want).abs().max() < TOLERANCE
