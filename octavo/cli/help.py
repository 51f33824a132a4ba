"""Help text: a short page by sections, and the whole truth about one section, one flag or all of them."""

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from octavo.base.args import Option, options_of
from octavo.base.errors import UnknownName

if TYPE_CHECKING:
    from octavo.cli.command import Command


def render(command: "Command", topic: str) -> str:
    """The help page of a command. `topic` is "", "all", a section's name, or a flag's."""
    sections = by_section(options_of(command.roots))
    if topic == "":
        return _short_page(command, sections)
    if topic == "all":
        return "\n\n".join([usage(command), *(_full_section(name, sections[name]) for name in sections)])
    if topic in sections:
        return _full_section(topic, sections[topic])
    name = topic.lstrip("-").replace("-", "_")
    flags = {option.name: option for options in sections.values() for option in options}
    if name in flags:
        return _full_option(flags[name])
    raise UnknownName("help topic", topic, ["all", *sections, *(n.replace("_", "-") for n in flags)])


def by_section(options: list[Option]) -> dict[str, list[Option]]:
    """Options under their section's name, in order."""
    sections: dict[str, list[Option]] = {}
    for option in options:
        sections.setdefault(option.section, []).append(option)
    return sections


def usage(command: "Command") -> str:
    """The usage line and what the command does."""
    place = f" [{command.positional.upper()}]" if command.positional else ""
    lines = [f"{bold('usage:')} octavo {command.name}{place} [options]", "", command.summary]
    if command.example:
        lines += ["", f"  {command.example}"]
    return "\n".join(lines)


def bold(text: str) -> str:
    """Bold on a terminal, plain elsewhere."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def _short_page(command: "Command", sections: dict[str, list[Option]]) -> str:
    lines = [usage(command)]
    for name, options in sections.items():
        lines += ["", bold(name)]
        lines += [_row(_spelling(option), _first_sentence(option.description)) for option in options]
    lines += ["", bold("help")]
    lines.append(_row("--config FILE", "Read options from a YAML file; keys are flag names."))
    lines.append(_row("--help=WHAT", f"More about all, one flag, or a section: {', '.join(sections)}."))
    return "\n".join(lines)


def _full_section(name: str, options: list[Option]) -> str:
    return "\n".join([bold(name), *(_full_option(option) for option in options)])


def _full_option(option: Option) -> str:
    facts = f"{option.takes}; default: {option.default_text}; environment: {option.variable}"
    if option.is_list:
        facts = "may be given several times; " + facts
    return f"  {bold(_spelling(option))}\n{_indented(option.description)}\n{_indented(f'({facts})')}"


def _spelling(option: Option) -> str:
    if option.kind is bool:
        return ", ".join(option.flags)
    value = "|".join(option.choices) or {int: "N", float: "X"}.get(option.kind, "TEXT")
    return f"{', '.join(option.flags)} {value}"


def _first_sentence(text: str) -> str:
    sentence, stop, _ = text.partition(". ")
    return sentence + "." if stop else text


def _row(left: str, right: str) -> str:
    first = f"  {left:<32}  " if len(left) <= 32 else f"  {left}\n{' ' * 36}"
    lines = textwrap.wrap(right, _width() - 36) or [""]
    return first + ("\n" + " " * 36).join(lines)


def _indented(text: str) -> str:
    return textwrap.fill(text, _width(), initial_indent=" " * 6, subsequent_indent=" " * 6)


def _width() -> int:
    return max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
