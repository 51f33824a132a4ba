"""Thoughts between two marks at the start of the message: the form of nearly all reasoning models."""

from collections.abc import Collection

from octavo.text.parse.base import Steps
from octavo.text.parse.out import Out
from octavo.text.parse.parser import State
from octavo.text.parse.source import Marks, Source


class Tags:
    """Reads ``open thoughts close``, or ``thoughts close`` where the prompt has opened them.

    `openings` and `closings`: the marks, the usual one first. `always`: the model thinks even where neither the
    prompt nor the model has written the opening mark. `ends`: marks that end the thoughts and are not taken: models
    forget to close them before a call.
    """

    openings: tuple[str, ...] = ("<think>",)
    closings: tuple[str, ...] = ("</think>",)
    ends: tuple[str, ...] = ()
    always = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings of the format."""
        return (*self.openings, *self.closings)

    def recognise(self, template: str, specials: Collection[str]) -> int:
        """Whether the marks are the template's or the vocabulary's."""
        if self.openings[0] in template or self.closings[0] in template:
            return 20
        return 10 if self.openings[0] in specials else 0

    def opened(self, prompt: str) -> bool:
        """Whether a prompt ends inside thoughts."""
        tail = prompt[-64:].rstrip()
        if tail.endswith(self.closings):
            return False
        return tail.endswith(self.openings) or self.always

    def read(self, source: Source, out: Out, state: State) -> Steps[None]:
        """The thoughts, if there are any."""
        source.keep()
        yield from source.space()
        begun = False
        for opening in self.openings:
            begun = begun or (yield from source.skip(opening))
        if not begun and not state.opened:
            out.text(source.kept())
            return
        if begun:
            source.kept()
        else:
            out.reasoning(source.kept())
        state.thinking = True
        mark = yield from source.until(Marks((*self.closings, *self.ends)), out.reasoning)
        if mark in self.ends:
            source.at -= len(mark)
        if mark:
            state.thinking = False
            out.end_thoughts()
