"""The one place where an implementation is chosen: a typed table of operations, filled once per device.

`select` starts from the plain torch truth in kernels/ref and lays faster entries over it, where the platform
has them. Layers call `ops.<name>`; nobody else imports an implementation.

Legend: T tokens, R rows, H heads, D head dim, E hidden size, I intermediate size, V vocabulary, N blocks, B block size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from octavo.kernels.ahead import MakeAheadOps
from octavo.kernels.context import AttentionMeta, Norm, Projected, Said

T = TypeVar("T")


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``[T, E], [E] -> [T, E]``; computed in fp32. The weight already holds any offset (Gemma's one)."""
        ...


class AddRmsNorm(Protocol):
    def __call__(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``residual + x``, normed, and the sum itself: ``[T, E] x 2 -> [T, E] x 2``. May write into its inputs.

        Without a residual x is the sum.
        x may be fp32 parts ``[S, T, E]`` of a sum (see `LinearParts`), which is rounded to the residual's type first.
        """
        ...


class ActMul(Protocol):
    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """``[T, 2 I] -> [T, I]``: activation of the first half times the second half."""
        ...


class QkvPrologue(Protocol):
    def __call__(self, projected: Projected, kv: Tensor, meta: AttentionMeta) -> Tensor:
        """Per-head QK norm, rotation, the write of K and V into kv ``[N, 2, H_kv, B, D]``; gives q ``[T, H, D]``."""
        ...


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        meta: AttentionMeta,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Causal attention of this step's queries over the cache: ``[T, H, D] -> [T, H, D]``.

        Query j of row r stands at position ``seq_lens[r] - query_len[r] + j`` and sees the positions up to its
        own, at most `window` of them. Heads are grouped: H is a multiple of H_kv.
        """
        ...


class SelfAttention(Protocol):
    def __call__(
        self,
        projected: Projected,
        kv: Tensor,
        meta: AttentionMeta,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """`QkvPrologue`, then `PagedAttention`: gives ``[T, H, D]``."""
        ...


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``[T, E] x [O, E] -> [T, O]``."""
        ...


class LinearParts(Protocol):
    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """`Linear` for a product that a norm takes next: ``[T, E] x [O, E] -> [T, O]``, or fp32 parts ``[S, T, O]``
        of it, which that norm adds up."""
        ...


class NormedLinear(Protocol):
    def __call__(
        self, x: Tensor, norm: Norm, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> tuple[Tensor, Tensor]:
        """The norm, then the product, then perhaps a gated activation of its two halves.

        x ``[T, E]`` (perhaps in parts: `LinearParts`), weight ``[O, E]``; gives ``[T, O]`` (``[T, O / 2]`` if gated)
        and the sum that was normed. May write into its inputs.
        """
        ...


class Embed(Protocol):
    def __call__(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the token table: ids ``[T]`` int64, each below V, table ``[V, E] -> [T, E]``."""
        ...


class Greedy(Protocol):
    def __call__(self, logits: Tensor) -> Tensor:
        """The likeliest token, the lowest id among equals: ``[S, V]`` of any float type ``-> [S]`` int64.

        -1 for a row with a logit that is no number, or whose greatest is infinite.
        """
        ...


class Draw(Protocol):
    def __call__(self, logits: Tensor, seeds: Tensor, positions: Tensor, temperature: Tensor, stream: int) -> Tensor:
        """A token drawn from each row's softmax; the likeliest where the temperature is 0, -1 as in `Greedy`.

        logits ``[S, V]`` fp32, already over the temperature, seeds and positions ``[S]`` int64, temperature ``[S]``
        fp32 ``-> [S]`` int64. The random number is a function of seed, position and `stream` alone (kernels/ref/sample:
        the same on every device), and no token of probability zero comes of it.
        """
        ...


class Penalize(Protocol):
    def __call__(self, logits: Tensor, counts: Tensor, said: Said) -> None:
        """Penalties for what was said, in place: logits ``[S, V]`` fp32.

        A token of prompt or output: its logit over `repetition`, or times it below zero. One of the output: less
        `frequency` for each time, and `presence` once. counts ``[S, V]`` int32 is zero before and after.
        """
        ...


class Narrow(Protocol):
    def __call__(self, logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
        """Minus infinity for all but the likeliest tokens of each row, in place.

        What is less likely than `min_p` times the likeliest goes (0: nothing; Nguyen et al. 2024), then all but the
        `top_k` likeliest (0: none), then all but the fewest that hold probability `top_p` of what is left (1: none;
        Holtzman et al. 2020). Tokens as likely as the last one kept stay too. logits ``[S, V]`` fp32, top_k ``[S]``
        int32, top_p and min_p ``[S]`` fp32, all three of one stride.
        """
        ...


class Describe(Protocol):
    def __call__(
        self, logits: Tensor, tokens: Tensor, top: int, asked: Tensor | None = None, tops: Tensor | None = None
    ) -> Tensor:
        """Of each row: the token's log-probability and rank, and the `top` likeliest, or all if V is less.

        logits ``[n, V]`` fp32, tokens ``[n]`` int64 ``-> [n, 3 + 2 top]`` int32: token, rank, log-probability, and of
        the others ids, log-probabilities, these all as bits of fp32. Rank 1 is the likeliest; equals share a rank.
        `asked` ``[n, top]`` int64 holds ids to report in place of the likeliest, -1 for none. `tops` ``[n]`` int32: as
        many of the `top` are read of each row, -1: nothing; what stands in other places is of no account.
        """
        ...


class Forbid(Protocol):
    def __call__(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        """Minus infinity for every token whose bit is not set, in place.

        logits ``[S, V]`` fp32, rows ``[K]`` int32, each at most once, one below 0 is nobody's, masks
        ``[K, ceil(V / 32)]`` int32. What is no number, or infinite, stays where it is, forbidden or not: the row is
        still -1 to `Greedy` and `Draw`.
        """
        ...


class WriteTokens(Protocol):
    def __call__(self, lines: Tensor, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """``lines[rows, positions] = tokens``, 0 for one below it: lines ``[R, places]`` int32, the others ``[S]``
        int64."""
        ...


class Tune(Protocol):
    def __call__(self, work: Callable[[], object]) -> None:
        """Run `work` once, and find out by which of several ways what it computed is computed fastest from now on.

        Nothing may be captured meanwhile.
        """
        ...


class Compiler(Protocol):
    """Compiles kernels in other threads before they are launched."""

    def note(self, work: Callable[[], T]) -> T:
        """Run `work` on tensors of the meta device; what it launches is compiled, not started."""
        ...

    def wait(self) -> None:
        """Until all that was noted is compiled. Raises what a compilation raised."""
        ...

    def close(self) -> None:
        """Begin to compile nothing more."""
        ...


class MakeCompiler(Protocol):
    def __call__(self, threads: int) -> Compiler: ...


@dataclass(frozen=True, slots=True)
class Ops:
    """One entry an operation; `names` says which implementation each one is, for the log and `octavo doctor`."""

    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    act_mul: ActMul
    qkv_prologue: QkvPrologue
    paged_attention: PagedAttention
    self_attention: SelfAttention | None  # None: the two before it in turn
    linear: Linear
    linear_parts: LinearParts
    normed_linear: NormedLinear
    embed: Embed
    greedy: Greedy
    draw: Draw
    penalize: Penalize
    narrow: Narrow
    describe: Describe
    forbid: Forbid
    write_tokens: WriteTokens
    ahead: MakeAheadOps | None  # None: steps cannot be captured
    compiler: MakeCompiler | None  # None: nothing is compiled at its first launch
    tune: Tune | None  # None: there is one way of everything
    names: dict[str, str]

    def overlay(self, source: str, **entries: object) -> "Ops":
        names = {**self.names, **dict.fromkeys(entries, source)}
        return replace(self, **entries, names=names)  # type: ignore[arg-type]


def select(device: torch.device, attention_backend: str = "auto") -> Ops:
    """The table for a device. Unknown backends raise UnknownName."""
    from octavo.kernels.choose import choose

    return choose(device, attention_backend)
