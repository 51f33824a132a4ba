"""Emoji sequences in a stream: a family, a flag or a skin tone is one character to its reader and is never split.

Held back is only what the next token may still extend: an emoji at the very end with its joiners and modifiers, or
half a flag (Unicode UTS 51; the grapheme rules GB11 to GB13 of UAX 29). Ordinary text passes at once.
"""

import re

# Extended_Pictographic of emoji-data.txt, reserved code points included.
_PICTOGRAPHIC = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767"
    "\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a"
    "\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f"
    "\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff"
    "\U0001fc00-\U0001fffd"
)
_JOINER = "\u200d"
_MODIFIER = "\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"  # style, keycap, skin, tags
_REGIONAL = "\U0001f1e6-\U0001f1ff"

_MAY_BE_OPEN = re.compile(f"[{_PICTOGRAPHIC}{_JOINER}{_MODIFIER}{_REGIONAL}]")
_OPEN_SEQUENCE = re.compile(
    f"[{_PICTOGRAPHIC}][{_MODIFIER}]*(?:{_JOINER}[{_PICTOGRAPHIC}][{_MODIFIER}]*)*{_JOINER}?\\Z"
)
_FLAG_HALVES = re.compile(f"[{_REGIONAL}]+\\Z")
# The longest sequence in use has ten code points; a stream of joiners without end must not be held for ever.
MAX_HELD = 32


def held_from(text: str) -> int:
    """Where the part of `text` begins that must wait for the next token; ``len(text)`` if none must."""
    if not text or text[-1] < "\u00a9" or not _MAY_BE_OPEN.match(text[-1]):
        return len(text)
    start = max(0, len(text) - MAX_HELD)
    found = _OPEN_SEQUENCE.search(text, start)
    if found:
        return found.start() if found.start() > start or start == 0 else len(text)
    halves = _FLAG_HALVES.search(text)
    if halves and (halves.end() - halves.start()) % 2:
        return len(text) - 1
    return len(text)


class EmojiGuard:
    """Passes text on, an unfinished emoji sequence at its end excepted."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        if not self._held and (not text or text[-1] < "\u00a9"):
            return text
        if not text:
            return ""
        text = self._held + text
        cut = held_from(text)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What is still held, at the end."""
        held, self._held = self._held, ""
        return held
