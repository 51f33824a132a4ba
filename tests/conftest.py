"""Shared by all tests. Without a GPU, Triton kernels run under its interpreter; it must be told before its import."""

import os
from importlib.util import find_spec


def _gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if not _gpu():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
