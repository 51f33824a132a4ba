"""What a chat template may spend: time, steps and characters, counted for one rendering at a time."""

import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError

MAX_STEPS = 5_000_000
MAX_DEPTH = 64
CONTAINERS = (list, tuple, dict, set, frozenset)


class LimitReached(TemplateRuntimeError):
    """The template asked for more than its budget of time, steps or characters."""


class Budget:
    """What one rendering may still spend. `chars` counts every character that operations produce."""

    def __init__(self, max_chars: int, seconds: float) -> None:
        self.max_chars = max_chars
        self.chars = 16 * max_chars
        self.steps = MAX_STEPS
        self.deadline = time.monotonic() + seconds

    def step(self) -> None:
        """Count one step. Raises LimitReached."""
        self.steps -= 1
        if self.steps < 0:
            raise LimitReached("the chat template takes too many steps")
        if time.monotonic() > self.deadline:
            raise LimitReached("the chat template takes too long")

    def spend(self, chars: int) -> None:
        """Charge for a value of this size. Raises LimitReached."""
        self.chars -= chars
        if chars > self.max_chars or self.chars < 0:
            raise LimitReached("the chat template produces too much text")

    def weigh(self, value: Any) -> int:
        """Characters that `value` comes to when written out; what it shares is counted each time."""
        if isinstance(value, str):
            return len(value)
        size = _expanded(value, {}, 0)
        if size > self.max_chars:
            raise LimitReached("the chat template builds too large a value")
        return size


_current: ContextVar[Budget | None] = ContextVar("octavo_template_budget", default=None)


def current() -> Budget:
    """The budget of the rendering in progress. Raises LookupError outside of one."""
    budget = _current.get()
    if budget is None:  # jinja2 folds constants at compile time, and takes this for "not a constant"
        raise LookupError("no template is being rendered")
    return budget


def rendering() -> bool:
    """Whether a rendering is in progress."""
    return _current.get() is not None


def spending(budget: Budget) -> "_Spending":
    """Make `budget` the current one inside a ``with``."""
    return _Spending(budget)


class _Spending:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __enter__(self) -> Budget:
        self._token = _current.set(self._budget)
        return self._budget

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def _expanded(value: Any, known: dict[int, int], depth: int) -> int:
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, CONTAINERS):
        return 24 + (value.bit_length() // 3 if isinstance(value, int) else 0)
    if depth > MAX_DEPTH:
        raise LimitReached("the chat template nests values too deeply")
    size = known.get(id(value))
    if size is None:
        parts: Iterable[Any] = (
            value if not isinstance(value, dict) else (part for item in value.items() for part in item)
        )
        size = known[id(value)] = 2 + sum(_expanded(part, known, depth + 1) for part in parts)
    return size
