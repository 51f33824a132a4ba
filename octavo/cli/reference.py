"""The reference page of all flags, written from the same structs that make them (docs/reference/flags.md)."""

from collections.abc import Iterable

from octavo.base.args import Option, options_of
from octavo.base.config import OctavoConfig
from octavo.cli import chat, compile, complete, doctor, plan, run_batch, serve, sleep, top, wake
from octavo.cli.bench import BENCHMARKS
from octavo.cli.command import Command
from octavo.cli.help import by_section
from octavo.cli.key import ACTIONS

HEAD = """# Flags

*This page is made by `make docs` from the structs that the flags come from.*

Every option can be given in four ways; the first that is there wins: a flag, an environment variable, a key of the YAML
file named by `--config`, the default. Keys are the flags' names without the dashes before them (`max-model-len: 8192`),
flat or under their section's name, each once. Whole numbers may be written as people do: `25.6k` is 25,600, `4K` is
4,096, `24GiB` is what it says. `auto` or `none` unsets what may be unset. Lists take several values and may be given
again.
"""

SERVER_SECTIONS = ("serve", "limits")
ENGINE_COMMANDS = "`serve`, `chat`, `complete`, `run-batch`, `plan`, `compile`, `bench latency` and `bench throughput`"


def page() -> str:
    """The whole page as Markdown."""
    tree = by_section(options_of([OctavoConfig]))
    parts = [HEAD, f"## The engine\n\nTaken by {ENGINE_COMMANDS}.\n"]
    parts += [_section(name, options) for name, options in tree.items() if name not in SERVER_SECTIONS]
    parts.append("## The server\n\nTaken by `serve`.\n")
    parts.append(_table(tree["serve"]))
    parts.append(_section("limits", tree["limits"]))
    parts.append("## Each command's own\n")
    parts += [_command(command, set(tree)) for command in commands() if command is not serve.COMMAND]
    return "\n".join(parts)


def commands() -> list[Command]:
    """All commands that take flags, `bench` by its parts."""
    return [
        serve.COMMAND,
        chat.COMMAND,
        complete.COMMAND,
        sleep.COMMAND,
        wake.COMMAND,
        run_batch.COMMAND,
        *BENCHMARKS.values(),
        plan.COMMAND,
        compile.COMMAND,
        top.COMMAND,
        *ACTIONS.values(),
        doctor.COMMAND,
    ]


def _command(command: Command, shared: Iterable[str]) -> str:
    sections = by_section(options_of(command.roots))
    own = [option for name, options in sections.items() if name not in shared for option in options]
    place = f" [{command.positional.upper()}]" if command.positional else ""
    return f"### octavo {command.name}{place}\n\n{command.summary}\n\n{_table(own)}"


def _section(name: str, options: list[Option]) -> str:
    return f"### {name}\n\n{_table(options)}"


def _table(options: list[Option]) -> str:
    lines = ["| flag | meaning | takes | default | variable |", "|---|---|---|---|---|"]
    for option in options:
        flags = "<br>".join(f"`{flag}`" for flag in option.flags)
        takes = option.takes + (", several" if option.is_list else "")
        cells = (flags, option.description, takes, option.default_text, f"`{option.variable}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
