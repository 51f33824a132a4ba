"""Small pieces that several kernels share."""

import triton
import triton.language as tl


def pow2(n: int) -> int:
    """The smallest power of two that holds n."""
    return int(triton.next_power_of_2(n))


@triton.jit
def softcap_logits(x, cap):
    """``cap * tanh(x / cap)`` by exponentials; the argument is clamped so that neither overflows."""
    t = tl.minimum(tl.maximum(x / cap, -20.0), 20.0)
    e = tl.exp(2.0 * t)
    return cap * (e - 1.0) / (e + 1.0)


@triton.jit
def find_row(starts_ptr, item, num_rows):
    """The row r with ``starts[r] <= item < starts[r + 1]``, by bisection over a rising array of num_rows + 1."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle + 1) <= item:
            low = middle + 1
        else:
            high = middle
    return low
