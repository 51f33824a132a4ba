"""A lazy table of named implementations: one line a plugin, imported when first asked for."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from octavo.base.errors import UnknownName


class Registry:
    """Maps a name to ``"module:attribute"``.

    Installed packages add names through the entry-point group ``octavo.<kind>``; a built-in name wins.
    """

    def __init__(self, kind: str, table: Mapping[str, str]) -> None:
        self.kind = kind
        self._table = dict(table)
        self._plugins_read = False

    def names(self) -> list[str]:
        self._read_plugins()
        return sorted(self._table)

    def check(self, name: str) -> None:
        """Imports nothing. Raises UnknownName with the nearest known names."""
        if name not in self:
            raise UnknownName(self.kind, name, self._table)

    def get(self, name: str) -> Any:
        """The named object. Raises UnknownName with the nearest known names."""
        self.check(name)
        module, _, attribute = self._table[name].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: str) -> bool:
        if name not in self._table:  # only then do the installed packages matter, and reading them takes a while
            self._read_plugins()
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        from importlib.metadata import entry_points  # its import takes longer than that of all of this package

        group = f"octavo.{self.kind.replace(' ', '_')}"
        for point in entry_points(group=group):
            self._table.setdefault(point.name, point.value)
