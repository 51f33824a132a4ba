"""The stage without a model: what the machine can do, decode attention alone, planning alone, the API alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from octavo.bench.gpu.api_cost import token_seconds
from octavo.bench.gpu.attention import attention_rate
from octavo.bench.gpu.child import Report
from octavo.bench.gpu.planning import step_seconds
from octavo.bench.gpu.setting import Setting
from octavo.bench.gpu.timing import seconds_of


class KernelStage:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._device = torch.device(setting.device)

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
        yield

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"probe": self.probe, "T8": self.attention, "T14.plan": self.planning, "T13.api": self.api}

    @torch.inference_mode()
    def probe(self, report: Report) -> None:
        """Copy and matrix product, the two ceilings."""
        sizes = self._setting.sizes
        report("copy", self._copy_rate(sizes.probe_elements) / 1e9)
        n = sizes.probe_gemm
        a, b = (torch.randn(n, n, device=self._device, dtype=torch.bfloat16) for _ in range(2))
        took = seconds_of(lambda: torch.mm(a, b), self._device)
        report("gemm", 2 * n**3 / took / 1e12)

    def _copy_rate(self, elements: int) -> float:
        source = torch.randn(elements // 64, device=self._device, dtype=torch.bfloat16).repeat(64)
        target = torch.empty_like(source)
        return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), self._device)

    def attention(self, report: Report) -> None:
        """Both mixes of lengths."""
        sizes = self._setting.sizes
        low, high = sizes.attention_mixed
        uniform = [sizes.attention_uniform] * sizes.attention_rows
        generator = torch.Generator().manual_seed(0)
        mixed = torch.randint(low, high + 1, (sizes.attention_rows,), generator=generator).tolist()
        for point, lens in (("T8", uniform), ("T8.mixed", mixed)):
            rate, how = attention_rate(self._setting.small, lens, sizes.attention_layers, self._device)
            report(point, rate / 1e9, how)

    def planning(self, report: Report) -> None:
        """The engine's core over a device that answers at once."""
        took = step_seconds(self._setting.sizes.count, prompt=100, steps=100 if self._setting.tiny else 300)
        report("T14.plan", 1e6 * took)

    def api(self, report: Report) -> None:
        """The API process over an engine that is not there."""
        sizes = self._setting.sizes
        took = token_seconds(sizes.load_at_once, 20 if self._setting.tiny else sizes.load_out)
        report("T13.api", 1e6 * took)
