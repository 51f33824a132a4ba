"""Log-probabilities as they travel: what is written is read, in runs that can be cut and joined."""

import random

import pytest

from octavo.base.scores import TokenLogprobs, blank, chosen, columns, count, cut, read, top_of, write


def positions(count: int, top: int, seed: int = 0) -> list[TokenLogprobs | None]:
    rng = random.Random(seed)

    def value() -> float:
        return -rng.randrange(1 << 12) / 128

    def ids() -> list[int]:
        return [rng.randrange(1 << 18) for _ in range(top)]

    return [
        TokenLogprobs(rng.randrange(1 << 18), value(), 1 + rng.randrange(99), ids(), [value() for _ in range(top)])
        for _ in range(count)
    ]


@pytest.mark.parametrize("top", [0, 1, 20])
def test_what_is_written_is_read(top: int) -> None:
    some = [None, *positions(5, top)]
    lines = write(some)
    assert read(lines) == read(bytearray(lines)) == some
    assert (count(lines), top_of(lines)) == (6, top)
    assert lines.startswith(blank(top))
    known = cut(lines, 1)
    assert chosen(known) == [each.logprob for each in some if each]
    assert columns(known) == [
        (each.rank, [each.token, *each.ids], [each.logprob, *each.logprobs]) for each in some if each
    ]


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 3), (2, None), (7, None), (1, 2)])
def test_cuts_are_those_of_a_list(start: int, stop: int | None) -> None:
    some = positions(5, 3)
    assert read(cut(write(some), start, stop)) == some[start:stop]


def test_nothing_is_nothing() -> None:
    assert (read(b""), count(b""), chosen(b""), columns(b""), cut(b"", 0), write([])) == ([], 0, [], [], b"", b"")
