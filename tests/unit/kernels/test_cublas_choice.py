"""Which algorithm a product takes: the quickest that was measured, and what is done without a measurement."""

import ctypes

import pytest
import torch

from octavo.kernels.cublas import choice
from octavo.kernels.cublas import kept as kept_module
from octavo.kernels.cublas.choice import GAIN, KEPT, LONG, MATRICES, Chooser
from octavo.kernels.cublas.kept import MOST, KeptChoices
from octavo.kernels.cublas.library import Algorithm, CublasError

WIDE = 16_384  # features that make a product worth the measuring


def numbered(number):
    return Algorithm((ctypes.c_uint64 * 8)(number))


class Paper:
    """Algorithms have numbers; it notes who multiplied by which."""

    version = 130_000

    def __init__(self, count=3):
        self.count, self.used, self.asked, self.fits = count, [], 0, True

    def algorithms(self, *_):
        if self.count is None:
            raise CublasError("no")
        return [numbered(number) for number in range(1, self.count + 1)]

    def can(self, *_):
        self.asked += 1
        return self.fits

    def multiply(self, x, weight, algorithm, out):
        self.used.append(algorithm.data[0])
        return torch.mm(x, weight.t(), out=out)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Anything is readable, and nothing is kept yet; the folder where it will be."""
    monkeypatch.setattr(choice, "readable", lambda *_: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "octavo" / "products"


def matrices(tokens, features=WIDE, size=1280, count=1):
    weights = [torch.empty(features, size, dtype=torch.bfloat16) for _ in range(count)]
    return torch.empty(tokens, size, dtype=torch.bfloat16), weights


def chooser(times, library=None):
    rounds = []

    def measured(runs):
        rounds.append(len(runs))
        return times[: len(runs)]

    made = Chooser(library or Paper(), measured, KeptChoices("paper"))
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
        made._known[(*weight.shape, tokens, x.dtype)] = numbered(algorithm)

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
    monkeypatch.setattr(choice, "_kind", lambda _: ("a card",))
    for number in (0, 1, 0):
        choice.tune(lambda number=number: ran.append(number), torch.device("cuda", number))
    assert ran == [0, 1, 0]
    assert [device.index for device in loaded] == [0, 1]


def test_the_next_start_measures_nothing(cache):
    made, library, rounds = chooser([1.0, 0.9, 0.5, 0.7])
    x, (weight,) = matrices(4)
    other = matrices(8)[0]
    made.tune(lambda: made.linear(x, weight))
    assert rounds == [4]
    again, library, rounds = chooser([1.0, 0.5, 0.6, 0.7])
    again.tune(lambda: [again.linear(x, weight), again.linear(other, weight)])
    assert rounds == [4]  # of the sizes that are new
    library.used.clear()
    again.linear(x, weight)
    again.linear(other, weight)
    assert library.used == [2, 1]
    assert [each.suffix for each in cache.iterdir()] == [".json"]
    third, library, rounds = chooser([])
    third.tune(lambda: [third.linear(x, weight), third.linear(other, weight)])
    assert rounds == []


def test_cublas_own_choice_is_kept_as_well():
    x, (weight,) = matrices(4)
    for measured in ([4], []):
        made, library, rounds = chooser([1.0, 1.0, 1.0, 1.0])
        made.tune(lambda made=made: made.linear(x, weight))
        assert rounds == measured
        made.linear(x, weight)
        assert library.used == []


def test_what_the_library_does_not_take_back_is_measured():
    x, (weight,) = matrices(4)
    made, library, rounds = chooser([1.0, 0.5, 1.0, 1.0])
    made.tune(lambda: made.linear(x, weight))
    made, library, rounds = chooser([1.0, 1.0, 0.5, 1.0])
    library.fits = False
    made.tune(lambda: made.linear(x, weight))
    assert rounds == [4]
    made.linear(x, weight)
    assert library.used == [2]


def test_what_could_not_be_measured_is_not_kept(cache):
    made, _, _ = chooser([], Paper(None))
    x, (weight,) = matrices(4)
    made.tune(lambda: made.linear(x, weight))
    assert not cache.exists()


def test_starts_beside_each_other_keep_what_all_have_measured():
    one, other = KeptChoices("here"), KeptChoices("here")
    one.tell((1, 2, 3, torch.bfloat16), numbered(5))
    one.write()
    other.tell((1, 2, 4, torch.float16), None)
    other.write()
    read = KeptChoices("here")
    assert read[(1, 2, 3, torch.bfloat16)].data[0] == 5
    assert read[(1, 2, 4, torch.float16)] is None
    assert (1, 2, 3, torch.bfloat16) not in KeptChoices("elsewhere")
    for number in range(MOST + 1):
        other.tell((7, 7, number + 1, torch.bfloat16), None)
    other.write()
    read = KeptChoices("here")
    assert (7, 7, MOST + 1, torch.bfloat16) in read
    assert (7, 7, 1, torch.bfloat16) not in read


@pytest.mark.parametrize(
    "chosen",
    [
        {"1 2 3 float32": None},
        {"1 2 0 bfloat16": None},
        {"1 2 3 4 bfloat16": None},
        {"1 2 9999999999 bfloat16": None},
        {"1 2 3 bfloat16": "00" * 63},
        {"1 2 3 bfloat16": "zz" * 64},
    ],
)
def test_what_no_start_has_written_is_not_read(chosen, cache):
    kept_module.kept.remember(
        "products", KeptChoices("here")._key, kept_module._File(kept_module._digest(chosen), chosen)
    )
    assert list(cache.iterdir())
    assert not KeptChoices("here")._chosen


def test_what_is_damaged_is_not_read(cache):
    choices = KeptChoices("here")
    for tokens in range(1, 20):
        choices.tell((4096, 1024, tokens, torch.bfloat16), numbered(tokens))
    choices.write()
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not KeptChoices("here")._chosen
        path.write_bytes(whole[:at])
        assert not KeptChoices("here")._chosen
    path.write_bytes(whole)
    assert len(KeptChoices("here")._chosen) == 19
