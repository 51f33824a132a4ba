"""Where results come to: places are used again once they are read, and grow with what comes."""

import torch

from octavo.platform.cpu import CpuPlatform
from octavo.worker.landing import Landing


def test_what_was_read_stays_when_its_place_is_used_again():
    landing = Landing(CpuPlatform(), torch.int64, 4)
    first = landing.take(torch.tensor([1, 2]))
    second = landing.take(torch.tensor([3]))
    told = first.read()
    again = landing.take(torch.tensor([4, 5, 6]))
    assert again is first
    assert (told.tolist(), second.read().tolist(), again.read().tolist()) == ([1, 2], [3], [4, 5, 6])


def test_a_place_that_is_too_small_gives_way():
    landing = Landing(CpuPlatform(), torch.int32, 3)
    small = landing.take(torch.zeros(3, dtype=torch.int32))
    small.read()
    table = torch.arange(35, dtype=torch.int32).view(5, 7)
    large = landing.take(table)
    assert (large is small, large.size) == (False, 48)
    assert large.read().tolist() == table.tolist()
    assert landing.take(table[:2, :3]).read().tolist() == [[0, 1, 2], [7, 8, 9]]
