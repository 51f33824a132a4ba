"""Prefill attention by two groups of warps, against the plain reference, on the GPU that has what it needs."""

from dataclasses import replace

import pytest
import torch
from paged_kit import DEVICE, make_cache, make_meta, tolerance

pytest.importorskip("triton")

from octavo.kernels.ref import attention as ref_attention
from octavo.kernels.triton import attention_twins
from octavo.kernels.triton.attention_prefill import prefill_attention
from octavo.kernels.triton.attention_tiling import Tiles, Tiling
from octavo.kernels.triton.hopper import HOPPER

on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
HALVES = [torch.float16, torch.bfloat16]
STEPS = {  # tokens of each row in the step, and in all
    "fresh": ([300, 64, 65, 1, 130], [300, 64, 65, 1, 130]),
    "behind": ([70, 2, 64], [900, 515, 1024]),
    "crowd": ([2, 3] * 70, [2, 3] * 50 + [20, 40] * 20),
    "edges": ([2, 3, 63, 64, 128, 129], [17, 130, 128, 127 + 64, 129, 641]),
}


def tiles_of(meta, queries: int, pieces: int) -> Tiles:
    counts = [0 if length == 1 else -(-length // queries) for length in meta.query_lens]
    running = torch.tensor([0, *counts]).cumsum(0).tolist()
    cut = Tiling(queries=queries, most=pieces, busy=132, kv_heads=1, least=512)
    return Tiles(torch.tensor([*running, pieces, 0, 0], dtype=torch.int32, device=DEVICE), running[-1], cut)


@on_hopper
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"),
    [(4, 2, 128, 16), (4, 1, 64, 8), (7, 1, 128, 32), (2, 2, 128, 64), (8, 1, 128, 16)],
)
def test_rows_of_many_queries(heads, kv_heads, dim, block, step, pieces, dtype) -> None:
    """What lies behind a row's last token is no number; rows of one query are another kernel's."""
    torch.manual_seed(0)
    query_lens, seq_lens = STEPS[step]
    meta = make_meta(query_lens, seq_lens, block)
    kv = make_cache(meta, kv_heads, dim, dtype)
    q = torch.randn(sum(query_lens), heads, dim, device=DEVICE).to(dtype)
    tiles = tiles_of(meta, attention_twins.LINES // (heads // kv_heads), pieces)
    for softcap in (None, 5.0):
        out = torch.full_like(q, 7.0)
        prefill_attention(q, kv, meta, tiles, out, dim**-0.5, None, softcap)
        assert not tiles.running[-2:].any(), "who draws last puts everything back"
        want = ref_attention.paged_attention(
            q.float(), kv.float(), replace(meta, scratch={}), dim**-0.5, None, softcap
        ).to(dtype)
        at = 0
        for length in query_lens:
            rows = slice(at, at + length)
            if length > 1:
                torch.testing.assert_close(out[rows].float(), want[rows].float(), **tolerance(dtype))
            else:
                assert (out[rows] == 7.0).all()
            at += length
