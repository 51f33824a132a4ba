"""The reference paged attention against a dense softmax written as loops, over a grid of shapes."""

import pytest
import torch

from octavo.kernels.ref import attention
from octavo.kernels.ref.attention import paged_attention
from octavo.testing.dense_attention import make_step, naive

ROWS = {
    "decode": [(1, 0), (1, 6), (1, 7), (1, 22), (1, 40)],
    "prefill": [(9, 0), (20, 13), (2, 1)],
    "mixed": [(1, 11), (8, 0), (1, 0), (5, 30), (1, 33), (3, 2)],
}


@pytest.mark.parametrize("rows", list(ROWS))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (6, 2, 10), (5, 1, 16)])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_grid(rows, heads, kv_heads, head_dim, block_size, window, softcap):
    rows = ROWS[rows]
    kv, written, meta = make_step(rows, block_size, kv_heads, head_dim)
    q = torch.randn(sum(meta.query_lens), heads, head_dim, generator=torch.Generator().manual_seed(1))
    ours = paged_attention(q, kv, meta, 0.3, window, softcap)
    torch.testing.assert_close(ours, naive(q, rows, written, 0.3, window, softcap), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 6])
def test_tiles_and_gather_limits_change_nothing(monkeypatch, window):
    rows = ROWS["mixed"]
    kv, _, meta = make_step(rows, 4, 2, 8)
    q = torch.randn(sum(meta.query_lens), 4, 8)
    expected = paged_attention(q, kv, meta, 0.5, window, None)
    monkeypatch.setattr(attention, "_TILE", 3)
    monkeypatch.setitem(attention._GATHER_TOKENS, "cpu", 10)
    meta.scratch.clear()
    torch.testing.assert_close(paged_attention(q, kv, meta, 0.5, window, None), expected, atol=1e-6, rtol=1e-5)


def test_blocks_behind_the_window_are_not_touched():
    """Freed places of the table may name any block, even one outside the pool."""
    kv, written, meta = make_step([(1, 30), (3, 20)], 4, 2, 8)
    q = torch.randn(4, 4, 8)
    meta.block_table[0, :5] = 1_000_000
    meta.block_table[1, :3] = -7
    ours = paged_attention(q, kv, meta, 0.5, 8, None)
    torch.testing.assert_close(ours, naive(q, [(1, 30), (3, 20)], written, 0.5, 8, None), atol=2e-6, rtol=2e-5)


def test_padding_of_the_step_gives_zeros():
    kv, _, meta = make_step([(1, 3), (2, 0)], 4, 1, 8)
    q = torch.full((6, 2, 8), float("nan"))
    q[:3] = 1.0
    out = paged_attention(q, kv, meta, 0.5, None, None)
    assert torch.isfinite(out[:3]).all()
    assert (out[3:] == 0).all()


def test_a_rows_result_does_not_depend_on_its_neighbours():
    """Byte equal alone and beside a row whose keys are NaN."""
    kv, _, meta = make_step([(1, 21), (1, 9)], 4, 2, 8)
    q = torch.randn(2, 4, 8)
    alone = paged_attention(q, kv, meta, 0.5, None, None)[0].clone()
    kv[meta.block_table[1, :3].long()] = float("nan")
    meta.scratch.clear()
    both = paged_attention(q, kv, meta, 0.5, None, None)
    assert torch.equal(both[0], alone)
    assert torch.isnan(both[1]).all()


def test_half_precision_is_close():
    rows = ROWS["mixed"]
    kv, written, meta = make_step(rows, 16, 2, 16, dtype=torch.bfloat16)
    q = torch.randn(sum(meta.query_lens), 4, 16).bfloat16()
    ours = paged_attention(q, kv, meta, 0.25, None, None).float()
    theirs = naive(q.float(), rows, [part.float() for part in written], 0.25, None, None)
    torch.testing.assert_close(ours, theirs, atol=3e-2, rtol=3e-2)
