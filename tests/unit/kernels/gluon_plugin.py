"""For pytest (`-p gluon_plugin`): whatever is here, kernels are made for a Hopper GPU of three multiprocessors, and
those in Gluon are gone through by gluon_kit. GLUON_EVERY=n: of the tests every n-th."""

import os

from octavo.kernels.triton.absent import compile_for
from octavo.kernels.triton.target import Target

compile_for(Target((9, 0), 3, 232_448))

from gluon_kit import Emulator  # noqa: E402 - kernels look at what they are made for as they are imported

from octavo.kernels.triton import attention_early, linear_early  # noqa: E402

EMULATOR = Emulator()
for _module, _kernel in ((linear_early, "_early"), (attention_early, "_decode_early")):
    EMULATOR.take_over(_module, _kernel)


def pytest_collection_modifyitems(items: list[object]) -> None:
    items[:] = items[:: int(os.environ.get("GLUON_EVERY", "1"))]
