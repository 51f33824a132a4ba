"""A Jinja sandbox whose time and memory are bounded, for chat templates out of files that nobody vouches for.

jinja2's own sandbox keeps a template from the interpreter's insides and limits ``range``; it does not stop
``'a' * 10**9``, doubling by ``x ~ x``, ``ljust(10**9)`` or nested loops. Here each loop turn, call and filter is a
step that looks at the clock, and every operation that can make much out of little is sized before it runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo.text.budget import CONTAINERS, current, rendering
from octavo.text.growth import WIDE_FIELD, check_binop, check_counts, check_filter, check_format, check_method

# Filters that hand their items on as they are; all others turn a container into text.
_NATIVE = frozenset({"attr", "default", "d", "map", "select", "reject", "selectattr", "rejectattr"})
_NATIVE |= {"list", "length", "count", "first", "last", "min", "max", "items", "dictsort"}
_NATIVE |= {"sort", "unique", "reverse", "groupby", "batch", "slice"}
# Slow on long text, random, or about web pages; no chat template uses them.
_REMOVED_FILTERS = ("urlize", "pprint", "random", "xmlattr", "filesizeformat", "striptags", "wordwrap")
_LOCALS = ("_loop_vars", "_block_vars", "caller")  # jinja2's own arguments


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
        budget = current()
        budget.step()
        budget.spend(chars)
        return ""

    def octavo_concat(self, *parts: Any) -> str:
        """The ``~`` operator."""
        budget = current()
        budget.step()
        budget.spend(sum(map(budget.weigh, parts)))
        return "".join(map(str, parts))

    def octavo_literal(self, value: Any) -> Any:
        """A list, tuple or dict as it is made."""
        budget = current()
        budget.step()
        budget.spend(budget.weigh(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.step()
        check_binop(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if owner is self:
            return function(*args)
        budget = current()
        budget.step()
        if not isinstance(function, Macro):
            given = (*args, *(value for name, value in kwargs.items() if name not in _LOCALS))
            if isinstance(owner, str | bytes | int | float):
                check_counts(given)
            if isinstance(owner, str | bytes):
                name = getattr(function, "__name__", "")
                if name == "join" and args and not hasattr(args[0], "__len__"):
                    args = given = (list(args[0]),)
                check_method(budget, name, owner, given)
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
            budget = current()
            check_format(text.replace("{{", ""), WIDE_FIELD)
            fields = text.count("{") + 1
            budget.spend(len(text) + fields * sum(map(budget.weigh, (*args, *kwargs.values()))))
            return wrapped(*args, **kwargs)

        return bounded


class _Bounded:
    """Wraps filters: keeps jinja2's marks on them, charges for what goes in and comes out."""

    @staticmethod
    def wrap(name: str, function: Any) -> Any:
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = current()
            budget.step()
            passed = args[1:] if getattr(function, "jinja_pass_arg", None) is not None else args
            value, rest = passed[0] if passed else None, (*passed[1:], *kwargs.values())
            if name not in ("default", "d"):
                check_counts(rest)
            if name not in _NATIVE:
                if name in ("join", "sum") and isinstance(value, Iterator | range):
                    value = list(value)
                    args = (*args[: len(args) - len(passed)], value, *passed[1:])
                check_filter(budget, name, value, rest)
            result = function(*args, **kwargs)
            budget.spend(budget.weigh(result) if not isinstance(result, CONTAINERS) else len(result))
            return result

        bounded.__dict__.update(getattr(function, "__dict__", {}))
        return bounded


def _finalize(value: Any) -> Any:
    if rendering():  # not while constants are folded at compile time
        budget = current()
        budget.spend(budget.weigh(value))
    return value


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
