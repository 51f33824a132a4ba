"""A start's steps gone through on paper: all kernels that they launch begin to compile, side by side, while the weights
are still being read.

The steps are ordinary plans through an ordinary runner, on torch's meta device, where tensors have shapes and no
memory. First those that the start itself will take, then one a room of the captured steps.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from octavo.base.config import Resolved
from octavo.base.plan import StepPlan
from octavo.base.specs import KVLayout, group_layers
from octavo.kernels.context import Said
from octavo.kernels.ops import Compiler, Ops
from octavo.models.arch import Architecture
from octavo.models.decoder import build
from octavo.platform.cpu import CpuPlatform
from octavo.worker.assemble import ahead_ops, allocate_kv, batch_builder, kv_views
from octavo.worker.captured import CapturedLauncher
from octavo.worker.columns import WIDTH, Columns
from octavo.worker.launch import EagerLauncher, Ground, Launcher
from octavo.worker.scratch import PROBE_BLOCKS, largest_plan, next_plan, prompt_tokens, small_plan, smallest_plan
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable

log = logging.getLogger(__name__)

PATIENCE_S = 0.5
BREATH_S = 0.3  # after a start: whoever asks a new server first finds the interpreter free
_SOME_TOKENS = 200  # too many for the kernels of a few, too few for dense attention
ROTATIONS = 64  # positions in the rotation tables: no kernel's shape depends on their number


@dataclass(frozen=True, slots=True)
class Part:
    """What is rehearsed."""

    arch: Architecture
    resolved: Resolved
    layout: KVLayout
    kv_dtype: torch.dtype
    warm_tokens: int  # of the prompt that a start ends with
    capture: bool


class Rehearsal:
    """Runs in a thread of its own. `first_done` returns when the start's own steps are noted. The others wait for
    `go_on`, or until a start that takes longer has its own kernels: it need not share the interpreter with what comes
    after it."""

    def __init__(self, ops: Ops, part: Part, compiler: Compiler) -> None:
        self._compiler = compiler
        self._ops = ops
        self._part = part
        self._first = threading.Event()
        self._rest = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="octavo-rehearsal", daemon=True).start()

    def first_done(self) -> None:
        """Until a kernel that is launched now is compiled, or is being compiled."""
        self._first.wait()

    def go_on(self) -> None:
        """The start is over."""
        self._rest.set()

    def close(self) -> None:
        """Begin no more."""
        self._closed.set()
        self._rest.set()
        self._compiler.close()

    def _run(self) -> None:
        try:
            scenes = rehearse(self._ops, self._part)
            for _ in iter(lambda: self._compiler.note(lambda: next(scenes, None)), None):
                if self._closed.is_set():
                    return
                if not self._first.is_set():
                    self._first.set()
                    if self._rest.wait(PATIENCE_S):
                        self._closed.wait(BREATH_S)
                    else:
                        with suppress(Exception):  # of a kernel that cannot be compiled; its launch will say so
                            self._compiler.wait()
        except Exception as error:  # kernels then compile as they are launched
            log.debug("the rehearsal ended early", exc_info=error)
        finally:
            self._first.set()


def compile_all(arch: Architecture, resolved: Resolved, threads: int, *, capture: bool) -> int:
    """Compile what an engine launches, for the GPU that Triton was told; returns how many kernels.

    Raises what a compilation raises.
    """
    from octavo.kernels.choose import reference
    from octavo.kernels.triton.compile import Compiler as TritonCompiler
    from octavo.kernels.triton.table import overlay

    meta, dtype = torch.device("meta"), getattr(torch, resolved.dtype)
    layout = KVLayout(group_layers(arch.kv_specs()), resolved.block_size, PROBE_BLOCKS, dtype.itemsize)
    part = Part(arch, resolved, layout, dtype, prompt_tokens(resolved), capture)
    scenes = rehearse(overlay(reference(meta), meta), part)
    compiler = TritonCompiler(threads)
    while compiler.note(lambda: next(scenes, None)) is not None:
        pass
    compiler.wait()
    return compiler.count


def rehearse(ops: Ops, part: Part) -> Iterator[str]:
    """Launch what an engine launches, piece by piece; says what each piece was."""
    with torch.inference_mode(), _ShapesOnly():
        yield from _pieces(ops, part)


def _pieces(ops: Ops, part: Part) -> Iterator[str]:
    launcher = _launcher(ops, part)
    first, *others = _plans(part)
    launcher.launch(first, whole=False)
    _sampling(ops, part.arch.vocab_size)
    for plan in others:
        launcher.launch(plan, whole=False).greedy()
    yield "start"
    if isinstance(launcher, EagerLauncher):  # rooms are of all sizes, the start's own steps of the least and the most
        launcher.launch(small_plan(part.layout, prompt_tokens(part.resolved, _SOME_TOKENS)), whole=False)
    while launcher.prepare():
        yield "room"
    yield "last room"


def _sampling(ops: Ops, vocab_size: int) -> None:
    """Of logits that rules have passed over."""
    logits, number = torch.empty((1, vocab_size), device="meta"), torch.empty(1, device="meta")
    ops.forbid(logits, number.int(), torch.empty((1, -(-vocab_size // 32)), dtype=torch.int32, device="meta"))
    ops.greedy(logits)
    ops.draw(logits, number.long(), number.long(), number, 0)
    ops.describe(logits, number.long(), 1)
    told = Columns(torch.empty((1, WIDTH), dtype=torch.int32, device="meta")).told
    ops.describe(logits, number.long(), 1, None, told)
    ops.narrow(logits, number.int(), number, number)
    ops.penalize(logits, logits.int(), Said(logits.int(), number.long(), number.long(), number.int(), *[number] * 3))


def _plans(part: Part) -> list[StepPlan]:
    """Those that a start takes, in its order; the first is sampled by every rule."""
    resolved, layout = part.resolved, part.layout
    small = small_plan(layout, part.warm_tokens)
    largest = largest_plan(layout, resolved.max_num_seqs, resolved.max_num_batched_tokens, resolved.max_model_len)
    return [smallest_plan(layout), largest, small, next_plan(small)]


def _launcher(ops: Ops, part: Part) -> Launcher:
    platform, resolved, layout = _Paper(), part.resolved, part.layout
    arch = msgspec.structs.replace(part.arch, layers=part.arch.layers[: _enough(part.arch)])
    dtype = getattr(torch, resolved.dtype)
    model = build(arch, ops, dtype, platform.device, max_position=ROTATIONS, empty=platform.zeros)
    stager = Stager(platform, buffers=1)
    sizes = resolved.max_num_seqs, resolved.max_model_len, arch.vocab_size
    table = _PaperTable(platform, stager, layout, *sizes, ops.write_tokens)
    ahead = ahead_ops(ops, layout, part.kv_dtype, arch.query_group)
    ground = Ground(table, model, layout, kv_views(allocate_kv(platform.zeros, layout, part.kv_dtype), layout))
    eager = EagerLauncher(ground, batch_builder(platform, table, stager, resolved, ahead))
    if not part.capture or ahead is None:
        return eager
    return CapturedLauncher(platform, stager, ahead, ops, ground, eager, resolved.max_num_batched_tokens)


def _enough(arch: Architecture) -> int:
    """Layers from the first on that are of all kinds; two at least, since the first has no residual before it."""
    return min(len(arch.layers), 2 + max(arch.layers.index(layer) for layer in arch.layers))


class _Paper(CpuPlatform):
    """A device whose tensors have no memory."""

    name = "meta"

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("meta")

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.device)


class _PaperTable(RequestTable):
    """What comes and goes is nothing to tensors without memory."""

    def apply(self, plan: StepPlan) -> None:
        """Nothing is laid in."""


# For much of its arithmetic on tensors without memory torch would import its compiler and sympy, seconds of work, to
# find shapes that are plain to see: these three keep it from that.
class _ShapesOnly(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = _MADE.get(func)
        return func(*args, **(kwargs or {})) if made is None else made(*args)


_MADE: dict[Any, Callable[..., Tensor]] = {
    F.linear: lambda x, weight, *_: x.new_empty((*x.shape[:-1], weight.shape[0])),
    Tensor.index_select: lambda x, dim, index: x.new_empty((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])),
}
