"""The quick look at many ids says what the slow one says."""

import pytest

from octavo.base.errors import UserError
from octavo.text.ids import are_below, are_numbers
from octavo.text.sampling import check_ids

CASES = [[], [0], [5, 9], [10], [-1], [True], [1.0], ["1"], [None], [1 << 40], [1 << 70], (3, 4), (11,)]


def slowly(ids, bound):
    return all(type(token) is int and 0 <= token < bound for token in ids)


@pytest.mark.parametrize("ids", CASES)
def test_quick_and_slow_agree(ids) -> None:
    assert are_numbers(ids) == (isinstance(ids, list) and all(type(token) is int for token in ids))
    assert are_below(ids, 10) == (isinstance(ids, list) and slowly(ids, 10))
    if slowly(ids, 10):
        check_ids(ids, 10, "prompt")
    else:
        with pytest.raises(UserError):
            check_ids(ids, 10, "prompt")
