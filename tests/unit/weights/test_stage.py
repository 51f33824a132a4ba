"""Bytes on their way to a device: every one arrives, a buffer is filled only when its last contents have gone."""

import torch

from octavo.weights import stage
from octavo.weights.stage import Stage


class Sent:
    """An event that knows whether the copy behind it was waited for."""

    def __init__(self):
        self.under_way, self.waited = False, 0

    def record(self):
        assert not self.under_way, "a buffer was filled while it was being sent"
        self.under_way = True

    def synchronize(self):
        self.waited += self.under_way
        self.under_way = False


class Noted(Stage):
    def _pinned(self):
        return torch.empty(stage.SLOT_BYTES, dtype=torch.uint8)

    def _event(self):
        return Sent()


def test_all_bytes_arrive_in_order(monkeypatch):
    monkeypatch.setattr(stage, "SLOT_BYTES", 1000)
    for size in (1, 999, 1000, 1001, 5500):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        noted = Noted("cpu")
        assert torch.equal(noted.send(data, torch.zeros_like(data)), data)
        pieces = -(-size // 1000)
        assert len(noted._slots) == min(pieces, stage.SLOTS)
        assert sum(event.waited for _, event in noted._slots) == max(0, pieces - stage.SLOTS)


def test_on_a_cpu_bytes_stay_where_they_are():
    data = torch.arange(10, dtype=torch.uint8)
    assert Stage("cpu").bring(data).data_ptr() == data.data_ptr()
