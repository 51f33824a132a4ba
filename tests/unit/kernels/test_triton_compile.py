"""Kernels compiled before they are launched, for a GPU that is not here: in processes of their own, without Triton's
interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]

FOR_AN_H200 = """
import sys, threading
import torch
from octavo.kernels.triton.absent import compile_for
from octavo.kernels.triton.target import Target
compile_for(Target((9, 0), 132, 232_448))
from octavo.kernels.triton.compile import Compiler
from octavo.kernels.triton.norm import _rms_norm, rms_norm

def norm(size):
    x = torch.empty((3, size), dtype=torch.bfloat16, device="meta")
    rms_norm(x, torch.empty((size,), device="meta"), 1e-6)
"""

COMPILED = """
import triton
compiled = []
triton.knobs.compilation.listener = lambda src, cache_hit, **_: compiled.append((src.name, cache_hit))
compiler = Compiler(2)
compiler.note(lambda: [norm(64), norm(64), norm(128)])
compiler.wait()
assert compiled == [("_rms_norm", False)] * 2, compiled
compiler.note(lambda: norm(64))
assert len(compiled) == compiler.count == 2
kept = list(_rms_norm.device_caches[0][0].values())
assert len(kept) == 2 and all("cubin" in kernel.asm for kernel in kept)
assert "run" not in vars(_rms_norm)
# A second engine of this process.
_rms_norm.device_caches.clear()
again = Compiler(1)
again.note(lambda: norm(64))
again.wait()
assert compiled[2:] == [("_rms_norm", True)], compiled
"""

UNDER_WAY = """
from concurrent.futures import Future
class Slow(Compiler):
    def submit(self, compile_one):
        future = Future()
        waiting.append((future, compile_one))
        return future

waiting = []
compiler = Slow(1)
compiler.note(lambda: norm(64))
(future, compile_one), = waiting
kernel, = _rms_norm.device_caches[0][0].values()
assert kernel.future is future  # what a launch finds, and waits for
future.set_result(compile_one())
assert "cubin" in kernel.result().asm

compiler.note(lambda: norm(128))
assert len(_rms_norm.device_caches[0][0]) == 2
waiting[1][0].cancel()
compiler.close()
assert len(_rms_norm.device_caches[0][0]) == 1  # the next launch compiles it

def fails():
    norm(256)
    raise KeyError("told")
try:
    compiler.note(fails)
except KeyError:
    assert "run" not in vars(_rms_norm)
"""

# What a step launches behind its logits.
SAMPLING = """
from octavo.kernels.triton.draw import draw
from octavo.kernels.triton.forbid import forbid
from octavo.kernels.triton.greedy import greedy
from octavo.kernels.triton.write_tokens import write_tokens

def sampling():
    logits, number = torch.empty((1, 5003), device="meta"), torch.empty(1, device="meta")
    long = number.long()
    forbid(logits, number.int(), torch.empty((1, 157), dtype=torch.int32, device="meta"))
    greedy(logits)
    draw(logits, long, long, number, 0)
    write_tokens(torch.empty((3, 64), dtype=torch.int32, device="meta"), long, long, long)

compiler = Compiler(2)
compiler.note(sampling)
compiler.wait()
assert compiler.count == 6
"""

LARGE_FIRST = """
from octavo.kernels.triton.narrow import narrow
begun = []
class Told(Compiler):
    def _begin(self):
        assert not any(job.future.running() or job.future.done() for job in self._held)
        self._pool.submit = lambda run: begun.append(run.__self__.size)
        super()._begin()

compiler = Told(1)
def work():
    norm(64)
    norm(128)
    logits, number = torch.empty((1, 5003), device="meta"), torch.empty(1, device="meta")
    narrow(logits, number.int(), number, number)
compiler.note(work)
assert len(begun) == 3 and begun[0] > 5000 > begun[1] == begun[2] > 0, begun
compiler.close()
assert not _rms_norm.device_caches[0][0]  # the next launch compiles it

closed = Compiler(1)
closed.close()
closed.note(lambda: norm(2048))
assert all(kernel.future.cancelled() for _, _, kernel in closed._noted)
assert not _rms_norm.device_caches[0][0]
"""

# The stub in C that launches a kernel is made before it is known what became of the kernel.
STUB = """
import time
from types import SimpleNamespace
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver
texts, at_once, most = [], [0], [0]
def compile_module(src, **_):
    texts.append((threading.current_thread().name, src))
    if texts[-1][0] == "octavo-stub":
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.01)
        at_once[0] -= 1
    return SimpleNamespace(launch=None)
nvidia.compile_module_from_src, nvidia.library_dirs = compile_module, list
driver.active.launcher_cls = nvidia.CudaLauncher
compiler = Compiler(1)
compiler.note(lambda: norm(64))
compiler.wait()
(stub, early), (thread, late) = texts
assert stub == "octavo-stub" and thread.startswith("octavo-compile") and early == late
_rms_norm.device_caches.clear()
again = Compiler(1)
again.note(lambda: norm(64))
again.wait()
assert len(texts) == 3  # what is kept needs no stub ahead
several = Compiler(4)
several.note(lambda: [norm(size) for size in (128, 256, 512, 1024)])
several.wait()
assert len(texts) == 11 and most == [1]  # of one text, one after the other: all but the first will find it
"""

# Products whose weights come early: what is made of tensors without memory is what a true launch looks for, and the
# stub is made once, when it is known how tiles lie in shared memory. All tiles of the weight that have room are asked
# for before the wait for the kernel before, those of the inputs behind it.
EARLY = """
from types import SimpleNamespace
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver
from octavo.kernels.triton.linear_shape import shape_in_parts, shape_whole
from octavo.kernels.triton.linear_some import some_token_linear
texts = []
def compile_module(src, **_):
    texts.append(src)
    return SimpleNamespace(launch=None)
nvidia.compile_module_from_src, nvidia.library_dirs = compile_module, list
driver.active.launcher_cls = nvidia.CudaLauncher

def products(device, tokens):
    sizes = (4096, 1024), (1024, 2048), (6144, 1024)
    qkv, o, gate_up = (torch.zeros(size, dtype=torch.bfloat16, device=device) for size in sizes)
    bias = torch.zeros(4096, dtype=torch.bfloat16, device=device)
    x = torch.zeros((tokens, 1024), dtype=torch.bfloat16, device=device)
    wide = torch.zeros((tokens, 4096), dtype=torch.bfloat16, device=device)
    whole, parts = shape_whole(x, 4096, gate=False), shape_in_parts(wide[:, 2048:], 1024)
    gate = shape_whole(x, 3072, gate=True)
    assert whole.early and parts.early and gate.early
    for added in (None, bias):
        some_token_linear(x, qkv, added, whole)
    some_token_linear(wide[:, 2048:], o, None, parts)
    some_token_linear(x, gate_up, None, gate, "silu")

compiler = Compiler(2)
compiler.note(lambda: products("meta", 64))
assert compiler.count == 4
compiler.note(lambda: [products("cpu", tokens) for tokens in (64, 33, 50)])
assert compiler.count == 4, compiler.count
compiler.wait()
assert len(texts) == 4 and all("CUtensorMap" in text for text in texts)
for *_, made in compiler._noted:
    kernel = made.result()
    before, behind = kernel.asm["ptx"].split("griddepcontrol.wait")
    tiles = before.count("cp.async.bulk.tensor")
    assert tiles >= 4 and behind.count("cp.async.bulk.tensor") >= tiles
    assert "wgmma.mma_async" in behind and "ld.global" not in before
    assert kernel.metadata.shared <= 232_448
"""

# Decode attention that brings its keys early: one warp asks for tiles and waits for no kernel, the others wait once.
ATTENTION = """
from octavo.kernels.context import AttentionMeta, Projected
from octavo.kernels.triton.attention import self_attention

def attend(rows, group, dim):
    def empty(*shape, dtype=torch.int32):
        return torch.empty(shape, dtype=dtype, device="meta")
    half = torch.bfloat16
    meta = AttentionMeta(empty(rows, 64), empty(rows, dtype=torch.int64), empty(rows + 1), empty(rows),
                         empty(rows, dtype=torch.int64), 16, rows, [1] * rows, [190] * rows)
    norm, cos_sin = empty(dim, dtype=half), empty(4096, dim, dtype=torch.float32)
    qkv = empty(rows, (8 * group + 16) * dim, dtype=half)
    projected = Projected(qkv, norm, norm, 1e-6, cos_sin, meta.positions, 8 * group, 8, dim)
    self_attention(projected, empty(100, 28, 2, 8, 16, dim, dtype=half)[:, 3], meta, 0.1, None, None)

compiler = Compiler(2)
compiler.note(lambda: [attend(16, group, 128) for group in (2, 8)])
assert compiler.count == 2
compiler.note(lambda: [attend(rows, group, 128) for group in (2, 8) for rows in (1, 3)])
assert compiler.count == 2
compiler.wait()
for *_, made in compiler._noted:
    ptx, kernel = made.result().asm["ptx"], made.result()
    assert ptx.count("griddepcontrol.wait") == 1 and ptx.count("cp.async.bulk.tensor") == 32
    assert kernel.metadata.shared <= 232_448 and "wgmma.mma_async" in ptx
compiler.note(lambda: [attend(16, 7, 64), attend(17, 2, 96)])
assert compiler.count == 7  # the prologue and attention without its work; the prologue, plain attention, its sum
"""

# Prefill attention: steps of all sizes share a kernel, and its products are as wide as tiles are.
PREFILL = """
from octavo.kernels.context import AttentionMeta
from octavo.kernels.triton.attention import paged_attention

def attend(lengths, past, group=2, window=None):
    def empty(*shape, dtype=torch.int32):
        return torch.empty(shape, dtype=dtype, device="meta")
    rows, tokens, half = len(lengths), sum(lengths), torch.bfloat16
    meta = AttentionMeta(empty(rows, 64), empty(tokens, dtype=torch.int64), empty(rows + 1), empty(rows),
                         empty(tokens, dtype=torch.int64), 16, rows, lengths, [past + each for each in lengths])
    q = empty(tokens, 8 * group, 128, dtype=half)
    paged_attention(q, empty(100, 28, 2, 8, 16, 128, dtype=half)[:, 3], meta, 0.1, window, None)

compiler = Compiler(2)
compiler.note(lambda: [attend([300] * 16, 0), attend([512] * 48, 100)])
compiler.wait()
(twins,) = [made.result() for *_, made in compiler._noted]
ptx = twins.asm["ptx"]
assert ptx.count("wgmma.mma_async") == 2 * 3 * 8 * 2 == ptx.count("wgmma.mma_async.sync.aligned.m64n128k16")
assert twins.metadata.shared <= 232_448
compiler.note(lambda: attend([64], 900))  # cut into pieces, which are added up
assert compiler.count == 2
compiler.note(lambda: [attend([64, 99], 900, window=100), attend([3, 3], 90)])
assert compiler.count > 2
"""

TOO_LATE = """
from octavo.base.errors import EngineError
norm_made = rms_norm
try:
    compile_for(Target((8, 0), 108, 166_912))
except EngineError as error:
    assert "already" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize(
    "code",
    [COMPILED, UNDER_WAY, SAMPLING, LARGE_FIRST, STUB, EARLY, ATTENTION, PREFILL, TOO_LATE],
    ids=["compiled", "under way", "sampling", "large first", "stub", "early", "attention", "prefill", "too late"],
)
def test_kernels_are_compiled_by_others(code, tmp_path):
    run_for_an_h200(code, tmp_path)


def run_for_an_h200(code: str, folder: Path) -> None:
    """Run code that follows `FOR_AN_H200`, with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", FOR_AN_H200 + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
