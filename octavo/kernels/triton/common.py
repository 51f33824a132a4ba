"""Small pieces that several kernels share."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.target import target_here

# Programmatic dependent launch (Hopper on): a kernel may start while the one before still runs, do what does not
# depend on it, and wait. Every kernel launched so must call `wait_for_inputs` before it touches what others wrote.
_DEPENDENT = target_here().capability >= (9, 0)
DEPENDENT = tl.constexpr(_DEPENDENT)
LAUNCH: dict[str, bool] = {"launch_pdl": True} if _DEPENDENT else {}


@triton.jit
def wait_for_inputs():
    """Until the kernel before has finished and its writes are seen."""
    if DEPENDENT:
        gdc_wait()


@triton.jit
def let_next_start():
    """The next kernel's programs may take what room this one leaves."""
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def ask_for(pointers, LINES: tl.constexpr):
    """Have lines of 128 bytes, `LINES` in a row from each pointer ``[N]`` on, brought into the L2 cache; no wait."""
    if DEPENDENT:
        at = pointers.to(tl.int64)
        for line in tl.static_range(LINES):
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
                "=r,l",
                [at + line * 128],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


def shared_memory() -> int:
    """Bytes of shared memory that a program may have: 227 KiB on an H200, 99 KiB on most cards for a desk."""
    return target_here().shared_memory


def pow2(n: int) -> int:
    """The smallest power of two that holds n."""
    return int(triton.next_power_of_2(n))


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
