"""Looking at many token ids at once, at the speed of C: a long prompt has tens of thousands."""

from functools import cache
from typing import Annotated, Any

import msgspec


def are_numbers(ids: Any) -> bool:
    """Whether this is a list of whole numbers and nothing else, truth values excepted."""
    return _fits(ids, list[int])


def are_below(ids: Any, bound: int) -> bool:
    """Whether this is a list of whole numbers from 0 to below `bound`."""
    return _fits(ids, _below(bound))


def _fits(ids: Any, form: Any) -> bool:
    if not isinstance(ids, list):
        return False
    try:
        msgspec.convert(ids, form)
    except msgspec.ValidationError:
        return False
    return True


@cache
def _below(bound: int) -> Any:
    return list[Annotated[int, msgspec.Meta(ge=0, lt=bound)]]
