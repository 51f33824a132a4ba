"""For pytest (`-p gluon_plugin`): whatever is here, kernels are made for a Hopper GPU of three multiprocessors, and
those in Gluon are gone through by gluon_kit. GLUON_EVERY=n: of the tests every n-th."""

import os

import pytest

from octavo.kernels.triton.absent import compile_for
from octavo.kernels.triton.target import Target

compile_for(Target((9, 0), 3, 232_448))

from gluon_kit import Emulator  # noqa: E402 - kernels look at what they are made for as they are imported

from octavo.kernels.triton import attention_early, attention_prefill, attention_twins, linear_early  # noqa: E402

EMULATOR = Emulator()
for _module, _kernel in (
    (linear_early, "_early"),
    (attention_early, "_decode_early"),
    (attention_twins, "_twins"),
    (attention_prefill, "_join"),
):
    EMULATOR.take_over(_module, _kernel)


# Of other kernels, which only a GPU runs once they are made for one.
OTHERS = (
    "test_what_bulk_copies_cannot_read_is_read_plainly",
    "test_a_fresh_prompt_keeps_dense_attention",
    "test_what_it_is_not_for",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if not item.name.startswith(OTHERS)]
    items[:] = ours[:: int(os.environ.get("GLUON_EVERY", "1"))]
