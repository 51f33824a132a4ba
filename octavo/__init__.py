"""Octavo: a serving engine for large language models.

Names are loaded when first used, so that ``import octavo`` stays free of torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "LLM": "octavo.llm",
    "SamplingParams": "octavo.base.params",
    "StructuredOutputsParams": "octavo.base.params",
}

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
