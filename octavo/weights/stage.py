"""From a mapped file to the device: through pinned buffers, so that reading one piece overlaps sending the one before.

The driver sends from pinned memory only; what is mapped it first copies there itself, by one thread, in small pieces.
"""

import torch
from torch import Tensor

SLOT_BYTES = 32 << 20
SLOTS = 3
SMALL_BYTES = 4 << 20  # below this there is nothing to overlap


class Stage:
    """Brings bytes to one device. On a CPU they stay where they are."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._slots: list[tuple[Tensor, torch.cuda.Event]] = []
        self._next = 0

    def bring(self, data: Tensor) -> Tensor:
        """`data` ``[n]`` (uint8, host) on the device; on a CPU the same tensor. Later work there sees all of it."""
        if self.device.type != "cuda" or data.nbytes < SMALL_BYTES:
            return data.to(self.device)
        return self.send(data, torch.empty_like(data, device=self.device))

    def send(self, data: Tensor, out: Tensor) -> Tensor:
        """Piece by piece into `out`. torch's threads share the copy into each buffer."""
        for source, target in zip(torch.split(data, SLOT_BYTES), torch.split(out, SLOT_BYTES)):
            host, sent = self._slot()
            buffer = host[: source.numel()]
            buffer.copy_(source)
            target.copy_(buffer, non_blocking=True)
            sent.record()
        return out

    def _slot(self) -> tuple[Tensor, torch.cuda.Event]:
        """A buffer whose last contents have been sent."""
        if len(self._slots) < SLOTS:
            self._slots.append((self._pinned(), self._event()))
        self._next = (self._next + 1) % len(self._slots)
        host, sent = self._slots[self._next]
        sent.synchronize()
        return host, sent

    def _pinned(self) -> Tensor:
        return torch.empty(SLOT_BYTES, dtype=torch.uint8, pin_memory=True)

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]
