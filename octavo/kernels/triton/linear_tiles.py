"""Linear layers for about a hundred tokens and more: tiles of both sides come by TMA (Hopper on), K perhaps in parts.

Used where a measurement says that it beats cuBLAS: `CHOICES`. Parts of a split K are left as they are, for the addition
and norm that follow to sum.
Legend: T tokens, K input size, N output features, S parts of K.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.kernels.triton.act import gated
from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs


@dataclass(frozen=True, slots=True)
class Tiling:
    """What one program computes, and how. `turned`: features are the rows of the tensor cores' product, else tokens."""

    tokens: int
    features: int
    depth: int  # of K, at once
    parts: int  # of K, over programs
    warps: int
    stages: int
    turned: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a tiling is the fastest: for more than `above` and up to `upto` tokens, and this matrix ``[N, K]``; N is
    that of one half where the halves are gated."""

    above: int
    upto: int
    features: int
    size: int
    gate: bool
    tiling: Tiling


CHOICES: tuple[Choice, ...] = ()


def choose(x: torch.Tensor, features: int, *, gate: bool = False, parts: bool = False) -> Tiling | None:
    """The tiling for x ``[T, K]`` and so many features, in `parts` of K or whole; None: cuBLAS is as fast."""
    tokens, size = x.shape
    if not LAUNCH or x.dtype == torch.float32 or x.stride(0) % 8:
        return None
    for choice in CHOICES:
        fits = choice.above < tokens <= choice.upto and (choice.features, choice.size) == (features, size)
        if fits and choice.gate == gate and (choice.tiling.parts > 1) == parts:
            return choice.tiling
    return None


@triton.jit(do_not_specialize=["T", "N", "K"])
def _tiles(
    x_desc, w_desc, b_ptr, y_ptr, T, N, K,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    TURNED: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    let_next_start()
    first_token = tl.program_id(0) * TOKENS
    first = tl.program_id(1) * FEATURES
    part = tl.program_id(2)
    mine = K // tl.num_programs(2)
    acc = tl.zeros((FEATURES, TOKENS) if TURNED else (TOKENS, FEATURES), tl.float32)
    up = tl.zeros((FEATURES, TOKENS) if TURNED else (TOKENS, FEATURES), tl.float32)
    wait_for_inputs()
    for k in tl.range(0, mine, DEPTH, num_stages=STAGES):
        x = x_desc.load([first_token, part * mine + k])
        w = w_desc.load([first, part * mine + k])
        acc = tl.dot(w, x.T, acc) if TURNED else tl.dot(x, w.T, acc)
        if ACT != "none":
            u = w_desc.load([N + first, part * mine + k])
            up = tl.dot(u, x.T, up) if TURNED else tl.dot(x, u.T, up)
    token = (first_token + tl.arange(0, TOKENS)).to(tl.int64)
    feature = first + tl.arange(0, FEATURES)
    token = token[None, :] if TURNED else token[:, None]
    feature = feature[:, None] if TURNED else feature[None, :]
    known = feature < N
    if BIAS:
        acc += tl.load(b_ptr + feature, mask=known, other=0.0).to(tl.float32)
        if ACT != "none":
            up += tl.load(b_ptr + N + feature, mask=known, other=0.0).to(tl.float32)
    if ACT != "none":
        acc = gated(acc, up, ACT, y_ptr.dtype.element_ty)
    row = token
    if SPLIT:
        row = token + part.to(tl.int64) * T
    tl.store(y_ptr + row * N + feature, acc.to(y_ptr.dtype.element_ty), mask=known & (token < T))


def tiled_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tiling: Tiling, activation: str = "none"
) -> torch.Tensor:
    """``act(x W^T + b)``: ``[T, K] -> [T, N]``, or with K in parts their ``[S, T, N]`` fp32, without a bias."""
    tokens, size = x.shape
    features = weight.shape[0] // (1 if activation == "none" else 2)
    split = tiling.parts > 1
    made = (tiling.parts, tokens, features) if split else (tokens, features)
    y = torch.empty(made, dtype=torch.float32 if split else x.dtype, device=x.device)
    _tiles[(triton.cdiv(tokens, tiling.tokens), triton.cdiv(features, tiling.features), tiling.parts)](
        TensorDescriptor.from_tensor(x, [tiling.tokens, tiling.depth]),
        TensorDescriptor.from_tensor(weight, [tiling.features, tiling.depth]),
        bias if bias is not None else y,
        y,
        tokens,
        features,
        size,
        TOKENS=tiling.tokens,
        FEATURES=tiling.features,
        DEPTH=tiling.depth,
        STAGES=tiling.stages,
        SPLIT=split,
        TURNED=tiling.turned,
        BIAS=bias is not None,
        ACT=activation,
        num_warps=tiling.warps,
        **LAUNCH,
    )
    return y
