"""Looking at many token ids at once, at the speed of C: a long prompt has tens of thousands."""

from array import array
from typing import Any

import msgspec


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
        array("I", ids)  # none is negative, nor beyond 32 bits
    except OverflowError:
        return False
    return not ids or max(ids) < bound
