"""How answers look: Markdown as it grows on a terminal, bare text anywhere else."""

import sys
from collections.abc import Iterable
from typing import Protocol


class View(Protocol):
    """Where a chat shows itself."""

    def answer(self, pieces: Iterable[str]) -> None:
        """Show text as it comes."""
        ...

    def note(self, text: str) -> None:
        """A line about the answer, not part of it."""
        ...


class PlainView:
    """The answer on stdout and nothing else there; notes on stderr."""

    def answer(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class RichView:
    """Finished blocks are set as Markdown for good; the growing one is shown live below them."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()

    def answer(self, pieces: Iterable[str]) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        tail = ""
        with Live(console=self._console, refresh_per_second=12, transient=True) as live:
            for piece in pieces:
                done, tail = split_blocks(tail + piece)
                if done:
                    self._console.print(Markdown(done))
                live.update(Markdown(tail))
        if tail.strip():
            self._console.print(Markdown(tail))

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


def make_view() -> View:
    """Rich on a terminal, plain otherwise."""
    return RichView() if sys.stdout.isatty() else PlainView()


def split_blocks(text: str) -> tuple[str, str]:
    """Cut Markdown after its last finished block: a blank line outside a code fence ends one."""
    fenced, position, cut = False, 0, 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        if not fenced and line.endswith("\n") and not line.strip():
            cut = position
    return text[:cut], text[cut:]
