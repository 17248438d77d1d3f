"""Small charts as inline SVG text, drawn with the page's own colours. No text from a record gets in unescaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 210, 58, 30, 12


def residual_stream(layers: Sequence[Mapping[str, Any]]) -> str:
    """Relative error after each layer and its bound, on a logarithmic scale."""
    points = [(each["error"], each["error"] / each["headroom"]) for each in layers if usable(each)]
    if len(points) < 2:
        return "<p>No layer has a finite error to draw.</p>"
    low = math.floor(math.log10(min(error for error, _ in points)))
    high = math.ceil(math.log10(max(bound for _, bound in points)))

    def place(index: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 10) * index / (len(points) - 1)
        y = TOP + (HEIGHT - BOTTOM - TOP) * (high - math.log10(value)) / max(high - low, 1)
        return f"{x:.1f},{y:.1f}"

    def line(column: int, style: str) -> str:
        path = " ".join(place(index, point[column]) for index, point in enumerate(points))
        return f'<polyline class="{style}" points="{path}"/>'

    rules = []
    for power in range(low, high + 1):
        y = place(0, 10.0**power).partition(",")[2]
        rules.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}"/>')
        rules.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">1e{power}</text>')
    ticks = "".join(
        f'<text x="{place(i, 10.0**low).partition(",")[0]}" y="{HEIGHT - 10}" text-anchor="middle">{i}</text>'
        for i in range(0, len(points), max(1, len(points) // 10))
    )
    label = f"relative error of the residual stream after each of {len(points)} layers, and its bound"
    body = "".join(rules) + ticks + line(1, "bound") + line(0, "error")
    return _svg(WIDTH, HEIGHT, label, body)


def bar(share: float | None, label: str) -> str:
    """A horizontal bar: how much of the ceiling is reached."""
    filled = 0 if share is None else max(0.0, min(share, 1.0))
    track = '<rect class="track" width="240" height="14" rx="3"/>'
    return _svg(240, 14, label, f'{track}<rect class="fill" width="{240 * filled:.1f}" height="14" rx="3"/>')


def sparkline(samples: Sequence[float]) -> str:
    """The times of the single tokens, as they came."""
    if len(samples) < 2:
        return ""
    top = max(samples)
    points = " ".join(f"{240 * i / (len(samples) - 1):.1f},{30 - 28 * s / top:.1f}" for i, s in enumerate(samples))
    return _svg(
        240,
        32,
        f"{len(samples)} inter-token times, largest {top:.1f} ms",
        f'<polyline class="error" points="{points}"/>',
    )


def trend(values: Sequence[float], changes: Sequence[int]) -> str:
    """Ratios to the control, run by run, from zero up; a dashed line before the first run after each change."""
    if len(values) < 2:
        return ""
    top = max(values)
    x = [LEFT + (WIDTH - LEFT - 10) * i / (len(values) - 1) for i in range(len(values))]
    y = [TOP + 90 * (1 - value / top) for value in values]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    marks = "".join(
        f'<line class="bound" x1="{a:.1f}" x2="{a:.1f}" y1="{TOP}" y2="{TOP + 90}"/>'
        for a in ((x[i - 1] + x[i]) / 2 for i in changes)
    )
    scale = f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{top:.2f}</text>'
    scale += f'<text x="{LEFT - 6}" y="{TOP + 94}" text-anchor="end">0</text>'
    ground = f'<line class="rule" x1="{LEFT}" x2="{WIDTH - 10}" y1="{TOP + 90}" y2="{TOP + 90}"/>'
    label = f"time over its control in {len(values)} runs, {len(changes)} lasting changes"
    return _svg(WIDTH, 120, label, f'{ground}{scale}{marks}<polyline class="error" points="{points}"/>')


def usable(layer: Mapping[str, Any]) -> bool:
    """Whether a layer's error and bound can be drawn on a logarithmic scale."""
    return bool(layer["error"]) and bool(layer["headroom"])


def _svg(width: int, height: int, label: str, body: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{body}</svg>'
