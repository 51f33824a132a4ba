"""Counts of what the server has lived through, for ``/metrics``."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.engine.life import Survival


class SurvivalCollector(Collector):
    """Read when Prometheus asks."""

    def __init__(self, model: str, survival: Callable[[], Survival]) -> None:
        self._model = model
        self._survival = survival

    def collect(self) -> Iterable[Metric]:
        survival = self._survival()
        for name, text, value in (
            ("engine_restarts", "Times the engine's process was started again.", survival.restarts),
            ("requests_replayed", "Sequences that went on in another process of the engine.", survival.replayed),
            ("requests_failed_by_crash", "Sequences ended because the engine crashed under them.", survival.failed),
        ):
            counter = CounterMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        text = "Seconds from the end of the engine's last process until the next took requests."
        gauge = GaugeMetricFamily("octavo:engine_restart_seconds", text, labels=["model_name"])
        gauge.add_metric([self._model], survival.last_restart_s)
        yield gauge
