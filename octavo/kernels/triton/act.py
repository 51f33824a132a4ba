"""Gated activations: act(gate) * up over a merged projection.

Legend: T tokens, I intermediate size.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.common import LAUNCH, let_next_start, wait_for_inputs


@triton.jit
def activate(gate, KIND: tl.constexpr):
    """silu, gelu_tanh or gelu of fp32 numbers."""
    if KIND == "silu":
        return gate * tl.sigmoid(gate)
    elif KIND == "gelu_tanh":
        # tanh(z) = 2 sigmoid(2 z) - 1, which cannot overflow.
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate * tl.sigmoid(2.0 * z)
    else:
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))


@triton.jit
def gated(acc, acc_up, ACT: tl.constexpr, kind: tl.constexpr):
    """act(gate) * up of two fp32 products, rounded to the storage type where the unfused operations would round."""
    gate = acc.to(kind).to(tl.float32)
    up = acc_up.to(kind).to(tl.float32)
    return activate(gate, ACT).to(kind).to(tl.float32) * up


@triton.jit
def _act_mul(x_ptr, y_ptr, stride_x, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    let_next_start()
    wait_for_inputs()
    gate = tl.load(x_ptr + token * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * stride_x + size + column, mask=inside, other=0.0).to(tl.float32)
    act = activate(gate, KIND)
    # Rounded between the two factors, as the unfused pair does.
    act = act.to(y_ptr.dtype.element_ty).to(tl.float32)
    tl.store(y_ptr + token * size + column, (act * up).to(y_ptr.dtype.element_ty), mask=inside)


def act_mul(x: torch.Tensor, activation: str) -> torch.Tensor:
    """``[T, 2 I] -> [T, I]``; activation is silu, gelu_tanh or gelu."""
    tokens, size = x.shape[0], x.shape[1] // 2
    y = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    block = 1024
    if tokens:
        _act_mul[(tokens, triton.cdiv(size, block))](
            x, y, x.stride(0), size, KIND=activation, BLOCK=block, num_warps=4, **LAUNCH
        )
    return y
