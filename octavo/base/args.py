"""Command-line arguments from msgspec structs: one definition gives flag, variable, file key, help and reference.

A field ``max_model_len: Annotated[int | None, doc("...", ge=1)] = None`` becomes ``--max-model-len``, the variable
``OCTAVO_MAX_MODEL_LEN`` and the key ``max-model-len`` of a ``--config`` file. The command line wins over the
environment, the environment over the file, the file over the default.
"""

import argparse
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from octavo.base.errors import ConfigError, UnknownName
from octavo.base.human import parse_int

MAX_CONFIG_BYTES = 1 << 20
MAX_INT = (1 << 63) - 1  # what goes to another process
# What vLLM calls it; ours wins. Who moves a server over must not end up without a key.
VLLM_VARIABLES = {"api_key": "VLLM_API_KEY"}
ALIASES = {"tensor_parallel_size": "-tp", "input_file": "-i", "output_file": "-o"}


@dataclass(frozen=True, slots=True)
class Option:
    """One field of one struct, seen from the command line."""

    root: int  # index of the root struct that holds it
    path: tuple[str, ...]  # attribute names from the root to the field, the field's own last
    section: str
    kind: Any  # int, float, bool, str or a Literal; the item's for a list
    is_list: bool
    optional: bool  # None is a value
    meta: Meta
    default: Any

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """All spellings; a switch has its opposite."""
        names = [self.flag, *([ALIASES[self.name]] if self.name in ALIASES else [])]
        return [*names, self.opposite] if self.opposite else names

    @property
    def opposite(self) -> str | None:
        """The flag that turns a switch off. One whose name says no already has none."""
        return "--no-" + self.flag[2:] if self.kind is bool and not self.name.startswith("no_") else None

    @property
    def variable(self) -> str:
        return "OCTAVO_" + self.name.upper()

    @property
    def variables(self) -> list[str]:
        """All that are looked at, ours first."""
        return [self.variable, *([VLLM_VARIABLES[self.name]] if self.name in VLLM_VARIABLES else [])]

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def takes(self) -> str:
        """What a value looks like, in words: ``a whole number from 4 to 256``."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "a whole number", float: "a number", bool: "true or false"}.get(self.kind, "text")
        return noun + _bounds(self.meta)

    @property
    def default_text(self) -> str:
        if self.default is None:
            return "unset"
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, list):
            return ", ".join(map(str, self.default)) or "none"
        return str(self.default) or "none"

    def convert(self, value: object, source: str) -> Any:
        """A value from text or from YAML, checked. Raises ConfigError of one line that names `source`."""
        if self.is_list:
            items = value if isinstance(value, list) else [value]
            return [self._convert_one(item, source) for item in items]
        return self._convert_one(value, source)

    def _convert_one(self, value: object, source: str) -> Any:
        if self.optional and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
            return None
        if self.optional and self.kind in (int, float, bool) and value == "auto":
            return None
        try:
            if self.kind is int and isinstance(value, str):
                value = parse_int(value)
            if isinstance(value, bool) and self.kind is not bool:
                raise ValueError("a switch is not a value")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("not finite")
            result = msgspec.convert(value, Annotated[self.kind, self.meta], strict=not isinstance(value, str))
            if isinstance(result, float) and not math.isfinite(result):
                raise ValueError("not finite")
            if isinstance(result, int) and result > MAX_INT:
                raise ConfigError(f"{source}: {_short(value)} is more than any machine has")
            if self.optional and result == "":
                raise ConfigError(f"{source} is empty: leave it out, or give it a value")
            if isinstance(result, str) and not _is_text(result):
                raise ConfigError(f"{source} takes UTF-8 text without zero bytes, got {_short(value)}")
            return result
        except (msgspec.ValidationError, ValueError):
            raise ConfigError(f"{source} takes {self.takes}, got {_short(value)}{self._near(value)}") from None

    def _near(self, value: object) -> str:
        near = get_close_matches(str(value), self.choices, n=1)
        return f"; did you mean {near[0]}?" if near else ""


def options_of(roots: Sequence[type[Struct]]) -> list[Option]:
    """The options of several config structs together, in the order they are written down."""
    options = [option for index, root in enumerate(roots) for option in _walk(index, root, ())]
    names = [option.name for option in options]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"fields of one command share a name: {sorted(twice)}")
    return options


def parse(
    argv: Sequence[str],
    roots: Sequence[type[Struct]],
    positional: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Any]:
    """One struct a root, filled from defaults, ``--config`` file, environment and `argv`.

    `positional` names a field whose value may stand without its flag. Raises ConfigError.
    """
    options = {option.name: option for option in options_of(roots)}
    given = _from_argv(argv, options, positional)
    values: dict[str, Any] = {}
    config = given.pop("config", None)
    if config is not None:
        values |= _from_file(config, options)
    for option in options.values():
        variable = next((name for name in option.variables if environ.get(name)), None)
        if variable is not None:
            text = environ[variable]
            value = text.split(",") if option.is_list else text
            values[option.name] = option.convert(value, variable)
    for name, value in given.items():
        values[name] = options[name].convert(value, options[name].flag)
    return _build(roots, options, values)


def changed(config: Struct) -> dict[str, Any]:
    """Every field of the tree that differs from its default, by its own name."""
    fields = {}
    for option in options_of([type(config)]):
        value: Any = config
        for name in option.path:
            value = getattr(value, name)
        if value != option.default:
            fields[option.name] = value
    return fields


def to_argv(config: Struct) -> list[str]:
    """The flags that give `config` again."""
    argv = []
    for name, value in changed(config).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            argv += [f"--{flag}"] if value else [] if name.startswith("no_") else [f"--no-{flag}"]
        elif isinstance(value, list):
            argv += [f"--{flag}={item}" for item in value]
        else:
            argv.append(f"--{flag}={'none' if value is None else value}")
    return argv


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.replace("argument ", "", 1)
        flag, takes_none, value = message.partition(": ignored explicit argument ")
        raise ConfigError(f"{flag} takes no value, got {value[:80]}" if takes_none else message)


def _from_argv(argv: Sequence[str], options: Mapping[str, Option], positional: str | None) -> dict[str, Any]:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in options.values():
        if option.kind is bool:
            parser.add_argument(option.flag, dest=option.name, action="store_const", const=True)
            if option.opposite:
                parser.add_argument(option.opposite, dest=option.name, action="store_const", const=False)
        elif option.is_list:
            parser.add_argument(option.flag, dest=option.name, action="extend", nargs="+")
        else:
            parser.add_argument(*option.flags, dest=option.name)
    parser.add_argument("--config")
    if positional:
        parser.add_argument("positional", nargs="?")
    found, unknown = parser.parse_known_args([_dashed(word) for word in argv])
    if unknown:
        flags = [flag for option in options.values() for flag in option.flags]
        raise _unknown(unknown[0], flags)
    given = vars(found)
    for name, value in given.items():
        if value == []:  # argparse takes a value that is "--" for the end of flags
            given[name] = ["--"] if options[name].is_list else "--"
    if "positional" in given and positional:
        if positional in given:
            raise ConfigError(f"{options[positional].flag} is given twice: {positional} also stands without its flag")
        given[positional] = given.pop("positional")
    return given


def _dashed(word: str) -> str:
    """``--max_model_len=1`` as ``--max-model-len=1``; vLLM takes both."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown(word: str, flags: Iterable[str]) -> ConfigError:
    if not word.startswith("-"):
        return ConfigError(f"unexpected argument {_short(word)}")
    name = word.partition("=")[0]
    near = get_close_matches(name, list(flags), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "see --help=all"
    return ConfigError(f"unknown flag {name[:80]}; {hint}")


def _from_file(path: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """Keys of a YAML file: flag names, with dashes or underscores, flat or under their section's name."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        twice = _repeated(yaml.compose(text, yaml.SafeLoader))
        tree = yaml.safe_load(text) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: thousands of digits, a 40th of June
        where = getattr(error, "problem_mark", None)
        raise ConfigError(f"{path}: not YAML" + (f", line {where.line + 1}" if where else "")) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values")
    if twice is not None:
        raise ConfigError(f"{path}: {twice} is given twice")
    sections = {option.section for option in options.values()}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        inner = value.items() if isinstance(value, dict) and key in sections else [(key, value)]
        for name, item in inner:
            field = str(name).replace("-", "_")
            if field not in options:
                raise UnknownName(f"key in {path}:", str(name), [o.name.replace("_", "-") for o in options.values()])
            if field in values:
                raise ConfigError(f"{path}: {name} is given twice")
            values[field] = options[field].convert(item, f"{path}: {name}")
    return values


def _repeated(root: Any) -> str | None:
    """A key that stands twice in the file, or in a section of it: YAML itself would take the last. `root`: its node."""
    for level in (root, *(value for _, value in _entries(root))):
        names = [str(key.value) for key, _ in _entries(level)]
        for index, name in enumerate(names):
            if name in names[:index]:
                return name
    return None


def _entries(node: Any) -> list[tuple[Any, Any]]:
    return node.value if getattr(node, "id", "") == "mapping" else []


def _build(roots: Sequence[type[Struct]], options: Mapping[str, Option], values: Mapping[str, Any]) -> list[Any]:
    trees: list[dict[str, Any]] = [{} for _ in roots]
    for name, value in values.items():
        node = trees[options[name].root]
        for step in options[name].path[:-1]:
            node = node.setdefault(step, {})
        node[name] = value
    return [msgspec.convert(tree, root) for tree, root in zip(trees, roots, strict=True)]


def _walk(root: int, struct: type[Struct], path: tuple[str, ...]) -> Iterable[Option]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        annotation, meta = _unwrap(hints[field.name])
        here = (*path, field.name)
        if isinstance(annotation, type) and issubclass(annotation, Struct):
            yield from _walk(root, annotation, here)
            continue
        optional, inner = _without_none(annotation)
        annotation, meta = _unwrap(inner, meta)
        is_list = get_origin(annotation) is list
        kind, meta = _unwrap(get_args(annotation)[0], meta) if is_list else (annotation, meta)
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        section = path[-1] if path else struct.__name__.removesuffix("Options").removesuffix("Config").lower()
        yield Option(root, here, section, kind, is_list, optional, meta, default)


def _unwrap(annotation: Any, outer: Meta | None = None) -> tuple[Any, Meta]:
    """``Annotated[T, meta]`` as its parts; a description of `outer` stands where `meta` has none."""
    outer = outer or Meta()
    if get_origin(annotation) is not Annotated:
        return annotation, outer
    inner, meta = get_args(annotation)
    if meta.description is None:
        meta = Meta(ge=meta.ge, gt=meta.gt, le=meta.le, description=outer.description)  # type: ignore[call-overload]
    return inner, meta


def _without_none(annotation: Any) -> tuple[bool, Any]:
    if get_origin(annotation) not in (Union, UnionType):
        return False, annotation
    inner = [arg for arg in get_args(annotation) if arg is not NoneType]
    if len(inner) != 1:
        raise TypeError(f"an option may be one type or None, not {annotation}")
    return True, inner[0]


def _bounds(meta: Meta) -> str:
    low = f"from {meta.ge}" if meta.ge is not None else f"above {meta.gt}" if meta.gt is not None else ""
    if meta.le is not None:
        return f" {low} to {meta.le}" if meta.ge is not None else f" {low} and at most {meta.le}" if low else ""
    if meta.ge is not None:
        return f" of at least {meta.ge}"
    return f" {low}" if low else ""


def _is_text(value: str) -> bool:
    """Whether it can be told to another process and to the system. What is no UTF-8 comes as lone surrogates."""
    return "\0" not in value and value.encode(errors="replace").decode() == value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
