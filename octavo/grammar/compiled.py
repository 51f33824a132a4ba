"""A constraint that was tried out: how it goes to whoever follows it, and what that makes of it."""

import numpy as np
from msgspec import Struct

from octavo.grammar.base import Backend, Form, Grammar
from octavo.grammar.closing import Closer
from octavo.grammar.closings import Closings
from octavo.grammar.vocabulary import VocabularyTable


class Recipe(Struct, frozen=True, array_like=True):
    """`form` for the engine of grammars that `backend` names, and what was found out about it. `opening`: a short whole
    text in tokens; None if none was found."""

    backend: str
    form: Form
    closings: Closings
    opening: list[int] | None


class Compiled(Struct, frozen=True):
    """What all requests with one constraint share."""

    recipe: Recipe
    grammar: Grammar
    closer: Closer

    @property
    def opening(self) -> list[int] | None:
        return self.recipe.opening

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, about."""
        return self.grammar.num_bytes + 2 * len(self.recipe.form.text) + self.recipe.closings.num_bytes


def build(recipe: Recipe, backend: Backend, vocabulary: VocabularyTable) -> Compiled:
    """Raises Refused."""
    grammar = backend.compile(recipe.form)
    grammar.matcher().fill(np.empty(vocabulary.words, dtype=np.int32))  # what the first mask builds, all share
    return Compiled(recipe, grammar, Closer(vocabulary, recipe.closings, recipe.opening))
