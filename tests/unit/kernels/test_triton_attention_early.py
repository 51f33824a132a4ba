"""Decode attention whose keys and values come early, against the plain reference, on the GPU that has what it needs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paged_kit import DEVICE, make_cache, make_meta, tolerance
from torch.nn import functional as F

pytest.importorskip("triton")

from octavo.kernels.ahead import Room
from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.ref import attention as ref_attention
from octavo.kernels.ref import prologue as ref_prologue
from octavo.kernels.triton import attention as attention_module
from octavo.kernels.triton import attention_early, attention_fresh
from octavo.kernels.triton.attention import TritonAhead, paged_attention, self_attention
from octavo.kernels.triton.attention_decode import TILE, deal_tiles
from octavo.kernels.triton.hopper import HOPPER

on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
HALVES = [torch.float16, torch.bfloat16]
LENGTHS = {
    "one": [1],
    "edges": [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129],
    "few": [190] * 16,
    "short": [200, 1, 64, 330, 65],
    "long": [30_000, 40],
    "mixed": [3000, 5, 700, 64, 1, 2222, 320, 33],
}
WHOLE = 256  # programs: enough for each to have its KV head of a row whole
HEADS = [(16, 8), (4, 1), (6, 1), (7, 1), (8, 1), (14, 1), (2, 2)]


@pytest.fixture(autouse=True)
def used_early(monkeypatch) -> list[bool]:
    """Each launch: whether it did the prologue's work as well."""
    seen = []
    plain = attention_early.early_attention

    def noted(given, *rest):
        seen.append(isinstance(given, Projected))
        plain(given, *rest)

    monkeypatch.setattr(attention_early, "early_attention", noted)
    return seen


def share_out(monkeypatch, programs: int | None) -> None:
    if programs == WHOLE:
        monkeypatch.setattr(attention_early, "_JOIN", 1000)
    if programs is not None:
        monkeypatch.setattr(attention_module, "num_programs", lambda *_, **_by_name: programs)


def reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    plain = replace(meta, scratch={})
    return ref_attention.paged_attention(q.float(), kv.float(), plain, scale, window, softcap)


@on_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"),
    [(16, 8, 128, 16), (7, 1, 64, 16), (14, 1, 128, 64), (4, 1, 64, 8), (2, 2, 128, 32)],
)
def test_queries_alone(heads, kv_heads, dim, block, dtype, used_early) -> None:
    """What lies behind a row's last token is no number."""
    torch.manual_seed(0)
    lengths = LENGTHS["edges"] + LENGTHS["mixed"]
    meta = make_meta([1] * len(lengths), lengths, block)
    kv = make_cache(meta, kv_heads, dim, dtype)
    q = torch.randn(len(lengths), heads, dim, device=DEVICE).to(dtype)
    for softcap in (None, 5.0):
        got = paged_attention(q, kv, meta, dim**-0.5, None, softcap)
        want = reference(q, kv, meta, dim**-0.5, softcap=softcap)
        torch.testing.assert_close(got.float(), want, **tolerance(dtype))
        assert torch.equal(paged_attention(q, kv, meta, dim**-0.5, None, softcap), got)
    assert used_early == [False] * 4


@on_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("rotary", [128, 0])
@pytest.mark.parametrize(
    ("lengths", "programs"),
    [("one", None), ("edges", 3), ("few", None), ("mixed", 17), ("long", None), ("edges", WHOLE), ("short", WHOLE)],
)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_with_the_work_of_the_prologue(
    heads, kv_heads, lengths, programs, rotary, normed, dtype, used_early, monkeypatch
) -> None:
    """Rows whole in one program and shared out; the cache ends up as the prologue would leave it."""
    share_out(monkeypatch, programs)
    torch.manual_seed(1)
    rows, dim, block = len(LENGTHS[lengths]), 128, 16
    meta = make_meta([1] * rows, LENGTHS[lengths], block)
    kv = make_cache(meta, kv_heads, dim, dtype)
    # The newest token is yet to be written: what stands there is no number either.
    kv[meta.slots // block, :, :, meta.slots % block] = float("nan")
    wide = torch.randn(rows, (heads + 2 * kv_heads) * dim + 8, device=DEVICE).to(dtype)
    norms = [torch.rand(dim, device=DEVICE) + 0.5 if normed else None for _ in range(2)]
    cos_sin = torch.randn(32_768, rotary, device=DEVICE) if rotary else None
    projected = Projected(wide[:, :-8], *norms, 1e-6, cos_sin, meta.positions if rotary else None, heads, kv_heads, dim)
    other = kv.clone()
    want_q = ref_prologue.qkv_prologue(projected, other, meta)
    want = reference(want_q, other, meta, 0.1)
    got = self_attention(projected, kv, meta, 0.1, None, None)
    assert used_early == [True]
    torch.testing.assert_close(got.float(), want, atol=4e-2, rtol=4e-2)
    torch.testing.assert_close(kv, other, equal_nan=True, **tolerance(dtype))


@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize("programs", [264, 16, 2])
@pytest.mark.parametrize("alike", [True, False])
def test_lines_are_dealt_out_whole_where_that_takes_no_longer(alike, programs, kv_heads) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = int(rng.integers(1, 20))
        visible = np.full(rows, 190) if alike else rng.integers(1, 3000, rows)
        plain, out = np.zeros(rows + 1, dtype=np.int32), np.zeros(rows + 1, dtype=np.int32)
        tiles, share = -(-visible // TILE), deal_tiles(plain, visible, kv_heads, programs)
        got = attention_early.deal_early(out, visible, kv_heads, programs)
        lines, some = rows * kv_heads, programs // 2
        rounds = -(-lines // some)
        if lines <= programs and rounds * tiles.max() <= -(-tiles.sum() * kv_heads // some) + attention_early._JOIN:
            assert got == tiles.max()
            assert out.tolist() == [row * got for row in range(rows + 1)]
        else:
            assert got == share
            assert np.array_equal(out, plain)


def test_a_step_without_rows_is_dealt_out() -> None:
    out = np.full(1, 7, dtype=np.int32)
    assert attention_early.deal_early(out, np.zeros(0, dtype=np.int64), 8, 264) == 1
    assert out.tolist() == [0]


@on_hopper
def test_a_room_with_more_rows_than_the_step_has(used_early) -> None:
    """Planned ahead; rows that are not there write nothing."""
    torch.manual_seed(2)
    lengths, rows, dim = [300, 64, 17], 8, 128
    meta = make_meta([1] * 3, lengths, 16)
    kv = make_cache(meta, 2, dim, torch.bfloat16)
    pad = rows - len(lengths)
    ahead = replace(
        meta,
        block_table=F.pad(meta.block_table, (0, 0, 0, pad)),
        slots=F.pad(meta.slots, (0, pad)),
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=DEVICE),
        seq_lens=F.pad(meta.seq_lens, (0, pad)),
        query_lens=[],
        seq_lens_host=[],
        scratch={},
    )
    room = Room(rows, rows, mixed=False)
    ops = TritonAhead(2, 2, dim, 2, 16)
    plan = np.full(ops.places(room), 99, dtype=np.int32)
    ops.plan(plan, room, np.ones(3, dtype=np.int64), np.array(lengths), None)
    ops.attach(ahead, room, None, torch.from_numpy(plan).to(DEVICE))
    qkv = torch.randn(rows, 8 * dim, device=DEVICE).bfloat16()
    other = kv.clone()
    projected = Projected(qkv, None, None, 1e-6, None, None, 4, 2, dim)
    want_q = ref_prologue.qkv_prologue(replace(projected, qkv=qkv[:3]), other, meta)
    want = reference(want_q, other, meta, 0.1)
    got = self_attention(projected, kv, ahead, 0.1, None, None)
    assert used_early == [True]
    torch.testing.assert_close(got[:3].float(), want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(kv, other, equal_nan=True, atol=0, rtol=0)


@on_hopper
def test_a_fresh_prompt_keeps_dense_attention(monkeypatch) -> None:
    """The prologue prepares it, so nothing may be planned before."""
    dense = []
    plain = attention_fresh.dense_attention
    monkeypatch.setattr(attention_fresh, "dense_attention", lambda *given: dense.append(0) or plain(*given))
    length = attention_fresh.LEAST
    meta = make_meta([length], [length], 16)
    kv = make_cache(meta, 2, 128, torch.bfloat16)
    qkv = torch.randn(length, 8 * 128, device=DEVICE).bfloat16()
    for _ in range(2):
        self_attention(Projected(qkv, None, None, 1e-6, None, None, 4, 2, 128), kv, meta, 0.1, None, None)
    assert len(dense) == 2


@on_hopper
def test_what_it_is_not_for(used_early) -> None:
    """Windows, several queries, other heads, partial rotation: other kernels, or the prologue before it."""
    torch.manual_seed(3)

    def attend(query_lens: list[int], dim: int, window: int | None, rotary: int, block: int = 16) -> AttentionMeta:
        meta = make_meta(query_lens, [90] * len(query_lens), block)
        kv = make_cache(meta, 2, dim, torch.bfloat16)
        qkv = torch.randn(sum(query_lens), 8 * dim, device=DEVICE).bfloat16()
        cos_sin = torch.randn(128, rotary, device=DEVICE) if rotary else None
        projected = Projected(qkv, None, None, 1e-6, cos_sin, meta.positions if rotary else None, 4, 2, dim)
        other = kv.clone()
        want = reference(ref_prologue.qkv_prologue(projected, other, meta), other, meta, 0.1, window)
        got = self_attention(projected, kv, meta, 0.1, window, None)
        torch.testing.assert_close(got.float(), want, atol=4e-2, rtol=4e-2)

    attend([1, 1], 128, 50, 128)
    attend([1, 3], 128, None, 128)
    attend([1, 1], 96, None, 96)
    attend([1, 1], 128, None, 128, block=4)
    assert used_early == []
    attend([1, 1], 128, None, 64)
    attend([1, 1], 64, None, 64)
    assert used_early == [False, False]
