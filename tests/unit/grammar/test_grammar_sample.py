"""Texts read off regular expressions, and texts cut in tokens."""

import re

import numpy as np
import pytest
from grammar_kit import TABLE

from octavo.grammar.sample import sample

SIMPLE = [
    r"^[A-Z]{2}-12[0-9]{3,9}(?:a|bc)?\d+[^x]\.$",
    r"^\S+@\S+\.[a-z]{2,}$",
    r"a*",
    r"(?:foo|ba)r",
    r"^[^a-z0-9]$",
    r"(x{3}|y)+?\w\W\s\D",
    r"[\w-]+",
    r"\u00e9\x41.",
    r"[^a][^\]]",
]


@pytest.mark.parametrize("pattern", SIMPLE)
def test_a_sample_matches(pattern: str) -> None:
    text = sample(pattern)
    assert text is not None
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("pattern", [r"^(?=a)b", r"(a)\1", "x{5000}", "(" * 3000 + ")" * 3000, "(", r"[^\w]"])
def test_what_is_not_simple_has_none(pattern: str) -> None:
    assert sample(pattern) is None


def test_a_text_is_cut_in_the_longest_tokens_at_each_place() -> None:
    known = TABLE.by_bytes
    rng = np.random.default_rng(0)
    texts = list(known)
    for _ in range(300):
        text = b"".join(texts[index] for index in rng.integers(len(texts), size=rng.integers(1, 7)))
        left, expected = text, []
        while left:
            token = max((token for token in known if left.startswith(token)), key=len)
            expected.append(known[token])
            left = left[len(token) :]
        assert TABLE.greedy(text) == expected
    assert TABLE.greedy(b"") == []
