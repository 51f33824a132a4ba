"""The other reference operations against independent formulas, and the choice of a table."""

import cmath
import math

import pytest
import torch

from octavo.base.errors import ConfigError, UnknownName
from octavo.kernels.context import Projected
from octavo.kernels.ops import select
from octavo.kernels.ref.sample import sample, uniform
from octavo.testing.dense_attention import make_step

CPU = torch.device("cpu")
ops = select(CPU)
MASK = (1 << 64) - 1


@pytest.mark.parametrize(("tokens", "size"), [(1, 5), (3, 64), (7, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(tokens, size, dtype):
    x, residual = torch.randn(2, tokens, size).to(dtype)
    weight = torch.rand(size)
    rows = [
        [float(v) / math.sqrt(sum(float(u) ** 2 for u in row) / size + 1e-5) * float(w) for v, w in zip(row, weight)]
        for row in x
    ]
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 1e-2}
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5).float(), torch.tensor(rows), **tolerance)
    normed, total = ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, ops.rms_norm(x + residual, weight, 1e-5))


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_act_mul(name, formula):
    x = torch.randn(4, 12)
    expected = [[formula(float(row[i])) * float(row[i + 6]) for i in range(6)] for row in x]
    torch.testing.assert_close(ops.act_mul(x, name), torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_an_unknown_activation_is_named():
    with pytest.raises(UnknownName, match="did you mean silu"):
        ops.act_mul(torch.ones(1, 4), "silo")


@pytest.mark.parametrize("bias", [False, True])
def test_linear(bias):
    x, weight, b = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4)
    expected = [
        [sum(float(x[t, e] * weight[o, e]) for e in range(5)) + bias * float(b[o]) for o in range(4)] for t in range(3)
    ]
    torch.testing.assert_close(ops.linear(x, weight, b if bias else None), torch.tensor(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rotary_dim", [0, 4, 10])
@pytest.mark.parametrize("norm", [False, True])
def test_prologue(rotary_dim, norm):
    """Rotation as a complex product, norm as a formula, the write by slot."""
    heads, kv_heads, dim, block_size = 4, 2, 10, 4
    rows = [(3, 0), (1, 5)]
    kv, _, meta = make_step(rows, block_size, kv_heads, dim)
    meta.slots = torch.tensor([9, 10, 11, 18])
    qkv = torch.randn(4, (heads + 2 * kv_heads) * dim)
    weights = torch.rand(2, dim) + 0.5
    angles = torch.rand(20, max(rotary_dim // 2, 1))
    table = torch.cat((angles.cos(), angles.sin()), -1) if rotary_dim else None
    index = torch.tensor([17, 0, 3, 9])
    before = kv.clone()
    norms = (weights[0], weights[1]) if norm else (None, None)
    turning = (table, index if rotary_dim else None)
    q = ops.qkv_prologue(Projected(qkv.clone(), *norms, 1e-6, *turning, heads, kv_heads, dim), kv, meta)

    def expected(token, head):
        x = [float(v) for v in qkv[token, head * dim : (head + 1) * dim]]
        if norm:
            root = math.sqrt(sum(v * v for v in x) / dim + 1e-6)
            x = [v / root * float(w) for v, w in zip(x, weights[0 if head < heads else 1])]
        half = rotary_dim // 2
        for i in range(half):
            turned = complex(x[i], x[i + half]) * cmath.exp(1j * float(angles[index[token], i]))
            x[i], x[i + half] = turned.real, turned.imag
        return torch.tensor(x)

    for token in range(4):
        block, offset = divmod(int(meta.slots[token]), block_size)
        for head in range(heads):
            torch.testing.assert_close(q[token, head], expected(token, head), atol=1e-5, rtol=1e-5)
        for head in range(kv_heads):
            torch.testing.assert_close(kv[block, 0, head, offset], expected(token, heads + head), atol=1e-5, rtol=1e-5)
            value = qkv[token].view(-1, dim)[heads + kv_heads + head]
            assert torch.equal(kv[block, 1, head, offset], value)
            before[block, :, head, offset] = kv[block, :, head, offset]
    assert torch.equal(kv.nan_to_num(7.0), before.nan_to_num(7.0)), "nothing else was written"


def splitmix(seed, position, stream):
    """The same number with Python's integers."""

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    start = mix((seed + golden * (stream + 1)) & MASK)
    return (mix((start + golden * (position + 1)) & MASK) >> 11) * 2.0**-53


def test_uniform_is_splitmix64():
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 1234567]
    positions = [0, 1, 77, 100_000, 5, 2**40]
    for stream in (0, 1, 3):
        ours = uniform(torch.tensor(seeds), torch.tensor(positions), stream).tolist()
        assert ours == [splitmix(seed, position, stream) for seed, position in zip(seeds, positions)]


def test_uniform_is_uniform_over_positions_and_seeds():
    n = 50_000
    for seeds, positions in (
        (torch.zeros(n, dtype=torch.int64), torch.arange(n)),
        (torch.arange(n), torch.full((n,), 9)),
    ):
        u = uniform(seeds, positions, 0)
        counts = torch.histc(u, 100, 0, 1)
        chi_square = ((counts - n / 100) ** 2 / (n / 100)).sum().item()
        assert 50 < chi_square < 160  # 99 degrees of freedom
        assert abs(torch.corrcoef(torch.stack((u[:-1], u[1:])))[0, 1].item()) < 0.02


def test_sample_follows_the_distribution():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    n = 20_000
    u = uniform(torch.full((n,), 3), torch.arange(n), 0)
    counts = torch.bincount(sample(probs.expand(n, -1), u), minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    expected = probs[[1, 3, 4]] * n
    assert ((counts[[1, 3, 4]] - expected) ** 2 / expected).sum().item() < 14  # 2 degrees of freedom, p = 0.001


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 7.0])
def test_sample_never_takes_a_token_of_probability_zero(u, scale):
    probs = torch.tensor([[0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]) * torch.tensor(scale)
    tokens = sample(probs.float(), torch.full((3,), u, dtype=torch.float64))
    assert (probs.gather(1, tokens.unsqueeze(1)) > 0).all()


def test_sample_stays_in_the_vocabulary_when_the_row_is_broken():
    probs = torch.tensor([[float("nan")] * 4, [0.0] * 4])
    tokens = sample(probs, torch.tensor([0.9, 0.9], dtype=torch.float64))
    assert ((tokens >= 0) & (tokens < 4)).all()


def test_choice_of_a_table():
    assert set(select(CPU, "reference").names.values()) == {"reference"}
    assert select(CPU, "auto").paged_attention is select(CPU, "reference").paged_attention
    with pytest.raises(UnknownName, match="did you mean reference"):
        select(CPU, "referense")


def test_triton_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        select(CPU, "triton")


def test_an_overlay_says_where_its_entries_come_from():
    table = select(CPU).overlay("mine", linear=torch.nn.functional.linear)
    assert table.names["linear"] == "mine"
    assert table.names["draw"] == "reference"
