"""Stager: many small host arrays, one copy to the device.

A step's numbers travel packed in one int32 buffer. The host side is a ring of pinned buffers, each guarded by an
event behind its last copy, so that a copy still under way is never overwritten. The event is that of the step, which
is recorded anyway: with as many buffers as steps in flight need, the guard never waits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.platform.base import Event, Platform

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

SMALLEST = 1 << 14
_ALIGN = 4  # int32 places: each array starts on 16 bytes, so a view as int64 is legal


class Stager:
    """A ring of staging buffers of at least `capacity` int32 places each; they grow when a step needs more."""

    def __init__(self, platform: Platform, buffers: int, capacity: int = SMALLEST) -> None:
        self._platform = platform
        self._hosts = [platform.staging(capacity) for _ in range(buffers)]
        self._datas: list[Ints] = [host.numpy() for host in self._hosts]
        self._heads: list[dict[int, tuple[torch.Tensor, Ints]]] = [{} for _ in self._hosts]  # the first so many places
        self._events: list[Event | None] = [None] * buffers
        self._unguarded: list[int] = []
        self._next = 0

    def send(self, arrays: Sequence[Ints]) -> list[torch.Tensor]:
        """Device views of the arrays, in order, each one-dimensional int32; one enqueued copy, no waiting."""
        offsets, total = [], 0
        for array in arrays:
            offsets.append(total)
            total += -(-array.size // _ALIGN) * _ALIGN
        index = self._free(total)
        data = self._datas[index]
        for offset, array in zip(offsets, arrays):
            data[offset : offset + array.size] = array.reshape(-1)
        device = self._platform.upload(self._hosts[index][:total])
        return [device[offset : offset + array.size] for offset, array in zip(offsets, arrays)]

    def fill(self, device: torch.Tensor, values: Ints) -> None:
        """Copy one array ``[n]`` into device memory that stays in place; enqueued, no waiting."""
        index, size = self._free(values.size), values.size
        head = self._heads[index].get(size)
        if head is None:
            head = self._heads[index][size] = self._hosts[index][:size], self._datas[index][:size]
        host, data = head
        data[:] = values
        device.copy_(host, non_blocking=True)

    def lay(self, runs: Sequence[tuple[torch.Tensor, Ints]]) -> None:
        """Copy arrays, each of any length, into their places in device memory; enqueued, no waiting."""
        index, at = self._free(sum([values.size for _, values in runs])), 0
        host, data = self._hosts[index], self._datas[index]
        for device, values in runs:
            end = at + values.size
            data[at:end] = values
            device.copy_(host[at:end], non_blocking=True)
            at = end

    def guard(self, event: Event) -> None:
        """What was sent up to now has left the host once `event` has passed."""
        for index in self._unguarded:
            self._events[index] = event
        self._unguarded.clear()

    def _free(self, total: int) -> int:
        """The next buffer, no longer read by any copy, with `total` places. It is unguarded from now on."""
        index = self._next
        self._next = (index + 1) % len(self._hosts)
        if index in self._unguarded:  # more was sent without a step than there are buffers
            self.guard(self._platform.event())
        event = self._events[index]
        if event is not None:
            event.synchronize()
            self._events[index] = None
        if self._datas[index].size < total:
            host = self._hosts[index] = self._platform.staging(max(total, 2 * self._datas[index].size))
            self._datas[index] = host.numpy()
            self._heads[index].clear()
        self._unguarded.append(index)
        return index


def ints(values: Sequence[int] | npt.NDArray[np.integer]) -> Ints:
    """The values as an int32 array."""
    return np.asarray(values, dtype=np.int32)


def longs(values: Sequence[int] | npt.NDArray[np.integer]) -> Ints:
    """The values as 64-bit numbers in int32 places; the device reads them back with ``.view(torch.int64)``."""
    return np.asarray(values, dtype=np.int64).view(np.int32)


def float_bits(values: Sequence[float] | npt.NDArray[np.floating]) -> Ints:
    """fp32 numbers in int32 places; the device reads them back with ``.view(torch.float32)``."""
    return np.asarray(values, dtype=np.float32).view(np.int32)
