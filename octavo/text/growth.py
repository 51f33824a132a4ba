"""How large the result of a template's operation would be, charged before the operation runs."""

import re
from collections.abc import Iterable
from typing import Any

from octavo.text.budget import Budget, LimitReached, current

MAX_COUNT = 100_000  # largest whole number that a call or filter takes as a width, a count or an indent
MAX_INT_BITS = 4096
# A width that is huge, or that an argument gives.
WIDE_PERCENT = re.compile(r"%(?:\([^()]*\))?[-+ #.\d]*(?:\*|\d{5})")
WIDE_FIELD = re.compile(r"\{[^{}]*:[^{}]*(?:\d{5}|\{)")
_MAX_FORMAT = 4096  # characters of a format string
_GROWING = frozenset({"replace", "join", "translate", "format", "format_map", "expandtabs"})


def check_json(value: Any) -> None:
    """Refuse a value that would be too long as JSON."""
    budget = current()
    budget.step()
    budget.spend(budget.weigh(value))


def check_width(value: Any) -> None:
    """Refuse an indent, separator or date format that would blow text up."""
    too_wide = isinstance(value, int) and value > 64
    too_long = isinstance(value, str) and (len(value) > 256 or re.search(r"\d{3}", value) is not None)
    if too_wide or too_long:
        raise LimitReached("the chat template formats with too large a width")


def check_counts(args: Iterable[Any]) -> None:
    for value in args:
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise LimitReached("the chat template uses too large a number")


def check_method(budget: Budget, name: str, text: str | bytes, args: tuple[Any, ...]) -> None:
    """Size a string method before it runs."""
    if name not in _GROWING:
        return
    sizes = [len(arg) if isinstance(arg, str | bytes) else budget.weigh(arg) for arg in args]
    if name == "replace" and len(args) >= 2:
        budget.spend(len(text) + _occurrences(text, args[0]) * sizes[1])
    elif name == "join" and args:
        count = len(args[0]) if hasattr(args[0], "__len__") else MAX_COUNT
        budget.spend(sizes[0] + count * len(text))
    elif name == "expandtabs":
        budget.spend(len(text) * max([8, *(arg for arg in args if isinstance(arg, int))]))
    elif name == "translate":
        budget.spend(len(text) * max(1, sum(sizes)))
    else:
        budget.spend(len(text) + sum(sizes))


def check_filter(budget: Budget, name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Size a filter before it runs."""
    size = budget.weigh(value)
    if name == "replace" and len(args) >= 2:
        size += _occurrences(str(value), args[0]) * budget.weigh(args[1])
    elif name == "join" and isinstance(value, list):
        size += len(value) * max([0, *(len(arg) for arg in args if isinstance(arg, str))])
    elif name in ("indent", "wordwrap"):
        widths = [arg if isinstance(arg, int) else len(arg) for arg in args if isinstance(arg, int | str)]
        lines = str(value).count("\n") + 1 if name == "indent" else size
        size += lines * max([4, *widths])
    elif name == "format":
        check_format(str(value), WIDE_PERCENT)
        size += (str(value).count("%") + 1) * sum(map(budget.weigh, args))
    elif name == "sum" and any(not isinstance(arg, int | float | str | None) for arg in args):
        raise LimitReached("the chat template sums lists")
    budget.spend(size)


def check_format(text: str, wide: re.Pattern[str]) -> None:
    if len(text) > _MAX_FORMAT or wide.search(text):
        raise LimitReached("the chat template formats with too large a width")


def _occurrences(text: str | bytes, part: Any) -> int:
    if not isinstance(part, type(text)):
        return 0
    return text.count(part)  # type: ignore[arg-type]


def check_binop(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if operator == "+":
        if isinstance(left, str | list | tuple):
            budget.spend(budget.weigh(left) + budget.weigh(right))
    elif operator == "*":
        check_product(budget, left, right)
    elif operator == "**":
        bits = abs(left).bit_length() if isinstance(left, int) else 64
        if not isinstance(right, int | float) or bits * abs(right) > MAX_INT_BITS:
            raise LimitReached("the chat template uses too large a number")
    elif isinstance(left, str | bytes):
        check_format(left if isinstance(left, str) else left.decode("latin-1"), WIDE_PERCENT)
        budget.spend(len(left) + (str(left).count("%") + 1) * budget.weigh(right))


def check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitReached("the chat template uses too large a number")
        return
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
            budget.spend(budget.weigh(value) * max(count, 1))
