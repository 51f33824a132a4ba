"""A chart of decode rates over batch size, as SVG written by hand: both axes logarithmic, lines named at their ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

HEIGHT = 380
TOP, BOTTOM, LEFT, PANEL, GAP = 46, 52, 58, 290, 165
LABEL_STEP = 15  # least distance of two names
COLOURS = {"limit": "#8a8a8a", "Octavo": "#b3261e", "vLLM": "#1f5fa8", "SGLang": "#2e7d4f"}
OTHER = "#7a5ca8"

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Name of a line -> its points (batch, tokens a second), in order."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its title and its lines."""

    title: str
    series: Series


def chart(panels: Sequence[Panel]) -> str:
    """Panels side by side. Lines called ``limit`` are dashed."""
    width = LEFT + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Tokens a second over batch size">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, LEFT + index * (PANEL + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: float) -> list[str]:
    points = [point for line in panel.series.values() for point in line]
    batches = sorted({batch for batch, _ in points})
    low = math.floor(math.log10(min(rate for _, rate in points)))
    high = math.ceil(math.log10(max(rate for _, rate in points)))
    high = max(high, low + 1)
    span = max(math.log2(batches[-1] / batches[0]), 1.0)

    def x(batch: float) -> float:
        return left + 12 + (PANEL - 24) * math.log2(batch / batches[0]) / span

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(rate) - low) / (high - low)

    parts = [f'<text x="{left}" y="24" font-size="14" font-weight="bold" fill="#222">{escape(panel.title)}</text>']
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e2e2e2"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#555">{_short(10**power)}</text>')
    for batch in batches:
        parts.append(
            f'<text x="{x(batch):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#555">{batch:g}</text>'
        )
    middle = left + PANEL / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="#555">requests at once</text>')
    ends = {name: y(line[-1][1]) for name, line in panel.series.items()}
    labels = _spread(ends)
    for name, line in sorted(panel.series.items(), key=lambda item: item[0] == "Octavo"):  # ours on top
        parts += _line(name, [(x(batch), y(rate)) for batch, rate in line], labels[name])
    return parts


def _line(name: str, places: Sequence[tuple[float, float]], label_y: float) -> list[str]:
    colour = COLOURS.get(name.partition(" ")[0], OTHER)
    way = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
    dash = ' stroke-dasharray="5 4"' if name == "limit" else ""
    wide = 3 if name == "Octavo" else 1.8
    dots = (
        ""
        if name == "limit"
        else "".join(
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{wide + 0.7}" fill="{colour}"/>' for across, down in places
        )
    )
    weight = ' font-weight="bold"' if name == "Octavo" else ""
    text = f'<text x="{places[-1][0] + 9:.1f}" y="{label_y + 4:.1f}" fill="{colour}"{weight}>{escape(name)}</text>'
    return [f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="{wide}"{dash}/>{dots}{text}']


def _spread(ends: Mapping[str, float]) -> dict[str, float]:
    """Heights of names near the ends of their lines, none upon another."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name, height in sorted(ends.items(), key=lambda item: item[1]):
        last = max(height, last + LABEL_STEP)
        placed[name] = last
    return placed


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
