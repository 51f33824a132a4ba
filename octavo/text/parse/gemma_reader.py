"""Gemma's notation of arguments, ``{key:value,...}``: bare keys, strings between delimiters, JSON for the rest."""

import re
from collections.abc import Callable

from octavo.text.parse import json_reader
from octavo.text.parse.base import Steps
from octavo.text.parse.source import Marks, Sink, Source
from octavo.text.parse.values import Quoter, quote

MAX_DEPTH = 64
_KEY = re.compile(r"[^:{}\[\],<>\"\s]++")


class GemmaReader:
    """Reads with one delimiter of strings."""

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        self._end = Marks((delimiter,))

    def value(self, source: Source, sink: Sink, depth: int = 0) -> Steps[bool]:
        """Passes one value on as JSON; False at what is none."""
        char = yield from source.peek()
        if char == "{" and depth < MAX_DEPTH:
            return (yield from self.fields(source, sink, depth))
        if char == "[" and depth < MAX_DEPTH:
            return (yield from self._items(source, sink, depth))
        if (yield from source.skip(self.delimiter)):
            quoter = Quoter(sink)
            if not (yield from source.until(self._end, quoter.add)):
                return False
            quoter.end()
            return True
        return (yield from json_reader.scalar(source, sink))

    def fields(self, source: Source, sink: Sink, depth: int = 0) -> Steps[bool]:
        """``{key:value,...}``, the opening brace next."""

        def field(lead: str) -> Steps[bool]:
            key = yield from self._key(source)
            yield from source.space()
            if key is None or not (yield from source.skip(":")):
                sink(key or "")
                return False
            sink(lead + quote(key) + ": ")
            yield from source.space()
            return (yield from self.value(source, sink, depth + 1))

        return (yield from _enclosed(source, sink, "{", "}", field))

    def _items(self, source: Source, sink: Sink, depth: int) -> Steps[bool]:
        def item(lead: str) -> Steps[bool]:
            sink(lead)
            return (yield from self.value(source, sink, depth + 1))

        return (yield from _enclosed(source, sink, "[", "]", item))

    def _key(self, source: Source) -> Steps[str | None]:
        if (yield from source.skip(self.delimiter)):
            parts: list[str] = []
            return "".join(parts) if (yield from source.until(self._end, parts.append)) else None
        if (yield from source.skip('"')):
            key = yield from source.run(_KEY, 1024)
            return key if (yield from source.skip('"')) else None
        return (yield from source.run(_KEY, 1024)) or None


def _enclosed(source: Source, sink: Sink, opener: str, closer: str, entry: Callable[[str], Steps[bool]]) -> Steps[bool]:
    source.take(source.at + 1)
    sink(opener)
    if not (yield from source.separated(closer, entry)):
        return False
    sink(closer)
    return True
