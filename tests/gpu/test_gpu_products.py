"""Products by cuBLAS's algorithms, as they are chosen on this GPU."""

import pytest
import torch
from torch.nn import functional as F

from octavo.kernels.cublas.choice import Chooser, Stopwatch
from octavo.kernels.cublas.kept import KeptChoices
from octavo.kernels.cublas.library import cublas, readable

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = [(4096, 4096), (6144, 1024), (4096, 12_288)]
DEVICE = torch.device("cuda", 0)


def matrices(tokens: int, features: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(tokens)
    weight = torch.randn(features, size, device=DEVICE, dtype=dtype)
    return torch.randn(tokens, size, device=DEVICE, dtype=dtype), weight.mul_(size**-0.5)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 33, 192, 1024])
@pytest.mark.parametrize(("features", "size"), SIZES)
def test_every_algorithm_gives_the_product(tokens, features, size, dtype) -> None:
    library = cublas(DEVICE)
    assert library is not None
    x, weight = matrices(tokens, features, size, dtype)
    want = F.linear(x, weight)
    algorithms = library.algorithms(x, weight)
    assert algorithms
    for algorithm in algorithms:
        assert library.can((*weight.shape, tokens, dtype), algorithm)
        got = library.multiply(x, weight, algorithm, torch.full_like(want, float("nan")))
        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)


def test_what_was_chosen_can_be_captured_and_serves_other_long_steps() -> None:
    library = cublas(DEVICE)
    assert library is not None
    chooser = Chooser(library, Stopwatch(DEVICE), KeptChoices())
    x, weight = matrices(2048, 6144, 1024, torch.bfloat16)
    chooser.tune(lambda: chooser.linear(x, weight))
    (sizes,) = chooser._known
    chooser._known[sizes] = library.algorithms(x, weight)[-1]  # whatever was the fastest
    with torch.inference_mode():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = chooser.linear(x, weight)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(got, F.linear(x, weight), atol=2e-2, rtol=2e-2)
        longer = torch.randn(3001, 1024, device=DEVICE, dtype=torch.bfloat16)
        torch.testing.assert_close(chooser.linear(longer, weight), F.linear(longer, weight), atol=2e-2, rtol=2e-2)
    assert any(algorithm is not None for algorithm in chooser._near.values())


def test_a_choice_serves_the_next_start() -> None:
    """Its bytes are all that there is of it."""
    library = cublas(DEVICE)
    assert library is not None
    assert library.version > 100_000
    x, weight = matrices(1024, 6144, 1024, torch.bfloat16)
    sizes = (*weight.shape, 1024, x.dtype)
    first, last = KeptChoices("gpu"), library.algorithms(x, weight)[-1]
    first.tell(sizes, last)
    first.write()
    chooser = Chooser(library, lambda _: pytest.fail("it is known"), KeptChoices("gpu"))
    chooser.tune(lambda: chooser.linear(x, weight))
    assert bytes(chooser._known[sizes]) == bytes(last)
    torch.testing.assert_close(chooser.linear(x, weight), F.linear(x, weight), atol=2e-2, rtol=2e-2)


def test_measuring_takes_memory_once() -> None:
    library, stopwatch = cublas(DEVICE), Stopwatch(DEVICE)
    assert library is not None
    kept = []
    for tokens in (96, 128, 192, 1024):
        chooser = Chooser(library, stopwatch, KeptChoices())
        x, weight = matrices(tokens, 4096, 12_288, torch.bfloat16)
        chooser.tune(lambda chooser=chooser, x=x, weight=weight: chooser.linear(x, weight))
        assert chooser._known
        del x, weight
        kept.append(torch.cuda.memory_allocated(DEVICE))
    assert kept[1:] == kept[:1] * 3


def test_what_it_cannot_read_is_left_to_torch() -> None:
    x, weight = matrices(64, 4096, 4096, torch.bfloat16)
    assert readable(x, weight)
    assert not readable(x[:, :2048], weight)
    assert not readable(x.view(-1)[8:-8].view(-1, 16), weight)
    assert not readable(x.float(), weight)
