"""A token drawn from each row of logits, in two launches: each part of the vocabulary is weighed, then one program a
row finds the part, and the token in it, at which the running sum passes the row's random number.

What is drawn is what kernels/ref/sample draws, but for rounding where a number falls on the edge between two tokens.
Legend: S rows, V vocabulary, P parts.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.ref.sample import GOLDEN
from octavo.kernels.triton.common import LAUNCH, let_next_start, pow2, wait_for_inputs
from octavo.kernels.triton.greedy import PART_TOKENS, logits_of_part


@triton.jit
def _weigh_part(logits_ptr, best_ptr, token_ptr, mass_ptr, stride, V, PARTS, PART: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    let_next_start()
    wait_for_inputs()
    x = logits_of_part(logits_ptr, row, token, stride, V)
    best, at = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    mass = tl.sum(tl.exp(x - tl.where(best > float("-inf"), best, 0.0)), axis=0)
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(token_ptr + row * PARTS + part, part * PART + at)
    tl.store(mass_ptr + row * PARTS + part, mass)


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(
    do_not_specialize=["stride_seeds", "stride_temperature"],
    do_not_specialize_on_alignment=["seeds_ptr", "positions_ptr", "temperature_ptr"],
)
def _draw(
    logits_ptr,
    best_ptr,
    token_ptr,
    mass_ptr,
    seeds_ptr,
    positions_ptr,
    temperature_ptr,
    out_ptr,
    stride,
    V,
    PARTS,
    stride_seeds,
    stride_temperature,
    STREAM: tl.constexpr,
    STEP: tl.constexpr,
    PAD: tl.constexpr,
    PART: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.arange(0, PAD)
    let_next_start()
    wait_for_inputs()
    best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=float("-inf"))
    mass = tl.load(mass_ptr + row * PARTS + part, mask=part < PARTS, other=0.0)
    top, at = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    likeliest = tl.load(token_ptr + row * PARTS + at).to(tl.int64)
    sound = (top > float("-inf")) & (top < float("inf"))
    base = tl.where(sound, top, 0.0)

    seed = tl.load(seeds_ptr + row * stride_seeds).to(tl.uint64, bitcast=True)
    position = (tl.load(positions_ptr + row) + 1).to(tl.uint64)
    bits = _mixed(_mixed(seed + STREAM) + position * STEP)
    number = (bits >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2 to the -53

    reached = tl.cumsum(mass.to(tl.float64) * tl.exp(best - base).to(tl.float64), axis=0)
    target = number * tl.max(reached, axis=0)
    chosen = tl.min(tl.where(reached > target, part, PAD - 1), axis=0)
    before = tl.max(tl.where(part < chosen, reached, 0.0), axis=0)

    token = chosen * PART + tl.arange(0, PART)
    x = logits_of_part(logits_ptr, row, token, stride, V)
    share = tl.exp(x - base)
    passed = (tl.cumsum(share.to(tl.float64), axis=0) > target - before) & (share > 0)
    drawn = tl.min(tl.where(passed, token, V), axis=0).to(tl.int64)
    # Rounding may leave a number behind the last token of its part.
    random = tl.load(temperature_ptr + row * stride_temperature) > 0
    result = tl.where(random & (drawn < V), drawn, likeliest)
    tl.store(out_ptr + row, tl.where(sound, result, -1))


def draw(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: torch.Tensor, stream: int
) -> torch.Tensor:
    """As `Draw` in kernels/ops: ``[S, V] -> [S]`` int64."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, PART_TOKENS)
    # Three tensors, not parts of one: those would begin on 16 bytes or not as rows are even or odd, and each way is a
    # kernel of its own.
    best, mass = (torch.empty((rows, parts), dtype=torch.float32, device=logits.device) for _ in range(2))
    token = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    out = torch.empty((rows,), dtype=torch.int64, device=logits.device)
    if rows:
        _weigh_part[(rows, parts)](
            logits, best, token, mass, logits.stride(0), vocab, parts, PART=PART_TOKENS, **LAUNCH
        )
        _draw[(rows,)](
            logits,
            best,
            token,
            mass,
            seeds,
            positions,
            temperature,
            out,
            logits.stride(0),
            vocab,
            parts,
            seeds.stride(0),
            temperature.stride(0),
            STREAM=GOLDEN * (stream + 1) % (1 << 64),
            STEP=GOLDEN,
            PAD=pow2(parts),
            PART=PART_TOKENS,
            num_warps=8,
            **LAUNCH,
        )
    return out
