"""The configuration tree from flat keywords in vLLM's names, for ``LLM(model, max_model_len=4096)``."""

from typing import Any

import msgspec

from octavo.base.args import options_of
from octavo.base.config import EngineConfig
from octavo.base.errors import UnknownName


def engine_config(**given: Any) -> EngineConfig:
    """Every keyword is the name of one field of the tree, checked as its flag would be.

    Raises UnknownName with the nearest known names, ConfigError for a value out of bounds.
    """
    options = {option.name: option for option in options_of([EngineConfig])}
    tree: dict[str, Any] = {}
    for name, value in given.items():
        option = options.get(name)
        if option is None:
            raise UnknownName("argument", name, options)
        node = tree
        for part in option.path[:-1]:
            node = node.setdefault(part, {})
        node[option.path[-1]] = option.convert(value, name)
    return msgspec.convert(tree, EngineConfig)
