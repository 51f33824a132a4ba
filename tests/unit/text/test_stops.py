"""Stop strings against a plain search of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.stops import StopFinder


def plain(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """(end, start, stop) of the match that ends first and, among those, begins first."""
    found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    return min(found, default=None)


small = st.text("ab<|", min_size=1, max_size=5)


@given(st.lists(small, min_size=1, max_size=4), st.lists(st.text("ab<|c", max_size=4), max_size=15), st.booleans())
@settings(deadline=None, max_examples=400)
def test_equals_a_search_of_the_whole(stops: list[str], pieces: list[str], include: bool) -> None:
    finder = StopFinder(stops, include=include)
    text, shown = "".join(pieces), ""
    expected = plain(text, stops)
    fed = ""
    for piece in pieces:
        fed += piece
        shown += finder.feed(piece)
        if finder.match:
            break
        # Nothing of a stop string that may still complete has been shown.
        held = fed[len(shown) :]
        longest = max(k for stop in stops for k in range(len(stop)) if fed.endswith(stop[:k]))
        assert len(held) == longest
    if expected is None:
        assert finder.match is None
        assert shown + finder.flush() == text
    else:
        end, start, stop = expected
        assert finder.match is not None
        assert finder.match.stop == stop
        assert shown == text[: end if include else start]
        assert len(fed) >= end


def test_unarmed_matches_do_not_count_but_may_begin_there() -> None:
    finder = StopFinder(["ab"])
    assert finder.feed("ab a", armed=False) == "ab "
    assert finder.match is None
    assert finder.feed("b!") == ""
    assert finder.match is not None


def test_a_long_stop_string_costs_no_more_than_its_text() -> None:
    finder = StopFinder(["a" * 1024] * 1 + ["a" * 1000 + str(n) for n in range(15)])
    shown = "".join(finder.feed("aaaa") for _ in range(240))
    assert shown == ""
    assert finder.feed("b") == "a" * 960 + "b"
