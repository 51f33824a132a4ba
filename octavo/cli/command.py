"""What a command is: a name, the structs its flags come from, and what it does with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from octavo.base.args import parse
from octavo.cli.help import render


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
