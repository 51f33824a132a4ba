"""A start gone through on paper: what would be launched is noted, and nothing that imports take long for is needed."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from worker_toy import layout, resolved

from octavo.kernels.choose import reference
from octavo.models.arch import Architecture, Attention, Layer, Mlp, Rope
from octavo.worker import rehearsal
from octavo.worker.rehearsal import Part, Rehearsal

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys
from concurrent.futures import Future
import torch
from octavo.kernels.triton.absent import compile_for
from octavo.kernels.triton.target import Target
compile_for(Target((9, 0), 132, 232_448))
from octavo.base.config import Resolved
from octavo.base.specs import KVLayout, group_layers
from octavo.kernels.choose import reference
from octavo.kernels.triton import table
from octavo.kernels.triton.compile import Compiler
from octavo.models.arch import Architecture, Attention, Layer, Mlp, Rope
from octavo.worker.rehearsal import Part, rehearse

class Never(Compiler):
    def submit(self, compile_one):
        return Future()

MAX_TOKENS, VOCABULARY, HIDDEN = SIZES
meta = torch.device("meta")
ops = table.overlay(reference(meta), meta)
attention = Attention(num_heads=8, num_kv_heads=4, head_dim=64, scale=0.125, rope=Rope(dim=64), qk_norm="head")
wide = Layer(attention=attention, mlp=Mlp(intermediate_size=1024))
near = Layer(attention=Attention(num_heads=8, num_kv_heads=4, head_dim=64, scale=0.125, rope=Rope(dim=64), window=64),
             mlp=Mlp(intermediate_size=1024))
arch = Architecture(family="toy", vocab_size=VOCABULARY, hidden_size=HIDDEN, layers=(wide, wide, near, near),
                    max_position=4096, dtype="bfloat16", norm_eps=1e-6)
resolved = Resolved(device="cuda", dtype="bfloat16", max_model_len=4096, max_num_seqs=64,
                    max_num_batched_tokens=MAX_TOKENS, depth=2, threads=1, load_format="dummy", block_size=16, notes=[])
layout = KVLayout(group_layers(arch.kv_specs()), 16, 2, 2)
scenes = rehearse(ops, Part(arch, resolved, layout, torch.bfloat16, 16, CAPTURE))
compiler, counts, said = Never(1), [], []
"""

ALL = """
while (scene := compiler.note(lambda: next(scenes, None))) is not None:
    said.append(scene)
    counts.append(compiler.count)
names = [kernel.fn.__name__ for kernel in compiler._kernels for _ in (kernel.device_caches or {0: [{}]})[0][0]]
assert said[0] == "start" and said[-1] == "last room", said
missing = {"_prefill", "_twins", "_join", "_decode", "_decode_early", "_merge", "_early", "_prologue",
           "_rms_norm", "_add_rms_norm", "_best_of_part", "_best_of_parts", "_weigh_part", "_draw", "_forbid",
           "_write_tokens"} - set(names)
assert not missing, missing
assert counts[0] == len(names) - ROOMS_ADD, (counts, names)
assert names.count("_decode") == 2  # with a window and without
assert not {"torch._dynamo", "sympy", "torch._inductor"} & set(sys.modules)
"""


# The start's own steps by the true runner, on tensors of the host, whose launches are noted as well. Logits and
# positions are so many that they take several slabs; prompts are too short for dense attention.
TRUE_STEPS = """
from octavo.models.decoder import build
from octavo.platform.cpu import CpuPlatform
from octavo.worker import scratch
from octavo.worker.assemble import build_runner

class Host(CpuPlatform):
    name = "not the CPU"

def run():
    host, most = Host(), resolved.max_num_batched_tokens
    model = build(arch, ops, torch.bfloat16, host.device, max_position=64, empty=host.zeros)
    runner = build_runner(host, ops, model, layout, resolved, arch.vocab_size, capture=True, group=2)
    first, small = scratch.smallest_plan(layout), scratch.small_plan(layout, 16)
    largest = scratch.largest_plan(layout, resolved.max_num_seqs, most, resolved.max_model_len)
    for plan in (first, scratch.drop_plan(first), largest, scratch.drop_plan(largest), small, scratch.next_plan(small)):
        runner.forward(plan)
        runner.sample({}).result()

assert compiler.note(lambda: next(scenes, None)) == "start"
noted = compiler.count
compiler.note(run)
missed = [(kernel.fn.__name__, key) for cache, key, _ in compiler._noted[noted:] for kernel in compiler._kernels
          if kernel.device_caches and kernel.device_caches[0][0] is cache]
assert noted > 20 and not missed, missed
"""


def test_a_start_launches_nothing_that_was_not_noted(tmp_path):
    pytest.importorskip("triton")
    sizes = "600, 151_936, 64"
    run_script(SCRIPT.replace("CAPTURE", "True").replace("SIZES", sizes) + TRUE_STEPS, tmp_path)


@pytest.mark.parametrize("capture", [True, False])
def test_all_kernels_of_a_start_are_noted(capture, tmp_path):
    pytest.importorskip("triton")
    rooms = "(counts[-1] - counts[0])"
    code = SCRIPT.replace("CAPTURE", str(capture)).replace("SIZES", "2048, 4096, 512")
    code += ALL.replace("ROOMS_ADD", rooms)
    run_script(code + f"assert {'counts[-1] > counts[0]' if capture else 'len(counts) == 2'}, counts\n", tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was compiled here


def run_script(code, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


class Compiler:
    """Runs what it is to note."""

    def __init__(self):
        self.calls = 0
        self.waited = 0
        self.closed = False
        self.blocked = None

    def note(self, work):
        self.calls += 1
        if self.blocked is not None and self.calls > 1:
            self.blocked.wait(10)
        return work()

    def wait(self):
        self.waited += 1
        raise RuntimeError("no kernel came of it")

    def close(self):
        self.closed = True


def part():
    return Part(arch(), resolved(), layout(), torch.float32, 4, True)


def arch():
    attention = Attention(num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0, rope=Rope(dim=8))
    layers = tuple([Layer(attention=attention, mlp=Mlp(intermediate_size=16))] * 3)
    return Architecture(
        family="toy", vocab_size=50, hidden_size=16, layers=layers, max_position=64, dtype="float32", norm_eps=1e-6
    )


def test_the_first_scene_is_waited_for_and_the_others_are_not(monkeypatch):
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_: iter(["start", "room", "room"]))
    compiler = Compiler()
    compiler.blocked = threading.Event()
    played = Rehearsal(SimpleNamespace(), part(), compiler)
    played.first_done()
    played.close()
    assert compiler.closed
    compiler.blocked.set()


def test_a_start_that_takes_longer_has_its_own_kernels_first(monkeypatch):
    monkeypatch.setattr(rehearsal, "PATIENCE_S", 0.01)
    done = threading.Event()
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_: iter_then(["start", "room"], done))
    compiler = Compiler()
    played = Rehearsal(SimpleNamespace(), part(), compiler)
    assert done.wait(10)
    assert compiler.waited == 1
    played.close()


def iter_then(scenes, done):
    yield from scenes
    done.set()


def test_a_rehearsal_that_fails_holds_nobody_up(monkeypatch):
    def fails(*_):
        raise RuntimeError("torch has changed")
        yield

    monkeypatch.setattr(rehearsal, "rehearse", fails)
    Rehearsal(SimpleNamespace(), part(), Compiler()).first_done()


def test_layers_are_rehearsed_until_all_kinds_were_seen():
    plain = arch()
    assert rehearsal._enough(plain) == 2
    other = Layer(attention=plain.layers[0].attention, mlp=Mlp(intermediate_size=32))
    mixed = Architecture(
        **{name: getattr(plain, name) for name in plain.__struct_fields__} | {"layers": (*plain.layers, other, other)}
    )
    assert rehearsal._enough(mixed) == 5
    single = Architecture(
        **{name: getattr(plain, name) for name in plain.__struct_fields__} | {"layers": plain.layers[:1]}
    )
    assert rehearsal._enough(single) == 1


def test_the_reference_has_nothing_to_compile():
    assert reference(torch.device("cpu")).compiler is None
