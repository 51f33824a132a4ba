"""Which operations Triton takes over."""

from functools import partial

import torch
from triton import knobs

from octavo.kernels import cublas
from octavo.kernels.ops import Ops
from octavo.kernels.triton.act import act_mul
from octavo.kernels.triton.attention import TritonAhead, paged_attention, self_attention
from octavo.kernels.triton.compile import Compiler
from octavo.kernels.triton.describe import describe
from octavo.kernels.triton.draw import draw
from octavo.kernels.triton.embed import embed
from octavo.kernels.triton.forbid import forbid
from octavo.kernels.triton.greedy import greedy
from octavo.kernels.triton.linear import linear, linear_parts, normed_linear
from octavo.kernels.triton.narrow import narrow
from octavo.kernels.triton.norm import add_rms_norm, rms_norm
from octavo.kernels.triton.penalize import penalize
from octavo.kernels.triton.prologue import qkv_prologue
from octavo.kernels.triton.write_tokens import write_tokens


def overlay(ops: Ops, device: torch.device) -> Ops:
    """The table with Triton's entries in place of the reference's."""
    return ops.overlay(
        "triton",
        act_mul=act_mul,
        add_rms_norm=add_rms_norm,
        ahead=TritonAhead,
        compiler=None if knobs.runtime.interpret else Compiler,
        narrow=narrow,
        describe=describe,
        draw=draw,
        embed=embed,
        forbid=forbid,
        greedy=greedy,
        linear=linear,
        linear_parts=linear_parts,
        normed_linear=normed_linear,
        paged_attention=paged_attention,
        penalize=penalize,
        qkv_prologue=qkv_prologue,
        rms_norm=rms_norm,
        self_attention=self_attention,
        tune=partial(cublas.tune, device=device) if device.type == "cuda" else None,
        write_tokens=write_tokens,
    )
