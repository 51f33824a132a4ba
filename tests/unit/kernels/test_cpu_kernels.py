"""The CPU kernels against plain torch: every format, odd shapes, every instruction set that runs here."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import BLOCK_TYPES, FLOAT_TYPES, likeliest, linear, pack_rows, pack_values, unpack
from octavo.weights.gguf_dequant import dequantise
from octavo.weights.gguf_types import BLOCK_TYPES as BLOCKS

module = native()
pytestmark = pytest.mark.skipif(module is None, reason="the CPU kernels are not built")

ISAS = module.instruction_sets() if module is not None else []
TOKENS = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 33, 50)


@pytest.fixture(scope="module", params=ISAS)
def machine(request):
    return module.Machine(2, False, request.param)


@dataclass
class FakeEntry:
    """A tensor of a checkpoint, from bytes in memory."""

    qtype: str
    blocks: Tensor
    shape: tuple[int, int]

    def load(self, dtype):
        return dequantise(self.blocks, {name: i for i, name in NAMES.items()}[self.qtype], dtype).view(self.shape)

    def raw(self):
        return self.blocks


NAMES = {number: block.name for number, block in BLOCKS.items()}


def entry_of(name: str, rows: int, columns: int, seed: int) -> FakeEntry:
    """Random blocks whose scales are small numbers; all codes and scale bits are random."""
    block = BLOCKS[BLOCK_TYPES[name] if name in BLOCK_TYPES else FLOAT_TYPES[name]]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // block.values, block.size), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(name, (0, 2))
    if name in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"):
        halves = (0,)
    for at in halves:
        scale = rng.uniform(-0.02, 0.02, data.shape[:2]).astype(np.float16)
        data[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    return FakeEntry(name, torch.from_numpy(data.reshape(rows, -1)), (rows, columns))


def activations(tokens: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, columns, generator=generator) * 3


def quantized(x: Tensor, planes: int = 1) -> Tensor:
    """Activations as the kernels see them: 8 or 15 bits in groups of 32, in fp64."""
    pad = -x.shape[1] % 32
    groups = torch.nn.functional.pad(x, (0, pad)).view(x.shape[0], -1, 32)
    top = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(top > 1e-30, 127.0 / top, torch.zeros(()))
    codes = (groups * inverse).round().clamp(-127, 127).double()
    if planes == 2:
        codes += ((groups * inverse - codes.float()) * 128).round().double() / 128
    return (codes * (top / 127.0).double()).view(x.shape[0], -1)[:, : x.shape[1]]


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_packed_blocks_stand_for_the_values_of_the_file(machine, name):
    entry = entry_of(name, 37, 512, seed=1)
    weight = pack_rows(machine, entry, slice(0, 37), None)
    want = entry.load(torch.float32)
    # Scales are kept in fp16; Q2_K and Q3_K become eight bits.
    limit = 2e-3 if name not in ("Q2_K", "Q3_K") else 6e-3
    assert (unpack(weight) - want).abs().max() <= limit * want.abs().max()


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "Q4_1", "Q5_1"])
def test_simple_formats_are_kept_to_the_bit(machine, name):
    entry = entry_of(name, 16, 64, seed=2)
    want = entry.load(torch.float32)
    got = unpack(pack_rows(machine, entry, slice(0, 16), None))
    assert torch.allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_product_of_each_format(machine, name):
    entry = entry_of(name, 50, 256, seed=3)
    weight = pack_rows(machine, entry, slice(0, 50), None)
    values = unpack(weight).double()
    for tokens, planes in ((1, 1), (4, 1), (19, 1), (1, 2), (4, 2), (19, 2)):
        x = activations(tokens, 256, tokens)
        got = linear(machine, [(weight, 0, 0)], x, 50, planes=planes)
        want = quantized(x, planes) @ values.T
        assert (got - want).abs().max() <= 2e-5 * want.abs().max() + 1e-5
        if planes == 2:
            assert (got - x.double() @ values.T).abs().max() <= 2e-4 * want.abs().max() + 1e-4


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K", "IQ4_NL", "F32", "F16", "BF16"])
@pytest.mark.parametrize("planes", [1, 2])
def test_a_row_has_the_same_bits_alone_and_among_others(machine, name, planes):
    columns = 256
    if name in FLOAT_TYPES:
        types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        weight = pack_values(machine, torch.randn(45, columns).to(types[name]))
    else:
        weight = pack_rows(machine, entry_of(name, 45, columns, seed=4), slice(0, 45), None)
    x = activations(max(TOKENS), columns, 5)
    alone = torch.cat([linear(machine, [(weight, 0, 0)], row[None], 45, planes=planes) for row in x])
    for tokens in TOKENS:
        assert torch.equal(linear(machine, [(weight, 0, 0)], x[:tokens], 45, planes=planes), alone[:tokens]), tokens


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 32), (17, 33), (100, 70), (2000, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_weights_of_odd_shapes(machine, rows, columns, dtype):
    values = torch.randn(rows, columns).to(dtype)
    weight = pack_values(machine, values)
    assert torch.equal(unpack(weight), values.float())
    bias = torch.randn(rows)
    for tokens in (1, 6, 21):
        x = activations(tokens, columns, 6)
        got = linear(machine, [(weight, 0, bias.data_ptr())], x, rows)
        want = x.double() @ values.double().T + bias
        assert torch.allclose(got.double(), want, rtol=1e-4, atol=1e-4 * columns**0.5)


@pytest.mark.parametrize(("form", "limit"), [("int8", 0.01), ("int4", 0.15)])
@pytest.mark.parametrize(("rows", "columns"), [(5, 33), (64, 96)])
def test_floats_quantized_at_load(machine, form, limit, rows, columns):
    values = torch.randn(rows, columns)
    weight = pack_values(machine, values, form)
    off = (unpack(weight) - values).square().mean().sqrt() / values.square().mean().sqrt()
    assert off < limit
    x = activations(3, columns, 7)
    want = quantized(x) @ unpack(weight).double().T
    got = linear(machine, [(weight, 0, 0)], x, rows)
    assert torch.allclose(got.double(), want, rtol=1e-4, atol=1e-4 * want.abs().max())


def test_stacked_parts_and_their_biases(machine):
    heights, columns = (24, 8, 40), 64
    pieces = [pack_values(machine, torch.randn(height, columns)) for height in heights]
    bias = torch.randn(sum(heights))
    starts = np.cumsum((0, *heights))
    parts = [(piece, int(row), bias.data_ptr() + 4 * int(row)) for piece, row in zip(pieces, starts)]
    x = activations(11, columns, 8)
    got = linear(machine, parts, x, sum(heights))
    want = x @ torch.cat([unpack(piece) for piece in pieces]).T + bias
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Q5_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "F16", "BF16", "F32"])
def test_look_up(machine, name):
    if name in FLOAT_TYPES:
        types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        table = torch.randn(20, 256).to(types[name]).view(torch.uint8)
        entry = FakeEntry(name, table, (20, 256))
    else:
        entry = entry_of(name, 20, 256, seed=9)
    ids = torch.tensor([3, 0, 19, 3, 7, 11, 2, 1, 5, 19])
    out = torch.empty(10, 256)
    number = (BLOCK_TYPES | FLOAT_TYPES)[name]
    stored = entry.raw()
    machine.lookup(number, stored.data_ptr(), stored.stride(0), 256, 20, ids.data_ptr(), 10, 2.0, out.data_ptr())
    assert torch.allclose(out, entry.load(torch.float32)[ids] * 2.0, rtol=1e-6, atol=1e-7)
    bad = torch.tensor([20])
    with pytest.raises(IndexError):
        machine.lookup(number, stored.data_ptr(), stored.stride(0), 256, 20, bad.data_ptr(), 1, 1.0, out.data_ptr())


def test_zero_and_huge_activations(machine):
    weight = pack_rows(machine, entry_of("Q4_0", 16, 64, seed=10), slice(0, 16), None)
    x = torch.zeros(2, 64)
    assert torch.equal(linear(machine, [(weight, 0, 0)], x, 16), torch.zeros(2, 16))
    x[0, 3] = 1e20
    assert linear(machine, [(weight, 0, 0)], x, 16).isfinite().all()


def test_instruction_sets_agree():
    entry = entry_of("Q4_K", 33, 512, seed=11)
    x = activations(5, 512, 12)
    results = []
    for isa in ISAS:
        one = module.Machine(1, False, isa)
        results.append(linear(one, [(pack_rows(one, entry, slice(0, 33), None), 0, 0)], x, 33))
    for other in results[1:]:
        assert torch.allclose(other, results[0], rtol=1e-4, atol=1e-4 * results[0].abs().max())


def test_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="sparc"):
        module.Machine(1, False, "sparc")


def test_argmax_takes_the_first_of_equals_and_reports_nan(machine):
    x = torch.randn(7, 1003)
    x[0, 5] = x[0, 900] = 50.0
    x[1, 1002] = 60.0
    x[2] = -torch.inf
    x[3, 17] = torch.nan
    x[4, 1001] = torch.nan
    x[5, 3] = torch.inf
    best, place = torch.empty(7), torch.empty(7, dtype=torch.int64)
    machine.argmax(x.data_ptr(), 7, 1003, 1003, best.data_ptr(), place.data_ptr())
    assert place.tolist()[:3] == [5, 1002, 0]
    assert place[6] == x[6].argmax()
    torch.testing.assert_close(best, x.max(-1).values, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 40, 40_000])
def test_likeliest_is_the_argmax_of_the_product(machine, rows):
    weight = pack_values(machine, torch.randn(rows, 32))
    x = activations(5, 32, 3)
    x[2] = torch.nan
    scratch = torch.empty(5, rows)
    got = likeliest(machine, [(weight, 0, 0)], x, scratch, 1)
    want = linear(machine, [(weight, 0, 0)], x, rows).argmax(-1)
    want[2] = -1
    assert got.tolist() == want.tolist()
