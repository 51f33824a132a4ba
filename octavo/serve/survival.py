"""Counts of what the server has lived through, for ``/metrics``."""

from collections.abc import Callable

from octavo.engine.life import Survival
from octavo.serve.series import Family, Gauges, Totals


def survival_families(survival: Callable[[], Survival]) -> tuple[Family, ...]:
    """Read when Prometheus asks."""
    return (
        Totals(
            "engine_restarts",
            "Times the engine's process was started again.",
            lambda: [((), float(survival().restarts))],
        ),
        Totals(
            "requests_replayed",
            "Sequences that went on in another process of the engine.",
            lambda: [((), float(survival().replayed))],
        ),
        Totals(
            "requests_failed_by_crash",
            "Sequences ended because the engine crashed under them.",
            lambda: [((), float(survival().failed))],
        ),
        Gauges(
            "engine_restart_seconds",
            "Seconds from the end of the engine's last process until the next took requests.",
            lambda: [((), survival().last_restart_s)],
        ),
    )
