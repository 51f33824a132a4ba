"""Numbers as people write and read them: 25.6k, 1m, 4GiB."""

import re

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)")

# As in vLLM: a small letter is a power of ten, a capital one a power of two. The longer names say it outright.
_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_int(text: str) -> int:
    """``"25.6k"`` -> 25600, ``"4GiB"`` -> 4294967296. Raises ValueError unless it comes to a whole number."""
    match = _NUMBER.fullmatch(text.strip().replace("_", ""))
    if match is None or len(text) > 40 or match[2] not in _FACTORS:
        raise ValueError(f"not a number: {text[:40]!r}")
    whole, _, decimals = match[1].partition(".")
    scale: int = 10 ** len(decimals)
    value, rest = divmod(int(whole + decimals) * _FACTORS[match[2]], scale)
    if rest:
        raise ValueError(f"not a whole number: {text[:40]!r}")
    return value


def format_bytes(count: float) -> str:
    """``1610612736`` -> ``"1.50 GiB"``: three digits, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB" if count < 1000 else f"{count:.0f} TiB"
