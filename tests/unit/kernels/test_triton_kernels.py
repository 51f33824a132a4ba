"""Every Triton kernel against the plain reference, over a grid of shapes; interpreted where there is no GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paged_kit import DEVICE, DTYPES, GPU, make_cache, make_meta, on_cpu, tolerance
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.ahead import Room
from octavo.kernels.context import Projected
from octavo.kernels.ref import attention as ref_attention
from octavo.kernels.ref import prologue as ref_prologue
from octavo.kernels.ref.act import act_mul as ref_act_mul
from octavo.kernels.ref.embed import embed as ref_embed
from octavo.kernels.ref.norm import add_rms_norm as ref_add_rms_norm
from octavo.kernels.ref.norm import rms_norm as ref_rms_norm
from octavo.kernels.triton import attention as attention_module
from octavo.kernels.triton import attention_fresh, attention_prefill, attention_tiling, prologue
from octavo.kernels.triton.act import act_mul
from octavo.kernels.triton.attention import paged_attention
from octavo.kernels.triton.embed import embed
from octavo.kernels.triton.norm import add_rms_norm, rms_norm
from octavo.kernels.triton.prologue import qkv_prologue

ATTENTION_CASES = [
    # heads, kv heads, head dim, block, window, softcap
    (4, 2, 64, 16, None, None),
    (8, 1, 80, 4, 20, None),
    (6, 6, 96, 32, None, 30.0),
    (14, 2, 128, 16, 50, None),
    (2, 1, 256, 16, None, None),
    (4, 4, 64, 256, 7, 5.0),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block", "window", "softcap"), ATTENTION_CASES)
@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        ([1, 1, 1], [1, 70, 333]),
        ([1, 1, 5, 64, 33], [17, 130, 5, 90, 160]),
        ([40, 1, 1], [40, 3, 64]),
    ],
    ids=["decode", "mixed", "prefill first"],
)
def test_attention(heads, kv_heads, dim, block, window, softcap, query_lens, seq_lens, dtype) -> None:
    torch.manual_seed(0)
    meta = make_meta(query_lens, seq_lens, block)
    kv = make_cache(meta, kv_heads, dim, dtype, window=window)
    q = torch.randn(sum(query_lens), heads, dim, device=DEVICE).to(dtype)
    got = paged_attention(q, kv, meta, dim**-0.5, window, softcap)
    want = ref_attention.paged_attention(q.float().cpu(), kv.float().cpu(), on_cpu(meta), dim**-0.5, window, softcap)
    torch.testing.assert_close(got.float().cpu(), want, **tolerance(dtype))
    if GPU:
        meta.scratch.clear()
        plain = ref_attention.paged_attention(q.float(), kv.float(), meta, dim**-0.5, window, softcap)
        torch.testing.assert_close(plain.cpu(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block", "window", "softcap"),
    [(4, 2, 64, 16, None, None), (2, 1, 80, 4, 200, None), (2, 2, 128, 16, 33, 5.0)],
)
def test_few_queries_over_a_long_past_share_it_out(
    heads, kv_heads, dim, block, window, softcap, dtype, monkeypatch
) -> None:
    """Short chunks at the end of long rows, beside rows of one piece, of one query and of none."""
    monkeypatch.setattr(attention_module, "num_programs", lambda *_, **_by_name: 512)
    monkeypatch.setattr(attention_tiling, "LEAST_PIECE", 32)
    torch.manual_seed(7)
    query_lens, seq_lens = [3, 1, 20, 9], [700, 90, 450, 9]
    meta = make_meta(query_lens, seq_lens, block)
    kv = make_cache(meta, kv_heads, dim, dtype, window=window)
    q = torch.randn(sum(query_lens), heads, dim, device=DEVICE).to(dtype)
    cut = attention_tiling.tiling(q.shape[0], attention_tiling.Heads(kv_heads, heads // kv_heads, dim, 4), 512)
    assert cut.most == 32
    got = paged_attention(q, kv, meta, dim**-0.5, window, softcap)
    want = ref_attention.paged_attention(q.float().cpu(), kv.float().cpu(), on_cpu(meta), dim**-0.5, window, softcap)
    torch.testing.assert_close(got.float().cpu(), want, **tolerance(dtype))


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("programs", [1, 3, 7, 16, 500])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1)])
def test_decode_is_shared_out_to_any_number_of_programs(heads, kv_heads, programs, window, monkeypatch) -> None:
    """Rows that lie in one program, end in one, begin in one and go through several; among them one of two queries."""
    monkeypatch.setattr(attention_module, "num_programs", lambda *_, **_by_name: programs)
    torch.manual_seed(11)
    query_lens, seq_lens = [1, 1, 2, 1, 1, 1], [5, 640, 70, 64, 65, 300]
    meta = make_meta(query_lens, seq_lens, 16)
    kv = make_cache(meta, kv_heads, 64, DTYPES[-1], window=window)
    q = torch.randn(sum(query_lens), heads, 64, device=DEVICE).to(DTYPES[-1])
    got = paged_attention(q, kv, meta, 0.125, window, None)
    want = ref_attention.paged_attention(q.float().cpu(), kv.float().cpu(), on_cpu(meta), 0.125, window, None)
    torch.testing.assert_close(got.float().cpu(), want, **tolerance(DTYPES[-1]))


@pytest.mark.parametrize("programs", [8, 512])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (2, 2)])
def test_a_step_planned_ahead(heads, kv_heads, programs, monkeypatch) -> None:
    """A room with more rows and tokens than the step has: what is planned on the host finds its places."""
    monkeypatch.setattr(attention_module, "num_programs", lambda *_, **_by_name: programs)
    monkeypatch.setattr(attention_tiling, "LEAST_PIECE", 32)
    torch.manual_seed(9)
    room, query_lens, seq_lens = Room(6, 40, mixed=True), [3, 1, 20], [300, 90, 33]
    used, dim = sum(query_lens), 64
    meta = make_meta(query_lens, seq_lens, 16)
    kv = make_cache(meta, kv_heads, dim, torch.float32)
    q = torch.randn(room.tokens, heads, dim, device=DEVICE)
    want = ref_attention.paged_attention(q[:used].cpu(), kv.cpu(), on_cpu(meta), 0.125, None, None)
    pad = room.rows - len(query_lens)
    ahead = replace(
        meta,
        block_table=F.pad(meta.block_table, (0, 0, 0, pad)),
        query_start=F.pad(meta.query_start, (0, pad), value=used),
        seq_lens=F.pad(meta.seq_lens, (0, pad)),
        query_lens=[],
        seq_lens_host=[],
        scratch={},
    )
    ops = attention_module.TritonAhead(heads // kv_heads, kv_heads, dim, 4, 16)
    monkeypatch.setattr(ops, "_programs", programs)
    plan = np.full(ops.places(room), 99, dtype=np.int32)
    ops.plan(plan, room, np.array(query_lens), np.array(seq_lens), None)
    ops.attach(ahead, room, None, torch.from_numpy(plan).to(DEVICE))
    got = paged_attention(q, kv, ahead, 0.125, None, None)
    torch.testing.assert_close(got[:used].cpu(), want, **tolerance(torch.float32))


@pytest.mark.parametrize("used", [3, 0])
@pytest.mark.parametrize("window", [None, 20])
def test_rows_that_a_decode_room_has_too_many_have_nothing_to_do(used, window, monkeypatch) -> None:
    """Not even to read: what their block table and lengths say is no cache of theirs."""
    torch.manual_seed(10)
    room, dim, lengths = Room(6, 6, mixed=False), 64, [300, 64, 17][:used]
    meta = make_meta([1] * 3, [300, 64, 17], 16)
    kv = make_cache(meta, 2, dim, torch.float32)
    q = torch.randn(room.rows, 4, dim, device=DEVICE)
    want = ref_attention.paged_attention(q[:3].cpu(), kv.cpu(), on_cpu(meta), 0.125, window, None)
    pad = room.rows - 3
    ahead = replace(
        meta,
        block_table=F.pad(meta.block_table, (0, 0, 0, pad), value=1 << 30),
        query_start=torch.arange(room.rows + 1, dtype=torch.int32, device=DEVICE),
        seq_lens=F.pad(meta.seq_lens, (0, pad), value=1),
        query_lens=[],
        seq_lens_host=[],
        scratch={},
    )
    ops = attention_module.TritonAhead(2, 2, dim, 4, 16)
    for programs in (1, 7, 64):
        monkeypatch.setattr(attention_module, "num_programs", lambda *_, programs=programs, **_by_name: programs)
        monkeypatch.setattr(ops, "_programs", programs)
        plan = np.full(ops.places(room), 99, dtype=np.int32)
        ops.plan(plan, room, np.ones(used, dtype=np.int64), np.array(lengths, dtype=np.int64), window)
        ahead.scratch.clear()
        ops.attach(ahead, room, window, torch.from_numpy(plan).to(DEVICE))
        got = paged_attention(q, kv, ahead, 0.125, window, None)
        torch.testing.assert_close(got[:used].cpu(), want[:used], **tolerance(torch.float32))


def test_a_row_without_tiles_is_left_alone(monkeypatch) -> None:
    """A long row that another kernel computes, beside a short one whose past is shared out."""
    monkeypatch.setattr(attention_tiling, "LEAST_PIECE", 32)
    torch.manual_seed(8)
    meta = make_meta([90, 3], [90, 400], 16)
    kv = make_cache(meta, 2, 64, torch.float32)
    q = torch.randn(93, 4, 64, device=DEVICE)
    want = ref_attention.paged_attention(q.cpu(), kv.cpu(), on_cpu(meta), 0.125, None, None)
    out = torch.full((93, 4, 64), 7.0, device=DEVICE)
    cut = attention_tiling.Tiling(queries=16, most=8, busy=256, kv_heads=2, least=32)
    running = torch.tensor([0, 0, 1, cut.pieces(1, 400), 0, 0], dtype=torch.int32, device=DEVICE)
    assert running[3] > 1
    tiles = attention_prefill.Tiles(running, 1, cut)
    attention_prefill.prefill_attention(q, kv, meta, tiles, out, 0.125, None, None)
    assert (out[:90] == 7.0).all()
    torch.testing.assert_close(out[90:].cpu(), want[90:], **tolerance(torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary"), [(4, 2, 64, 64), (6, 2, 80, 20), (3, 3, 96, 0), (8, 1, 128, 128)]
)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("many", [1, 999], ids=["token", "head"])
def test_prologue(heads, kv_heads, dim, rotary, norm, many, dtype, monkeypatch) -> None:
    torch.manual_seed(1)
    meta = make_meta([3, 1, 6], [9, 17, 6], 4)
    kv = make_cache(meta, kv_heads, dim, dtype)
    qkv = torch.randn(10, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    weights = [torch.randn(dim, device=DEVICE).to(dtype) for _ in range(2)] if norm else [None, None]
    cos_sin = torch.randn(32, rotary, device=DEVICE) if rotary else None
    index = meta.positions if rotary else None
    projected = Projected(qkv, *weights, 1e-6, cos_sin, index, heads, kv_heads, dim)
    other = kv.clone()
    monkeypatch.setattr(prologue, "MANY", many)
    got = qkv_prologue(projected, kv, meta)
    want = ref_prologue.qkv_prologue(projected, other, meta)
    torch.testing.assert_close(got, want, **tolerance(dtype))
    torch.testing.assert_close(kv, other, equal_nan=True, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(0, 64), (1, 64), (5, 896), (9, 5120)])
def test_embedding(tokens, size, dtype) -> None:
    table = torch.randn(50, size + 8, device=DEVICE).to(dtype)[:, :size]
    ids = torch.randint(0, 50, (tokens,), device=DEVICE)
    assert torch.equal(embed(ids, table), ref_embed(ids, table))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (5, 896), (3, 1030)])
def test_norms(tokens, size, dtype) -> None:
    torch.manual_seed(2)
    x, residual = (torch.randn(tokens, size, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.randn(size, device=DEVICE).to(dtype)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), ref_rms_norm(x, weight, 1e-6), **tolerance(dtype))
    got = add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    want = ref_add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_gated_activation(activation, dtype) -> None:
    torch.manual_seed(3)
    x = torch.randn(4, 2 * 1100, device=DEVICE).to(dtype) * 4
    torch.testing.assert_close(act_mul(x, activation), ref_act_mul(x, activation), **tolerance(dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device with 16 GiB free")
def test_cache_beyond_32_bit_offsets() -> None:
    """Blocks whose elements lie past 2^31: an index of 32 bits would wrap."""
    torch.manual_seed(4)
    dim, block, kv_heads = 128, 16, 8
    blocks = (1 << 31) // (2 * kv_heads * block * dim) + 64
    kv = torch.zeros(blocks, 2, kv_heads, block, dim, dtype=torch.bfloat16, device=DEVICE)
    meta = make_meta([1, 30], [40, 30], block)
    meta.block_table += blocks - int(meta.block_table.max()) - 1
    meta.slots = torch.cat(
        [
            meta.block_table[0, 39 // block].long().view(1) * block + 39 % block,
            (meta.block_table[1, torch.arange(30, device=DEVICE) // block].long() * block)
            + torch.arange(30, device=DEVICE) % block,
        ]
    )
    kv[-64:] = torch.randn(64, 2, kv_heads, block, dim, device=DEVICE).to(torch.bfloat16)
    qkv = torch.randn(31, (16 + 16) * dim, device=DEVICE).to(torch.bfloat16)
    q = qkv_prologue(Projected(qkv, None, None, 1e-6, None, None, 16, kv_heads, dim), kv, meta)
    got = paged_attention(q, kv, meta, dim**-0.5, None, None)
    small = kv[-64:].float()
    meta.block_table -= blocks - 64
    meta.scratch.clear()
    want = ref_attention.paged_attention(q.float(), small, meta, dim**-0.5, None, None)
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("heads", [(4, 2, 64), (3, 1, 128)], ids=str)
@pytest.mark.parametrize("query_lens", [[21], [1, 16, 3, 33], [16, 1], [5, 40]], ids=str)
def test_fresh_rows_are_computed_without_the_cache(heads, query_lens, monkeypatch) -> None:
    """By plain torch in cuDNN's place, which sees what cuDNN would: strided, padded, the rows side by side."""
    torch.manual_seed(7)
    heads, kv_heads, dim = heads
    monkeypatch.setattr(attention_fresh, "LEAST", 16)
    monkeypatch.setattr(attention_fresh, "STEP", 8)
    monkeypatch.setattr(attention_fresh, "_able", lambda *_: True)
    seen = []

    def dense(query, key, value, scale):
        seen.append(query.shape[2])
        assert not key.isnan().any()
        assert not value.isnan().any()
        made = torch.empty_like(query)
        return made.copy_(
            F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        )

    monkeypatch.setattr(attention_fresh, "dense_attention", dense)
    seq_lens = [length if length >= 16 else length + 9 for length in query_lens]
    meta = make_meta(query_lens, seq_lens, 4)
    kv = make_cache(meta, kv_heads, dim, torch.float32)
    other = kv.clone()
    qkv = torch.randn(sum(query_lens), (heads + 2 * kv_heads) * dim, device=DEVICE)
    weights = [torch.randn(dim, device=DEVICE) for _ in range(2)]
    cos_sin = torch.randn(64, dim, device=DEVICE)
    for _ in range(2):  # the second layer writes where the first did
        projected = Projected(qkv, *weights, 1e-6, cos_sin, meta.positions, heads, kv_heads, dim)
        q = qkv_prologue(projected, kv, meta)
        want_q = ref_prologue.qkv_prologue(projected, other, meta)
        torch.testing.assert_close(q, want_q, **tolerance(torch.float32))
        torch.testing.assert_close(kv, other, equal_nan=True, **tolerance(torch.float32))
        got = paged_attention(q, kv, meta, 0.1, None, None)
        want = ref_attention.paged_attention(want_q.cpu(), other.cpu(), on_cpu(meta), 0.1, None, None)
        torch.testing.assert_close(got.cpu(), want, **tolerance(torch.float32))
        windowed = paged_attention(q, kv, meta, 0.1, 9, None)
        want = ref_attention.paged_attention(want_q.cpu(), other.cpu(), on_cpu(meta), 0.1, 9, None)
        torch.testing.assert_close(windowed.cpu(), want, **tolerance(torch.float32))
        qkv = torch.randn_like(qkv)
    fresh = [-(-length // 8) * 8 for length in query_lens if length >= 16]
    assert seen == fresh * 2


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="long prompts go to cuDNN on a CUDA device only")
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 8, 128), (14, 2, 64)])
def test_long_fresh_prompts(heads, kv_heads, dim) -> None:
    torch.manual_seed(6)
    for query_lens, seq_lens in (([1, 1500, 3, 1027], [700, 1500, 900, 1027]), ([1100], [1100])):
        meta = make_meta(query_lens, seq_lens, 16)
        kv = make_cache(meta, kv_heads, dim, torch.bfloat16)
        qkv = torch.randn(sum(query_lens), (heads + 2 * kv_heads) * dim, device=DEVICE).to(torch.bfloat16)
        q = qkv_prologue(Projected(qkv, None, None, 1e-6, None, None, heads, kv_heads, dim), kv, meta)
        got = paged_attention(q, kv, meta, dim**-0.5, None, None)
        assert meta.scratch["triton:fresh"]
        assert got.is_contiguous()
        want = ref_attention.paged_attention(q.float().cpu(), kv.float().cpu(), on_cpu(meta), dim**-0.5, None, None)
        torch.testing.assert_close(got.float().cpu(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 64), (3, 1, 128)])
def test_a_fresh_prompt_in_a_room_of_its_own(heads, kv_heads, dim, monkeypatch) -> None:
    """Padded to the room, behind the prompt; layers that dense attention cannot serve find their tiles."""
    monkeypatch.setattr(attention_fresh, "_able", lambda *_: True)
    seen = []

    def dense(query, key, value, scale):
        seen.append(query.shape[2])
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)

    monkeypatch.setattr(attention_fresh, "dense_attention", dense)
    torch.manual_seed(12)
    room, length = Room(1, 40, mixed=True, fresh=True), 29
    meta = make_meta([length], [length], 4)
    kv = make_cache(meta, kv_heads, dim, torch.float32)
    pad = room.tokens - length
    ahead = replace(
        meta,
        slots=F.pad(meta.slots, (0, pad)),
        positions=F.pad(meta.positions, (0, pad)),
        query_lens=[],
        seq_lens_host=[],
        scratch={},
    )
    ops = attention_module.TritonAhead(heads // kv_heads, kv_heads, dim, 4, 4)
    for window in (None, 9):
        plan = np.full(ops.places(room), 99, dtype=np.int32)
        ops.plan(plan, room, np.array([length]), np.array([length]), window)
        ops.attach(ahead, room, window, torch.from_numpy(plan).to(DEVICE))
    qkv = torch.randn(room.tokens, (heads + 2 * kv_heads) * dim, device=DEVICE)
    q = qkv_prologue(Projected(qkv, None, None, 1e-6, None, None, heads, kv_heads, dim), kv, ahead)
    for window, softcap, alone in ((None, None, [room.tokens]), (9, None, [])):
        seen.clear()
        got = paged_attention(q, kv, ahead, 0.1, window, softcap)
        assert seen == alone
        want = ref_attention.paged_attention(q[:length].cpu(), kv.cpu(), on_cpu(meta), 0.1, window, softcap)
        torch.testing.assert_close(got[:length].cpu(), want, **tolerance(torch.float32))
