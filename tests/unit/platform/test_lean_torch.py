"""torch in parts: what is left for later stays out, and is whole as soon as anybody wants something of it."""

import subprocess
import sys

import pytest

SKIPPED = 77
BEGIN = f"""
import sys
from octavo.platform import lean_torch
lean_torch.no_gpu = lambda: True
if not lean_torch.import_torch():
    sys.exit({SKIPPED})
import torch
waiting = lambda: {{name for name in lean_torch.LATER if type(sys.modules.get(name)) is lean_torch.Later}}
"""
USES = {
    "_prims.rng_prims": "torch.Generator().manual_seed(3); import torch._prims.rng_prims; torch.Generator()",
    "_refs": "import torch._refs; torch._refs.add",
    "_decomp": "import torch._decomp; torch._decomp.decomposition_table",
    "_higher_order_ops": "assert torch.cond(True, lambda: 1, lambda: 0, ()) == 1",
    "_inductor": "import torch._inductor",
    "testing._comparison": "assert torch.testing._comparison.default_tolerances(torch.ones(2))[0] > 0",
    "autograd.gradcheck": "assert torch.autograd.gradcheck(torch.sin, torch.ones(1, dtype=float, requires_grad=True))",
    "testing": "torch.testing.assert_close(torch.ones(2), torch.ones(2))",
    "distributions": "assert torch.distributions.Normal(0.0, 1.0).sample().shape == ()",
    "optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "optim": "torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.1).step()",
    "utils.data": "from torch.utils.data import DataLoader; assert len(list(DataLoader([1, 2, 3]))) == 3",
    "export": "from torch.export import Dim; assert Dim('n').__name__ == 'n'",
    "nn.quantized": "import torch.nn.quantized.dynamic as d; assert d.Linear and torch.nn.quantized.FloatFunctional()",
    "masked": "assert torch.masked.sum(torch.ones(3), mask=torch.tensor([True, False, True])) == 2",
    "func": "assert torch.func.grad(lambda x: x * x)(torch.tensor(3.0)) == 6",
    "func.vmap": "assert torch.vmap(torch.sum)(torch.ones(2, 3)).tolist() == [3, 3]",
    "nested": "assert torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).is_nested",
    "compiler": "assert not torch.compiler.is_compiling()",
    "profiler": "torch.profiler.profile().start",
    "fx": "import torch.fx; assert torch.fx.symbolic_trace(torch.nn.ReLU())(torch.ones(2)).sum() == 2; torch.func.vmap",
    "torchgen": "from torchgen.model import FunctionSchema; assert FunctionSchema",
    "_meta_registrations": "assert torch._meta_registrations.meta_mm(torch.ones(2, 3), torch.ones(3, 4)) is not None",
}


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED:
        pytest.skip("this torch was not tried")
    assert done.returncode == 0, done.stderr


def test_nothing_of_it_is_loaded_by_the_engine() -> None:
    run(
        "import octavo.engine.ahead\n"
        "x = torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))\n"
        "there = {name for name in lean_torch.LATER if name in sys.modules}\n"
        "assert x.sum() == 24 and waiting() == there and len(there) > 20, there - waiting()"
    )


@pytest.mark.parametrize("name", USES)
def test_each_is_whole_when_it_is_used(name: str) -> None:
    run(f"{USES[name]}\nassert 'torch.{name}' not in waiting()")


@pytest.mark.parametrize("change", ["no_gpu = lambda: False", "_version = lambda: '99.0.1'"])
def test_where_a_gpu_may_be_and_with_another_torch_nothing_changes(change: str) -> None:
    code = f"""
import sys
from octavo.platform import lean_torch
lean_torch.{change}
before = list(sys.meta_path)
assert not lean_torch.import_torch() and sys.meta_path == before
import torch
assert type(torch.export) is not lean_torch.Later
"""
    subprocess.run([sys.executable, "-c", code], check=True)
