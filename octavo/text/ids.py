"""Looking at many token ids at once, at the speed of C: a long prompt has tens of thousands."""

from array import array
from typing import Any

import msgspec
import numpy as np


def are_numbers(ids: Any) -> bool:
    """Whether this is a list of whole numbers and nothing else, truth values excepted."""
    if not isinstance(ids, list):
        return False
    try:
        msgspec.convert(ids, list[int])
    except msgspec.ValidationError:
        return False
    return True


def are_below(ids: Any, bound: int) -> bool:
    """Whether this is a list of whole numbers from 0 to below `bound`."""
    if not are_numbers(ids):
        return False
    try:
        return not ids or int(np.frombuffer(array("I", ids), dtype=np.uintc).max()) < bound
    except OverflowError:
        return False
