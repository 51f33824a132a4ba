"""Decode attention alone: bytes of K and V that it must read, over the time it takes, inside a CUDA graph.

The pool is the engine's: its kind of memory, which is mapped otherwise than torch's, as many layers as a model has, or
there is room for, and the blocks of a row scattered over it, as after a long day.
"""

from collections.abc import Callable
from math import prod

import torch

from octavo.bench.gpu.setting import model_config
from octavo.bench.gpu.timing import seconds_of
from octavo.kernels.context import AttentionMeta
from octavo.kernels.ops import select
from octavo.platform.arena import KV_CACHE
from octavo.platform.registry import select as select_platform

BLOCK = 16
FILLED = 0.9  # of free memory, at most


def attention_rate(shape: str, lens: list[int], layers: int, device: torch.device) -> tuple[float, str]:
    """Bytes a second of one query a row over ``lens[r]`` cached tokens, and how it was run."""
    config = model_config(shape)
    kv_heads, dim = config["num_key_value_heads"], config["head_dim"]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    blocks = 1 + sum(-(-length // BLOCK) for length in lens)
    block = (2, kv_heads, BLOCK, dim)
    platform = select_platform(device.type)
    fit = int(FILLED * platform.memory()[0]) // (blocks * prod(block) * dtype.itemsize)
    layers = max(1, min(layers, fit))
    memory = platform.arena()
    try:
        pool = memory.tensor(KV_CACHE, (blocks, layers, *block), dtype)
        for part in torch.split(pool, 4096):
            part.normal_()
        took, how = _seconds(pool, lens, config["num_attention_heads"], device)
    finally:
        memory.close()
    one_token = 2 * kv_heads * dim * dtype.itemsize
    return layers * sum(lens) * one_token / took, f"{layers} layers, {how}"


def _seconds(pool: torch.Tensor, lens: list[int], heads: int, device: torch.device) -> tuple[float, str]:
    """Of one step over all layers of the pool ``[N, L, 2, H_kv, B, D]``."""
    dim = pool.shape[-1]
    queries = torch.randn((len(lens), heads, dim), dtype=pool.dtype, device=device)
    meta, attend = decode_meta(lens, device), select(device).paged_attention

    def work() -> None:
        for layer in range(pool.shape[1]):
            attend(queries, pool[:, layer], meta, dim**-0.5, None, None)

    with torch.inference_mode():
        run, how = captured(work) if device.type == "cuda" else (work, "on a CPU")
        return seconds_of(run, device), how


def captured(work: Callable[[], None]) -> tuple[Callable[[], None], str]:
    """The work as a CUDA graph; as it is when it cannot be captured."""
    work()  # kernels are compiled and the step is planned before the capture
    torch.cuda.synchronize()
    try:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work, "launched one by one: it cannot be captured"
    return graph.replay, "in a CUDA graph"


def decode_meta(lens: list[int], device: torch.device) -> AttentionMeta:
    """A step of one token a row. Block 0 stays free; the others are dealt out in a shuffled order."""
    counts = [-(-length // BLOCK) for length in lens]
    order = 1 + torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
    table = torch.zeros((len(lens), max(counts)), dtype=torch.int32)
    slots = []
    for row, (mine, length) in enumerate(zip(torch.split(order, counts), lens)):
        table[row, : len(mine)] = mine.int()
        slots.append(int(mine[-1]) * BLOCK + (length - 1) % BLOCK)
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    return AttentionMeta(
        block_table=table.to(device),
        slots=torch.tensor(slots, device=device),
        query_start=torch.arange(len(lens) + 1, dtype=torch.int32, device=device),
        seq_lens=seq_lens.to(device),
        positions=(seq_lens.long() - 1).to(device),
        block_size=BLOCK,
        num_rows=len(lens),
        query_lens=[1] * len(lens),
        seq_lens_host=lens,
    )
