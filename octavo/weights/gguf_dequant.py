"""Block formats back to numbers, with torch operations, so that the same code runs on a CPU and on a GPU.

Each function takes raw blocks ``[num_blocks, block bytes]`` (uint8), gives ``[num_blocks, values]`` in fp32, with the
same bits as ggml's reference. Formulas: ggml-quants.c; the layouts are in the comments as ggml's structs name them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from octavo.weights.gguf_types import BLOCK_TYPES

HOST_SLAB = 1 << 17  # values expanded at a time on a CPU: temporaries stay in its cache
DEVICE_SLAB = 1 << 24  # and on a GPU: few launches, a bounded peak
MAX_THREADS = 16

# ggml's kvalues_iq4nl: the sixteen levels of the IQ4 formats.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def dequantise(raw: Tensor, qtype: int, dtype: torch.dtype) -> Tensor:
    """Rows of blocks ``[rows, row bytes]`` (uint8) -> ``[rows, row values]`` in `dtype`, on the same device."""
    block = BLOCK_TYPES[qtype]
    rows, row_bytes = raw.shape
    row_values = row_bytes // block.size * block.values
    blocks = raw.reshape(-1, block.size)
    out = torch.empty(blocks.shape[0], block.values, dtype=dtype, device=raw.device)
    expand = _EXPAND[block.name]
    step = max(1, (HOST_SLAB if raw.device.type == "cpu" else DEVICE_SLAB) // block.values)

    def slab(start: int) -> None:
        out[start : start + step] = expand(blocks[start : start + step])

    starts = range(0, blocks.shape[0], step)
    if raw.device.type != "cpu" or len(starts) == 1:
        for start in starts:
            slab(start)
    else:
        _on_threads(slab, starts)
    return out.view(rows, row_values)


def _on_threads(work: Callable[[int], None], items: range) -> None:
    """Run `work` over `items` on as many threads as torch may use, each operation on one.

    torch's own threads wait for each other after every small operation, which on a busy machine costs a hundred times
    the work itself. A new thread takes its number of threads from the setting, which is put back at the end.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(min(threads, MAX_THREADS, len(items))) as pool:
            for _ in pool.map(work, items):
                pass
    finally:
        torch.set_num_threads(threads)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 number at byte `at` of each block, as fp32 ``[num_blocks, 1]``."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """``[..., K] -> [..., 2 K]``: all low halves, then all high halves."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=-1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """``[n, 4] -> [n, 32]``: bit j of a little-endian 32-bit word, times sixteen.

    One look-up a byte gives eight values at once, several times faster than shifting.
    """
    eight = torch.arange(8, device=packed.device)
    bits = ((torch.arange(256, device=packed.device).unsqueeze(1) >> eight) & 1) << 4
    table = bits.to(torch.uint8).view(torch.int64).view(256)
    return table[packed.to(torch.int32)].view(torch.uint8)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:  # half d; 16 bytes of nibbles
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).view(torch.int8) - 8)


def _q4_1(blocks: Tensor) -> Tensor:  # half d, m; 16 bytes of nibbles
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:  # half d; 4 bytes of fifth bits; 16 bytes of nibbles
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (values.view(torch.int8) - 16)


def _q5_1(blocks: Tensor) -> Tensor:  # half d, m; 4 bytes of fifth bits; 16 bytes of nibbles
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * values + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:  # half d; 32 signed bytes
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8)


def _q2_k(blocks: Tensor) -> Tensor:  # 16 scale/min nibble pairs; 64 bytes of 2-bit values; half d, dmin
    count = blocks.shape[0]
    scales = blocks[:, :16]
    scale = (_half(blocks, 80) * (scales & 0x0F)).unsqueeze(-1)
    least = (_half(blocks, 82) * (scales >> 4)).unsqueeze(-1)
    values = _shifted(blocks[:, 16:80].reshape(count, 2, 1, 32), (0, 2, 4, 6)) & 3
    return (scale * values.view(count, 16, 16) - least).view(count, 256)


def _q3_k(blocks: Tensor) -> Tensor:  # 32 bytes of third bits; 64 bytes of 2-bit values; 12 of 6-bit scales; half d
    count = blocks.shape[0]
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    high = _shifted(packed[:, 8:].reshape(count, 1, 4), (0, 2, 4, 6)).view(count, 16)
    scales = ((low & 0x0F) | ((high & 3) << 4)).view(torch.int8) - 32
    scale = (_half(blocks, 108) * scales).unsqueeze(-1)
    values = _shifted(blocks[:, 32:96].reshape(count, 2, 1, 32), (0, 2, 4, 6)).view(count, 16, 16) & 3
    # The third bit is stored inverted: a clear bit means minus four.
    third = _shifted(blocks[:, :32].reshape(count, 1, 1, 32), tuple(range(8))).view(count, 16, 16) & 1
    return (scale * (values.view(torch.int8) - ((third ^ 1) << 2).view(torch.int8))).view(count, 256)


def _q4_k(blocks: Tensor) -> Tensor:  # half d, dmin; 12 bytes of 6-bit scales and minima; 128 bytes of nibbles
    count = blocks.shape[0]
    scale, least = _k_scales(blocks)
    values = _nibbles(blocks[:, 16:].reshape(count, 4, 32)).view(count, 8, 32)
    return torch.sub(scale * values, least).view(count, 256)


def _q5_k(blocks: Tensor) -> Tensor:  # as Q4_K, with 32 bytes of fifth bits before the nibbles
    count = blocks.shape[0]
    scale, least = _k_scales(blocks)
    low = _nibbles(blocks[:, 48:].reshape(count, 4, 32)).view(count, 8, 32)
    fifth = _shifted(blocks[:, 16:48].reshape(count, 1, 32), tuple(range(8))) & 1
    return torch.sub(scale * (low | (fifth << 4)), least).view(count, 256)


def _q6_k(blocks: Tensor) -> Tensor:  # 128 bytes of nibbles; 64 of two high bits; 16 signed scales; half d
    count = blocks.shape[0]
    scale = (_half(blocks, 208) * blocks[:, 192:208].view(torch.int8)).unsqueeze(-1)
    low = _nibbles(blocks[:, :128].reshape(count, 2, 64)).view(count, 8, 32)
    high = _shifted(blocks[:, 128:192].reshape(count, 2, 1, 32), (0, 2, 4, 6)).view(count, 8, 32)
    values = (low | ((high & 3) << 4)).view(torch.int8) - 32
    return (scale * values.view(count, 16, 16)).view(count, 256)


def _iq4_nl(blocks: Tensor) -> Tensor:  # half d; 16 bytes of nibbles that index IQ4_LEVELS
    return _half(blocks, 0) * _levels(_nibbles(blocks[:, 2:]))


def _iq4_xs(blocks: Tensor) -> Tensor:  # half d; 16 bits of high scale bits; 4 bytes of low ones; 128 of nibbles
    count = blocks.shape[0]
    high = _shifted(blocks[:, 2:4].reshape(count, 2, 1), (0, 2, 4, 6)).view(count, 8) & 3
    low = torch.stack((blocks[:, 4:8] & 0x0F, blocks[:, 4:8] >> 4), dim=-1).view(count, 8)
    scales = (low | (high << 4)).view(torch.int8) - 32
    scale = (_half(blocks, 0) * scales).unsqueeze(-1)
    values = _nibbles(blocks[:, 8:].reshape(count, 8, 16))
    return (scale * _levels(values)).view(count, 256)


def _shifted(packed: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """``[..., 1, K]`` shifted right by each of `shifts`: ``[..., len(shifts), K]``.

    A tensor shaped ``[..., K, 1]`` gives ``[..., K, len(shifts)]`` instead.
    """
    by = torch.tensor(shifts, dtype=torch.uint8, device=packed.device)
    return packed >> (by if packed.shape[-1] == 1 else by.unsqueeze(-1))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the eight runs of 32 in a K block, ``[n, 8, 1]`` each."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, least, both = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = torch.cat((low & 0x3F, (both & 0x0F) | ((low >> 2) & 0x30)), dim=-1)
    minima = torch.cat((least & 0x3F, (both >> 4) | ((least >> 2) & 0x30)), dim=-1)
    return (_half(blocks, 0) * scales).unsqueeze(-1), (_half(blocks, 2) * minima).unsqueeze(-1)


def _levels(indexes: Tensor) -> Tensor:
    table = torch.tensor(IQ4_LEVELS, dtype=torch.float32, device=indexes.device)
    return table[indexes.to(torch.int32)]


_EXPAND: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
