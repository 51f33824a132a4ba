"""Control strings inside user text: found, hidden from the template, and encoded as plain text.

A chat message may hold the text ``<|im_end|>``. Rendered into a prompt and tokenized it would end the turn. So
each such string is replaced by a placeholder before rendering; afterwards the prompt is cut at the real control
tokens, the placeholders between them are filled in again, and those stretches are encoded by a twin of the
tokenizer to which special tokens are plain text. Messages without such strings take the ordinary road.

A placeholder is U+FDD0, one character of plane 15 or 16 that counts the string, and U+FDD1. A mark that stands for
nothing follows text that ends in the beginning of a control string, so that none forms across two pieces of text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

OPEN, CLOSE = "\ufdd0", "\ufdd1"
_FIRST = 0xF0000
_REST = 0  # what a finder calls the text between special strings
_MAX_HEADS = 64
_WINDOW = 1 << 15  # characters looked at in one go: no call of the library holds up other threads for long
_MAX_SPECIAL = 0x1FFFD
_PLACEHOLDER = re.compile(f"{OPEN}(.){CLOSE}", re.DOTALL)


@dataclass(frozen=True)
class Rendered:
    """A rendered prompt. `text` may hold placeholders when `shielded`; `str()` fills them in."""

    text: str
    shielded: tuple[str, ...] = ()  # what each placeholder stands for, by its number

    def __str__(self) -> str:
        return self.restore(self.text) if self.shielded else self.text

    def restore(self, text: str) -> str:
        """`text` with the placeholders filled in."""

        def fill(match: re.Match[str]) -> str:
            index = ord(match[1]) - _FIRST
            return self.shielded[index] if 0 <= index < len(self.shielded) else match[0]

        return _PLACEHOLDER.sub(fill, text)


def clean(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Crowded(Exception):
    """A prompt that cannot fit, seen before it is rendered. `seen`: tokens that it is sure to have, at least."""

    def __init__(self, seen: int) -> None:
        super().__init__(seen)
        self.seen = seen


class Bounds(NamedTuple):
    """What a prompt that fits can hold: characters, and control strings, each of which is a token at least."""

    chars: int
    strings: int


class Shield:
    """Replaces control strings by placeholders, for one rendering. Raises Crowded as soon as `bounds` are passed."""

    def __init__(self, special: "SpecialText", bounds: Bounds | None = None) -> None:
        self._special = special
        self._strings: dict[str, str] = {}
        self._bounds = bounds
        self._chars = self._found = 0

    @property
    def strings(self) -> tuple[str, ...]:
        return tuple(self._strings)

    def hide(self, value: Any) -> Any:
        """`value` with the strings in it, at any depth of lists and dicts, made safe."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, list | tuple):
            return [self.hide(entry) for entry in value]
        if isinstance(value, dict):
            return {self._key(key): self.hide(entry) for key, entry in value.items()}
        return value

    def _hide_text(self, text: str) -> str:
        self._chars += len(text)
        if self._bounds is not None and self._chars > self._bounds.chars:
            raise Crowded(self._bounds.strings + 1)
        return self._replace(text)

    def _key(self, key: Any) -> Any:
        return self._replace(key) if isinstance(key, str) else key

    def _replace(self, text: str) -> str:
        text = clean(text)  # arguments of calls are JSON within JSON: their escapes are read here
        pieces, end = [], 0
        for start, stop in self._special.find(text):
            pieces += [text[end:start], self._placeholder(text[start:stop])]
            end = stop
            self._found += 1
            if self._bounds is not None and self._found > self._bounds.strings:
                raise Crowded(self._found)
        rest = text[end:]
        if self._special.may_continue(rest):
            pieces += [rest, self._placeholder("")]
        elif not pieces:
            return text
        else:
            pieces.append(rest)
        return "".join(pieces)

    def _placeholder(self, text: str) -> str:
        if text not in self._strings and len(self._strings) >= _MAX_SPECIAL:
            return text
        return self._strings.setdefault(text, f"{OPEN}{chr(_FIRST + len(self._strings))}{CLOSE}")


class SpecialText:
    """The special tokens of one tokenizer as strings: where a text holds them, and encoding without them."""

    def __init__(self, backend: Backend, special_ids: frozenset[int]) -> None:
        self._backend = backend
        self._ids = special_ids
        added = backend.get_added_tokens_decoder()
        self._entries = {token: entry for token, entry in sorted(added.items()) if entry.special and entry.content}
        self.longest = max((len(entry.content) for entry in self._entries.values()), default=1)
        self._whole_only = any(entry.single_word for entry in self._entries.values())

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Spans of special strings and of the placeholder's own opening character, left to right."""
        for start, stop, _ in self._scan(self._strict, text, self._heads):
            yield start, stop

    def may_continue(self, text: str) -> bool:
        """Whether `text` ends in the beginning of a special string."""
        return any(text[-length:] in self._beginnings for length in range(1, min(len(text), self.longest) + 1))

    def encode(self, rendered: Rendered) -> list[int]:
        """Ids of a rendered prompt: real control tokens by id, all else as plain text."""
        ids: list[int] = []
        end = 0
        for start, stop, number in self._scan(self._finder, rendered.text):
            self._encode_plain(rendered.restore(rendered.text[end:start]), ids)
            ids.append(self._finder_ids[number])
            end = stop
        self._encode_plain(rendered.restore(rendered.text[end:]), ids)
        return ids

    def _scan(self, finder: Backend, text: str, heads: Sequence[str] = ()) -> Iterator[tuple[int, int, int]]:
        """(start, stop, number) of each added token of `finder` in `text`, a window at a time.

        `heads`: one of these strings begins each token, and none swallows spaces; a window without them holds none.
        """
        begin, width = 0, len(text) if self._whole_only else _WINDOW
        while begin < len(text):
            end = min(len(text), begin + width)
            last = end == len(text)
            # What begins before the cut lies wholly inside; a run of spaces before a token may belong to it.
            cut = end if last else end - self.longest
            if not last and not heads:
                cut = _before_spaces(text, begin, cut)
            window = text[begin:end]
            found = []
            if not heads or any(head in window for head in heads):
                # The batch call alone lets other threads run.
                result = finder.encode_batch([window], add_special_tokens=False)[0]
                found = [
                    (begin + start, begin + stop, number)
                    for (start, stop), number in zip(result.offsets, result.ids)
                    if number != _REST and begin + start < cut
                ]
            reached = max(cut, found[-1][1]) if found else cut
            if not last and (reached >= end or cut <= begin):  # spaces that a token swallows go on: look further
                width *= 2
                continue
            yield from found
            begin, width = reached, _WINDOW

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        if not text:
            return
        backend = self._literal if not ids else self._literal_inner
        found = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self._ids.isdisjoint(found) or len(text) == 1:
            ids.extend(token for token in found if token not in self._ids)
            return
        # A model may hold the whole string as a word of its own: no such word survives being cut.
        half = len(text) // 2
        self._encode_plain(text[:half], ids)
        self._encode_plain(text[half:], ids)

    @cached_property
    def _heads(self) -> tuple[str, ...]:
        """A few strings, one of which begins each special string: what to look for first, as it is cheap."""
        texts = [entry.content for entry in self._entries.values()]
        for width in (8, 4, 2, 1):
            heads = {text[:width] for text in texts}
            if len(heads) <= _MAX_HEADS:
                break
        return (OPEN, *sorted(heads))

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        texts = [entry.content for entry in self._entries.values()]
        return frozenset(text[:length] for text in texts for length in range(1, len(text)))

    @cached_property
    def _strict(self) -> Backend:
        """Finds special strings wherever they stand, with none of their options."""
        finder = _empty_backend()
        texts = [OPEN, *(entry.content for entry in self._entries.values())]
        finder.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts])
        return finder

    @cached_property
    def _finder(self) -> Backend:
        """Finds special strings as the tokenizer would, options such as swallowing spaces included."""
        finder = _empty_backend()
        finder.add_special_tokens(list(self._entries.values()))
        return finder

    @cached_property
    def _finder_ids(self) -> dict[int, int]:
        own = self._finder.get_added_tokens_decoder()
        by_text = {entry.content: token for token, entry in self._entries.items()}
        return {number: by_text[entry.content] for number, entry in own.items()}

    @cached_property
    def _literal(self) -> Backend:
        """A twin of the tokenizer that does not know special tokens when it reads."""
        return _twin(self._backend)

    @cached_property
    def _literal_inner(self) -> Backend:
        """The twin for text that does not begin the prompt: none gets the space that only a first word gets."""
        scheme = self._backend.pre_tokenizer
        if not isinstance(scheme, pre_tokenizers.Metaspace) or scheme.prepend_scheme != "first":
            return self._literal
        twin = _twin(self._backend)
        twin.pre_tokenizer = pre_tokenizers.Metaspace(scheme.replacement, "never", scheme.split)
        return twin


def _before_spaces(text: str, begin: int, position: int) -> int:
    """`position`, or the beginning of the run of spaces that it stands in or behind, down to `begin`."""
    return begin + len(text[begin:position].rstrip())


def _empty_backend() -> Backend:
    """A tokenizer without words: text between its added tokens comes out as `_REST`, whole."""
    return Backend(models.WordLevel({CLOSE: _REST}, unk_token=CLOSE))


def _twin(backend: Backend) -> Backend:
    """A tokenizer of the same model, vocabulary shared, that reads special tokens as plain text."""
    added = backend.get_added_tokens_decoder()
    twin = Backend(backend.model)
    if backend.normalizer is not None:
        twin.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        twin.pre_tokenizer = backend.pre_tokenizer
    for _, entry in sorted(added.items()):
        (twin.add_special_tokens if entry.special else twin.add_tokens)([entry])
    if twin.get_added_tokens_decoder().keys() != added.keys():  # ids with gaps: only a full copy keeps them
        twin = Backend.from_str(backend.to_str())
    twin.encode_special_tokens = True
    return twin
