"""What a command is: a name, the structs its flags come from, and what it does with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from octavo.base.args import parse
from octavo.base.config import EngineConfig
from octavo.base.errors import ConfigError, UnknownName
from octavo.cli.help import bold, render


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `run` takes one filled struct a root and returns the exit code."""

    name: str  # as typed after `octavo`
    summary: str
    roots: tuple[type[Struct], ...]
    run: Callable[..., int]
    positional: str | None = None  # the field that may stand without its flag
    example: str = ""

    def __call__(self, argv: Sequence[str]) -> int:
        """Parse and run, or print help. Raises ConfigError for arguments that cannot be."""
        topic = _help_topic(argv)
        if topic is not None:
            print(render(self, topic))
            return 0
        return self.run(*parse(argv, self.roots, self.positional))


def _help_topic(argv: Sequence[str]) -> str | None:
    """What help is asked for: "" for the short page, else a section, a flag or "all"; None for no help."""
    for word in argv:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=")
    return None


def dispatch(name: str, kind: str, commands: Mapping[str, Command], argv: Sequence[str]) -> int:
    """Runs the part of a command that is named first, a `kind` of thing. Raises UnknownName."""
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{bold('usage:')} octavo {name} {kind.upper()} [options]\n")
        print("\n".join(f"  {part:<12} {command.summary}" for part, command in commands.items()))
        return 0 if argv else 2
    if argv[0] not in commands:
        raise UnknownName(kind, argv[0], commands)
    return commands[argv[0]](argv[1:])


def need_model(engine: EngineConfig, command: str) -> None:
    """ConfigError where no model is named. `command` as it is to be typed."""
    if not engine.model.model:
        raise ConfigError(f"which model? octavo {command} takes a folder, a .gguf file or a hub name")
