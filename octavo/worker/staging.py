"""Stager: many small host arrays, one copy to the device.

A step's numbers travel packed in one int32 buffer. The host side is a ring of pinned buffers, each guarded by the
event of its last copy, so that a copy still under way is never overwritten; with as many buffers as steps in
flight need, the guard never waits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.platform.base import Event, Platform

Ints = npt.NDArray[np.int32]

_ALIGN = 4  # int32 places: each array starts on 16 bytes, so a view as int64 is legal


class Stager:
    """A ring of staging buffers of at least `capacity` int32 places each; they grow when a step needs more."""

    def __init__(self, platform: Platform, buffers: int, capacity: int = 1 << 14) -> None:
        self._platform = platform
        self._hosts = [platform.staging(capacity) for _ in range(buffers)]
        self._events: list[Event | None] = [None] * buffers
        self._next = 0

    def send(self, arrays: Sequence[Ints]) -> list[torch.Tensor]:
        """Device views of the arrays, in order, each one-dimensional int32; one enqueued copy, no waiting."""
        offsets, total = [], 0
        for array in arrays:
            offsets.append(total)
            total += -(-array.size // _ALIGN) * _ALIGN
        index = self._next
        self._next = (index + 1) % len(self._hosts)
        host = self._free(index, total)
        data = host.numpy()
        for offset, array in zip(offsets, arrays):
            data[offset : offset + array.size] = array.reshape(-1)
        device = self._platform.upload(host[:total])
        self._events[index] = self._platform.event()
        return [device[offset : offset + array.size] for offset, array in zip(offsets, arrays)]

    def fill(self, device: torch.Tensor, values: Ints) -> None:
        """Copy one array ``[n]`` into device memory that stays in place; enqueued, no waiting."""
        index = self._next
        self._next = (index + 1) % len(self._hosts)
        host = self._free(index, values.size)
        host.numpy()[: values.size] = values
        device.copy_(host[: values.size], non_blocking=True)
        self._events[index] = self._platform.event()

    def _free(self, index: int, total: int) -> torch.Tensor:
        """Buffer `index`, no longer read by any copy, with `total` places."""
        event = self._events[index]
        if event is not None:
            event.synchronize()
            self._events[index] = None
        host = self._hosts[index]
        if host.numel() < total:
            host = self._hosts[index] = self._platform.staging(max(total, 2 * host.numel()))
        return host


def ints(values: Sequence[int] | npt.NDArray[np.integer]) -> Ints:
    """The values as an int32 array."""
    return np.asarray(values, dtype=np.int32)


def float_bits(values: Sequence[float] | npt.NDArray[np.floating]) -> Ints:
    """fp32 numbers in int32 places; the device reads them back with ``.view(torch.float32)``."""
    return np.asarray(values, dtype=np.float32).view(np.int32)
