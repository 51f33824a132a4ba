"""From results to the page: which rows the chart of decode rates shows."""

from octavo.bench.gpu.peers import Peers
from octavo.bench.plot import Panel, chart
from octavo.bench.report import Report

BATCHES = {"": 1, ".16": 16, ".64": 64}
PANELS = {"T5": "Qwen3-0.6B, bf16, tokens a second", "T6": "Qwen3-8B, bf16, tokens a second"}


def decode_chart(found: Report, peers: Peers) -> str | None:
    """SVG of tokens a second over batch size: Octavo, its peers, the limit. None when no such row was measured."""
    rows = {row.id: row for row in found.rows}
    panels = []
    for first, title in PANELS.items():
        series: dict[str, list[tuple[float, float]]] = {}
        for suffix, batch in BATCHES.items():
            row = rows.get(first + suffix)
            if row is None:
                continue
            figures = {"Octavo": row.value, **peers.points.get(row.id, {})}
            if row.limit:
                figures["limit"] = row.limit
            for name, value in figures.items():
                series.setdefault(name, []).append((batch, value))
        if series:
            panels.append(Panel(title, series))
    return chart(panels) if panels else None
