"""The grammar engines by name, in the order in which they are asked."""

from functools import cache
from importlib.util import find_spec

from octavo.base.registry import Registry

BACKENDS = Registry(
    "grammar engine",
    {
        "llguidance": "octavo.grammar.llguidance:LLGuidance",
        "xgrammar": "octavo.grammar.xgrammar:XGrammar",
    },
)

ORDER = ("llguidance", "xgrammar")
ALIASES = {"guidance": "llguidance"}  # vLLM's names
CHOOSY = ("xgrammar",)  # that see by the form alone what they refuse
REMOVED = ("outlines", "lm-format-enforcer")  # vLLM has these; asked for, the best engine here serves


def choices(name: str) -> list[str]:
    """The engines to try for a request that names `name`, those not installed left out. Raises UnknownName."""
    name = ALIASES.get(name.partition(":")[0], name.partition(":")[0])
    if name == "auto" or name in REMOVED:
        return [each for each in ORDER if _is_there(each)]
    BACKENDS.check(name)
    return [name]


@cache
def _is_there(name: str) -> bool:
    """To look through all folders of packages takes longer than the rest of what a request's coming does."""
    return find_spec(name) is not None
