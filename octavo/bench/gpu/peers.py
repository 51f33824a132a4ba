"""Figures of other engines on the same machine, from a table that is kept beside the results."""

from pathlib import Path

import msgspec
from msgspec import Struct, field

from octavo.base.errors import ConfigError


class Peers(Struct, frozen=True, kw_only=True):
    """Point -> engine and version -> figure, in the point's unit."""

    machine: str = ""
    date: str = ""
    what: str = ""
    note: str = ""
    points: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Peers":
        """The table of a machine; an empty one where no peer was measured. Raises ConfigError for a broken one."""
        if not path.exists():
            return cls()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: not a table of peers: {error}") from None

    def text(self, point: str) -> str | None:
        """``"vLLM 0.26.0 23.1k; SGLang 0.5.17 22.7k"``, None where there is no figure."""
        figures = self.points.get(point)
        return "; ".join(f"{engine} {short(value)}" for engine, value in figures.items()) if figures else None


def short(value: float) -> str:
    """Three digits: ``23.1k``, ``632``, ``7.86``."""
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    if value >= 1000:
        return f"{value / 1000:.2f}k"
    return f"{value:.3g}"
