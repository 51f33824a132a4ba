"""Queries, key and value of one token as attention_early takes them: what the prologue does, in its registers.

Heads come in two halves of 64 columns, the two that rotate with each other. Legend: H heads, G query heads a KV head,
D head dim, B block size, N columns: G, the new key, the new value.
"""

from octavo.kernels.triton.hopper import HOPPER

if HOPPER:
    from octavo.kernels.triton.attention_early_ring import HALF
    from octavo.kernels.triton.hopper import gl, gluon

    @gluon.jit
    def given(
        q_ptr, cos_sin_ptr, turn_ptr, row, head, stride_q,
        OWN: gl.constexpr, ROTARY: gl.constexpr, H_KV: gl.constexpr, G: gl.constexpr, D: gl.constexpr,
        N: gl.constexpr, layout: gl.constexpr,
    ):  # fmt: skip
        """Of one row and KV head: queries, and if OWN key and value behind them, in two halves ``[N, 64]``, and the
        cosines and sines of its place ``[64]``."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
        place = head * G + n
        if OWN:
            place = gl.where(n < G, place, gl.where(n == G, H_KV * G + head, H_KV * G + H_KV + head))
        here = (n < (G + 2 if OWN else G))[:, None]
        at = q_ptr + row.to(gl.int64) * stride_q + (place * D)[:, None] + c[None, :]
        low = gl.load(at, mask=here, other=0.0)
        high = gl.load(at + (D - HALF), mask=here, other=0.0)
        cos = gl.full((HALF,), 1.0, gl.float32, layout=gl.SliceLayout(0, layout))
        sin = gl.zeros((HALF,), gl.float32, layout=gl.SliceLayout(0, layout))
        if ROTARY > 0:
            angles = cos_sin_ptr + gl.load(turn_ptr + row) * ROTARY + c
            cos, sin = gl.load(angles), gl.load(angles + HALF)
        return low, high, cos, sin

    @gluon.jit
    def norms(ptr, NORM: gl.constexpr, layout: gl.constexpr):
        """A norm's weights in two halves ``[64]``."""
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
        low = gl.zeros((HALF,), gl.float32, layout=gl.SliceLayout(0, layout))
        high = low
        if NORM:
            low, high = gl.load(ptr + c).to(gl.float32), gl.load(ptr + HALF + c).to(gl.float32)
        return low, high

    @gluon.jit
    def _turned(
        low, high, cos, sin, q_low, q_high, k_low, k_high, eps,
        NORM: gl.constexpr, ROTARY: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N: gl.constexpr,
        layout: gl.constexpr,
    ):  # fmt: skip
        """Queries and key normed and rotated, the value as it was; fp32."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        is_key, is_value = (n == G)[:, None], (n == G + 1)[:, None]
        kind: gl.constexpr = low.dtype
        low, high = low.to(gl.float32), high.to(gl.float32)
        new_low, new_high = low, high
        if NORM:
            scale = gl.rsqrt(gl.sum(low * low + high * high, axis=1) / D + eps)[:, None]
            new_low = (low * scale * gl.where(is_key, k_low[None, :], q_low[None, :])).to(kind).to(gl.float32)
            new_high = (high * scale * gl.where(is_key, k_high[None, :], q_high[None, :])).to(kind).to(gl.float32)
        if ROTARY > 0:
            cos, sin = cos[None, :], sin[None, :]
            new_low, new_high = new_low * cos - new_high * sin, new_high * cos + new_low * sin
        return gl.where(is_value, low, new_low), gl.where(is_value, high, new_high)

    @gluon.jit
    def _row(heads, index: gl.constexpr, N: gl.constexpr, layout: gl.constexpr, into: gl.constexpr):
        """One row of ``[N, 64]``."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        return gl.convert_layout(gl.sum(gl.where((n == index)[:, None], heads, 0.0), axis=0), into)

    @gluon.jit
    def _put(rows, group, last, new, layout: gl.constexpr, PUT: gl.constexpr, CLEAR: gl.constexpr):
        """Into the group of eight tokens of a tile: PUT lays `new` ``[64]`` at token `last`, CLEAR zeros behind it."""
        there = rows.load(layout)
        token = group * 8 + gl.arange(0, 8, layout=gl.SliceLayout(1, layout))[:, None]
        if PUT:
            there = gl.where(token == last, new[None, :].to(there.dtype), there)
        if CLEAR:
            there = gl.where(token <= last, there, 0.0)
        rows.store(there)

    @gluon.jit
    def lay_in(
        k_groups, v_groups, stage, newest, key_low, key_high, value_low, value_high,
        HALVES: gl.constexpr, GROUPS: gl.constexpr, B: gl.constexpr, OWN: gl.constexpr, layout: gl.constexpr,
    ):  # fmt: skip
        """The new key and value at token `newest` of their tile, if OWN, and zeros behind it in its block: a weight of
        zero does not undo a value that is no number."""
        group = newest // 8
        at_low = stage * HALVES * GROUPS
        if OWN:
            _put(k_groups.index(at_low + group), group, newest, key_low, layout, True, False)
            _put(k_groups.index(at_low + GROUPS + group), group, newest, key_high, layout, True, False)
        group = newest // B * (B // 8)
        for j in gl.static_range(B // 8):
            _put(v_groups.index(at_low + group + j), group + j, newest, value_low, layout, OWN, True)
            if HALVES > 1:
                v_high = v_groups.index(at_low + GROUPS + group + j)
                _put(v_high, group + j, newest, value_high, layout, OWN, True)

    @gluon.jit
    def _write(
        kv_ptr, slot, head, low, high, stride_block, stride_half,
        G: gl.constexpr, D: gl.constexpr, B: gl.constexpr, N: gl.constexpr, layout: gl.constexpr,
    ):  # fmt: skip
        """Key and value of the new token, to the cache."""
        n = gl.arange(0, N, layout=gl.SliceLayout(1, layout))
        c = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
        to = kv_ptr + (slot // B) * stride_block + (head * B + slot % B) * D
        to = to + ((n - G) * stride_half)[:, None] + c[None, :]
        new = ((n == G) | (n == G + 1))[:, None] & (c < HALF)[None, :]
        kind: gl.constexpr = kv_ptr.dtype.element_ty
        gl.store(to, low.to(kind), mask=new)
        gl.store(to + HALF, high.to(kind), mask=new)

    @gluon.jit
    def take(
        heads, low, high, cos, sin, q_low, q_high, k_low, k_high, eps, kv_ptr, slot, head, newest_here,
        stride_block, stride_half,
        NORM: gl.constexpr, ROTARY: gl.constexpr, G: gl.constexpr, D: gl.constexpr, B: gl.constexpr, N: gl.constexpr,
        layout: gl.constexpr, column: gl.constexpr,
    ):  # fmt: skip
        """Lay down what was `given` as the products want it. The program that has the row's last tile writes key and
        value to the cache, and is given them, ``[64]`` four times."""
        new_low, new_high = _turned(
            low, high, cos, sin, q_low, q_high, k_low, k_high, eps, NORM, ROTARY, G, D, N, layout
        )
        kind: gl.constexpr = low.dtype
        heads.index(0).store(new_low.to(kind))
        heads.index(1).store(new_high.to(kind))
        key_low = gl.zeros((HALF,), gl.float32, layout=column)
        key_high, value_low, value_high = key_low, key_low, key_low
        if newest_here:
            key_low, key_high = _row(new_low, G, N, layout, column), _row(new_high, G, N, layout, column)
            value_low, value_high = _row(new_low, G + 1, N, layout, column), _row(new_high, G + 1, N, layout, column)
            _write(kv_ptr, slot, head, new_low, new_high, stride_block, stride_half, G, D, B, N, layout)
        return key_low, key_high, value_low, value_high
