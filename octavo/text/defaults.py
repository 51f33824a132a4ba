"""Sampling values that a model's generation_config.json recommends."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from octavo.base.errors import UserError
from octavo.base.params import SamplingParams

_NAMES = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


class Defaults(Struct, frozen=True):
    """Values for what a request leaves out; `max_tokens` bounds only requests that set none."""

    values: dict[str, Any] = {}
    max_tokens: int | None = None

    def params(self, **given: Any) -> SamplingParams:
        """SamplingParams of the given fields, the rest from the model."""
        return SamplingParams(**{**self.values, **given})


def read_defaults(generation_config: Mapping[str, Any]) -> Defaults:
    """Defaults from a generation_config.json; values that no request might send are ignored."""
    values: dict[str, Any] = {}
    for name in _NAMES:
        value = generation_config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        try:
            SamplingParams().replace(**{name: value}).checked()
        except UserError:
            continue
        values[name] = int(value) if name == "top_k" else float(value)
    limit = generation_config.get("max_new_tokens")
    usable = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    return Defaults(values, limit if usable else None)
