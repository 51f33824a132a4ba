"""A Jinja sandbox whose time and memory are bounded, for chat templates out of files that nobody vouches for.

jinja2's own sandbox keeps a template from the interpreter's insides and limits ``range``; it does not stop
``'a' * 10**9``, doubling by ``x ~ x``, ``ljust(10**9)`` or nested loops. Here each loop turn, call and filter is a
step that looks at the clock, and every operation that can make much out of little is sized before it runs.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateRuntimeError, nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 5_000_000
MAX_COUNT = 100_000  # largest whole number that a call or filter takes as a width, a count or an indent
MAX_INT_BITS = 4096
_CONTAINERS = (list, tuple, dict, set, frozenset)
# A width that is huge, or that an argument gives.
_WIDE_PERCENT = re.compile(r"%(?:\([^()]*\))?[-+ #.\d]*(?:\*|\d{5})")
_WIDE_FIELD = re.compile(r"\{[^{}]*:[^{}]*(?:\d{5}|\{)")
_MAX_FORMAT = 4096  # characters of a format string
# Filters that hand their items on as they are; all others turn a container into text.
_NATIVE = frozenset({"attr", "default", "d", "map", "select", "reject", "selectattr", "rejectattr"})
_NATIVE |= {"list", "length", "count", "first", "last", "min", "max", "items", "dictsort"}
_NATIVE |= {"sort", "unique", "reverse", "groupby", "batch", "slice"}
# Slow on long text, random, or about web pages; no chat template uses them.
_REMOVED_FILTERS = ("urlize", "pprint", "random", "xmlattr", "filesizeformat", "striptags", "wordwrap")
_LOCALS = ("_loop_vars", "_block_vars", "caller")  # jinja2's own arguments
_GROWING = frozenset({"replace", "join", "translate", "format", "format_map", "expandtabs"})


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
        if not isinstance(value, _CONTAINERS):
            return 32
        size = _expanded(value, {}, 0)
        if size > self.max_chars:
            raise LimitReached("the chat template builds too large a value")
        return size


_budget: ContextVar[Budget] = ContextVar("octavo_template_budget")


def _expanded(value: Any, known: dict[int, int], depth: int) -> int:
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, _CONTAINERS):
        return 8
    if depth > 64:
        raise LimitReached("the chat template nests values too deeply")
    size = known.get(id(value))
    if size is None:
        parts: Iterable[Any] = (
            value if not isinstance(value, dict) else (part for item in value.items() for part in item)
        )
        size = known[id(value)] = 2 + sum(_expanded(part, known, depth + 1) for part in parts)
    return size


class _QuietNamespace(Namespace):
    """A namespace that does not write out what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The environment. Render inside `spending(budget)`, and through `Template.generate`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, optimized=False, **options)
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _QuietNamespace
        self.filters = {name: _Bounded.wrap(name, function) for name, function in self.filters.items()}

    def add_filter(self, name: str, function: Any) -> None:
        """Add a filter that bounds itself."""
        self.filters[name] = function

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _instrument(super()._parse(source, name, filename))

    # Called from compiled templates.

    def octavo_step(self, chars: int) -> str:
        """One turn of a loop whose body holds `chars` of fixed text."""
        budget = _budget.get()
        budget.step()
        budget.spend(chars)
        return ""

    def octavo_concat(self, *parts: Any) -> str:
        """The ``~`` operator."""
        budget = _budget.get()
        budget.step()
        budget.spend(sum(map(budget.weigh, parts)))
        return "".join(map(str, parts))

    def octavo_literal(self, value: Any) -> Any:
        """A list, tuple or dict as it is made."""
        budget = _budget.get()
        budget.step()
        budget.spend(budget.weigh(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.step()
        _check_binop(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if owner is self:
            return function(*args)
        budget = _budget.get()
        budget.step()
        if not isinstance(function, Macro):
            given = (*args, *(value for name, value in kwargs.items() if name not in _LOCALS))
            if isinstance(owner, str | bytes | int | float):
                _check_counts(given)
            if isinstance(owner, str | bytes):
                name = getattr(function, "__name__", "")
                if name == "join" and args and not hasattr(args[0], "__len__"):
                    args = given = (list(args[0]),)
                _check_method(budget, name, owner, given)
        result = super().call(context, function, *args, **kwargs)
        budget.spend(budget.weigh(result))
        return result

    def wrap_str_format(self, value: Any) -> Any:
        """``str.format`` with widths bounded; the sandbox's own wrapper does the rest."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = _budget.get()
            _check_format(text.replace("{{", ""), _WIDE_FIELD)
            fields = text.count("{") + 1
            budget.spend(len(text) + fields * sum(map(budget.weigh, (*args, *kwargs.values()))))
            return wrapped(*args, **kwargs)

        return bounded


class _Bounded:
    """Wraps filters: keeps jinja2's marks on them, charges for what goes in and comes out."""

    @staticmethod
    def wrap(name: str, function: Any) -> Any:
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = _budget.get()
            budget.step()
            passed = args[1:] if getattr(function, "jinja_pass_arg", None) is not None else args
            value, rest = passed[0] if passed else None, (*passed[1:], *kwargs.values())
            if name not in ("default", "d"):
                _check_counts(rest)
            if name not in _NATIVE:
                if name in ("join", "sum") and isinstance(value, Iterator | range):
                    value = list(value)
                    args = (*args[: len(args) - len(passed)], value, *passed[1:])
                _check_filter(budget, name, value, rest)
            result = function(*args, **kwargs)
            budget.spend(budget.weigh(result) if not isinstance(result, _CONTAINERS) else len(result))
            return result

        bounded.__dict__.update(getattr(function, "__dict__", {}))
        return bounded


def spending(budget: Budget) -> "_Spending":
    """Make `budget` the current one inside a ``with``."""
    return _Spending(budget)


class _Spending:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __enter__(self) -> Budget:
        self._token = _budget.set(self._budget)
        return self._budget

    def __exit__(self, *_: object) -> None:
        _budget.reset(self._token)


def check_json(value: Any) -> None:
    """Refuse a value that would be too long as JSON."""
    budget = _budget.get()
    budget.step()
    budget.spend(budget.weigh(value))


def check_width(value: Any) -> None:
    """Refuse an indent, separator or date format that would blow text up."""
    too_wide = isinstance(value, int) and value > 64
    too_long = isinstance(value, str) and (len(value) > 256 or re.search(r"\d{3}", value) is not None)
    if too_wide or too_long:
        raise LimitReached("the chat template formats with too large a width")


def _finalize(value: Any) -> Any:
    budget = _budget.get(None)
    if budget is not None:  # None while constants are folded at compile time
        budget.spend(budget.weigh(value))
    return value


def _check_counts(args: Iterable[Any]) -> None:
    for value in args:
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise LimitReached("the chat template uses too large a number")


def _check_method(budget: Budget, name: str, text: str | bytes, args: tuple[Any, ...]) -> None:
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


def _check_filter(budget: Budget, name: str, value: Any, args: tuple[Any, ...]) -> None:
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
        _check_format(str(value), _WIDE_PERCENT)
        size += (str(value).count("%") + 1) * sum(map(budget.weigh, args))
    elif name == "sum" and any(not isinstance(arg, int | float | str | None) for arg in args):
        raise LimitReached("the chat template sums lists")
    budget.spend(size)


def _check_format(text: str, wide: re.Pattern[str]) -> None:
    if len(text) > _MAX_FORMAT or wide.search(text):
        raise LimitReached("the chat template formats with too large a width")


def _occurrences(text: str | bytes, part: Any) -> int:
    if not isinstance(part, type(text)):
        return 0
    return text.count(part)  # type: ignore[arg-type]


def _check_binop(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if operator == "+":
        if isinstance(left, str | list | tuple):
            budget.spend(budget.weigh(left) + budget.weigh(right))
    elif operator == "*":
        _check_product(budget, left, right)
    elif operator == "**":
        bits = abs(left).bit_length() if isinstance(left, int) else 64
        if not isinstance(right, int | float) or bits * abs(right) > MAX_INT_BITS:
            raise LimitReached("the chat template uses too large a number")
    elif isinstance(left, str | bytes):
        _check_format(left if isinstance(left, str) else left.decode("latin-1"), _WIDE_PERCENT)
        budget.spend(len(left) + (str(left).count("%") + 1) * budget.weigh(right))


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitReached("the chat template uses too large a number")
        return
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
            budget.spend(budget.weigh(value) * max(count, 1))


def _instrument(tree: nodes.Template) -> nodes.Template:
    """Put the step counter into loops, and route ``~`` and literals through the environment."""
    for loop in list(tree.find_all(nodes.For)):
        fixed = sum(len(data.data) for part in loop.body for data in _data(part))
        loop.body.insert(0, nodes.ExprStmt(_own_call("octavo_step", [nodes.Const(fixed)])).set_lineno(loop.lineno))
    _replace(tree)
    return tree


def _replace(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_replaced(entry) if isinstance(entry, nodes.Node) else entry for entry in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _replaced(value))


def _replaced(node: nodes.Node) -> nodes.Node:
    _replace(node)
    if isinstance(node, nodes.Concat):
        return _own_call("octavo_concat", node.nodes).set_lineno(node.lineno)
    growing = isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load")
    if growing and not _constant(node):
        return _own_call("octavo_literal", [node]).set_lineno(node.lineno)
    return node


def _data(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    return (node,) if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)


def _constant(node: nodes.Node) -> bool:
    kinds = (nodes.Const, nodes.Pair, nodes.List, nodes.Tuple, nodes.Dict)
    return all(isinstance(child, kinds) for child in node.find_all(nodes.Node))


def _own_call(name: str, args: Sequence[nodes.Node]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
