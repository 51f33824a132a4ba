"""What only gluon_kit can show of the kernels in Gluon: when they read what, and that programs come in any order.

Run by test_gluon_kernels, with gluon_plugin.
"""

from collections.abc import Iterator

import pytest
import torch
from gluon_plugin import EMULATOR
from paged_kit import make_cache, make_meta
from torch.nn import functional as F

from octavo.kernels.context import Projected
from octavo.kernels.ref import attention as ref_attention
from octavo.kernels.ref import prologue as ref_prologue
from octavo.kernels.triton import attention as attention_module
from octavo.kernels.triton.attention import self_attention
from octavo.kernels.triton.linear_early import early_linear
from octavo.kernels.triton.linear_shape import Shape

ORDERS = {
    "rising": lambda count: list(range(count)),
    "falling": lambda count: list(range(count))[::-1],
    "shuffled": lambda count: torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist(),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    EMULATOR.before_inputs, EMULATOR.order = None, ORDERS["rising"]


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_a_product_reads_its_inputs_once_they_are_there(activation) -> None:
    """Until then they are no numbers."""
    torch.manual_seed(0)
    truth, weight = torch.randn(5, 512).bfloat16(), (torch.randn(192, 512) / 20).bfloat16()
    x = torch.full_like(truth, float("nan"))
    EMULATOR.before_inputs = lambda: x.copy_(truth)
    got = early_linear(x, weight, None, Shape(32, 8, 128, 1, 4, 3, True), activation)
    want = F.linear(truth.float(), weight.float())
    if activation != "none":
        gate, up = want.bfloat16().float().chunk(2, dim=1)
        want = F.silu(gate).bfloat16().float() * up
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("rotary", [128, 64])
@pytest.mark.parametrize("order", ORDERS)
def test_attention_reads_the_past_early_and_the_present_late(order, rotary, monkeypatch) -> None:
    """What the kernel before makes is no number until it is waited for: queries, new keys and values, and, where the
    prologue stands between, what it writes to the cache. Rows are shared out to programs that come in any order."""
    EMULATOR.order = ORDERS[order]
    monkeypatch.setattr(attention_module, "num_programs", lambda *_, **_by_name: 7)
    torch.manual_seed(1)
    lengths, heads, kv_heads, dim = [1, 64, 700, 33, 1, 210], 4, 2, 128
    meta = make_meta([1] * len(lengths), lengths, 16)
    kv = make_cache(meta, kv_heads, dim, torch.bfloat16)
    kv[meta.slots // 16, :, :, meta.slots % 16] = float("nan")
    truth = torch.randn(len(lengths), (heads + 2 * kv_heads) * dim).bfloat16()
    qkv, norm, cos_sin = torch.full_like(truth, float("nan")), torch.rand(dim) + 0.5, torch.randn(1024, rotary)

    def projected(numbers: torch.Tensor) -> Projected:
        return Projected(numbers, norm, norm, 1e-6, cos_sin, meta.positions, heads, kv_heads, dim)

    other = kv.clone()
    q = ref_prologue.qkv_prologue(projected(truth), other, meta)
    want = ref_attention.paged_attention(q.float(), other.float(), make_plain(meta), 0.1, None, None)
    if rotary == dim:  # it does the prologue's work
        EMULATOR.before_inputs = lambda: qkv.copy_(truth)
        got = self_attention(projected(qkv), kv, meta, 0.1, None, None)
    else:
        late = torch.full_like(q, float("nan"))

        def prologue() -> None:
            late.copy_(q)
            kv.copy_(other)

        monkeypatch.setattr(attention_module, "qkv_prologue", lambda *_: late)
        EMULATOR.before_inputs = prologue
        got = self_attention(projected(qkv), kv, meta, 0.1, None, None)
    torch.testing.assert_close(got.float(), want, atol=4e-2, rtol=4e-2)
    torch.testing.assert_close(kv, other, equal_nan=True, atol=2e-2, rtol=2e-2)
    plan = meta.scratch["triton:None"].decode
    assert plan is not None
    assert not plan.tickets.any()  # as they were, for the next layer


def make_plain(meta):
    return type(meta)(**{name: getattr(meta, name) for name in meta.__slots__ if name != "scratch"})
