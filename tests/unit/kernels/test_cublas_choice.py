"""Which algorithm a product takes: the quickest that was measured, and what is done without a measurement."""

import pytest
import torch

from octavo.kernels.cublas import choice
from octavo.kernels.cublas.choice import GAIN, KEPT, LONG, MATRICES, Chooser
from octavo.kernels.cublas.library import CublasError

WIDE = 16_384  # features that make a product worth the measuring


class Paper:
    """Algorithms are numbers; it notes who multiplied by which."""

    def __init__(self, count=3):
        self.count, self.used, self.asked, self.fits = count, [], 0, True

    def algorithms(self, *_):
        if self.count is None:
            raise CublasError("no")
        return list(range(1, self.count + 1))

    def can(self, *_):
        self.asked += 1
        return self.fits

    def multiply(self, x, weight, algorithm, out):
        self.used.append(algorithm)
        return torch.mm(x, weight.t(), out=out)


@pytest.fixture(autouse=True)
def anything_is_readable(monkeypatch):
    monkeypatch.setattr(choice, "readable", lambda *_: True)


def matrices(tokens, features=WIDE, size=1280, count=1):
    weights = [torch.empty(features, size, dtype=torch.bfloat16) for _ in range(count)]
    return torch.empty(tokens, size, dtype=torch.bfloat16), weights


def chooser(times, library=None):
    rounds = []

    def measured(runs):
        rounds.append(len(runs))
        return times[: len(runs)]

    made = Chooser(library or Paper(), measured)
    return made, made._library, rounds


@pytest.mark.parametrize(
    ("times", "used"),
    [
        ([1.0, 0.9, 0.5, 0.7], [2]),
        ([1.0, 1.0, 1.1, 1.2], []),
        ([1.0, GAIN + 0.005, 1.0, 1.0], []),
        ([1.0, GAIN - 0.005, 1.0, 1.0], [1]),
    ],
)
def test_the_quickest_is_taken_if_it_is_by_more_than_noise(times, used):
    made, library, rounds = chooser(times)
    x, (weight,) = matrices(4)
    made.tune(lambda: made.linear(x, weight))
    assert rounds == [4]
    assert library.used == []
    made.linear(x, weight)
    assert library.used == used


def test_the_result_is_the_product():
    made, library, _ = chooser([1.0, 0.5, 1.0, 1.0])
    x, weight = torch.randn(3, 24), torch.randn(WIDE * 64, 24)
    made.tune(lambda: made.linear(x, weight))
    torch.testing.assert_close(made.linear(x, weight), x @ weight.t())
    assert library.used == [1]


@pytest.mark.parametrize(("tokens", "turns"), [(4, MATRICES), (LONG, 1)])
def test_sizes_are_measured_once_over_some_of_their_matrices(tokens, turns, monkeypatch):
    made, _, rounds = chooser([1.0, 0.5, 1.0, 1.0])
    x, weights = matrices(tokens, count=MATRICES + 3)
    monkeypatch.setattr(choice.F, "linear", lambda *_: None)
    seen = []
    monkeypatch.setattr(made, "_best", lambda sizes, matrices: seen.append((sizes, len(matrices))))

    def step():
        for weight in weights:
            made.linear(x, weight)
            made.linear(x[:2], weight[:128])

    for _ in range(2):
        made.tune(step)
    assert seen == [((WIDE, 1280, tokens, torch.bfloat16), turns)]  # the small product is not worth it
    assert rounds == []


def test_nothing_is_noted_outside_and_a_failed_step_ends_the_noting():
    made, _, rounds = chooser([1.0, 0.5, 1.0, 1.0])
    x, (weight,) = matrices(4)

    def broken():
        made.linear(x, weight)
        raise ValueError

    with pytest.raises(ValueError):
        made.tune(broken)
    made.linear(x, weight)
    made.tune(lambda: None)
    assert rounds == []


@pytest.mark.parametrize("trouble", [CublasError("no"), torch.OutOfMemoryError("no")])
def test_where_it_cannot_be_measured_torch_chooses(trouble):
    library = Paper(None)

    def fails(*_):
        raise trouble

    library.algorithms = fails
    made, _, _ = chooser([], library)
    x, (weight,) = matrices(4)
    made.tune(lambda: made.linear(x, weight))
    made.linear(x, weight)
    assert library.used == []


def test_long_steps_take_what_is_known_close_by():
    made, library, _ = chooser([1.0, 0.5, 1.0, 1.0])
    for tokens, algorithm in ((LONG, 1), (4 * LONG, 2), (LONG // 2, 3)):
        made._times = lambda _, best=algorithm: [1.0, *(0.5 if number == best else 1.0 for number in (1, 2, 3))]
        x, (weight,) = matrices(tokens, 1024, 64)
        made._known[(*weight.shape, tokens, x.dtype)] = algorithm

    def used(tokens):
        library.used.clear()
        x, (weight,) = matrices(tokens, 1024, 64)
        made.linear(x, weight)
        return list(library.used)

    assert used(LONG + 8) == [1]
    assert used(3 * LONG) == used(8 * LONG) == [2]
    assert used(8 * LONG + 1) == used(LONG - 1) == used(LONG // 2 + 1) == []
    assert used(LONG // 2) == [3]
    asked = library.asked
    assert used(3 * LONG) == [2]
    assert library.asked == asked  # looked up once
    library.fits = False
    assert used(3 * LONG + 8) == []
    made._near |= dict.fromkeys(range(KEPT), None)
    assert used(3 * LONG + 16) == []
    assert len(made._near) == 1


def test_without_a_gpu_it_is_torch(monkeypatch):
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    monkeypatch.setattr(choice, "cublas", lambda _: pytest.fail("there is none"))
    torch.testing.assert_close(choice.linear(x, weight, bias), x @ weight.t() + bias)
    torch.testing.assert_close(choice.linear(x, weight, None), x @ weight.t())


def test_what_is_tuned_is_run_where_there_is_nothing_to_choose(monkeypatch):
    monkeypatch.setattr(choice, "cublas", lambda _: None)
    ran = []
    choice.tune(lambda: ran.append(1), torch.device("cuda", 0))
    assert ran == [1]
    assert choice._TUNED == {}


def test_a_device_is_tuned_by_one_chooser(monkeypatch):
    """The library is loaded when the first step is tuned, once a device."""
    loaded, ran = [], []
    monkeypatch.setattr(choice, "_TUNED", {})
    monkeypatch.setattr(choice, "Stopwatch", lambda _: None)
    monkeypatch.setattr(choice, "cublas", lambda device: loaded.append(device) or Paper())
    for number in (0, 1, 0):
        choice.tune(lambda number=number: ran.append(number), torch.device("cuda", number))
    assert ran == [0, 1, 0]
    assert [device.index for device in loaded] == [0, 1]
