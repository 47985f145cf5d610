"""Plots as SVG, drawn by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_FONT = 'font-family="system-ui, sans-serif" font-size="12"'
_WIDTH = 960
_LEFT = 400
_BAR = 18
_INK, _OURS, _RAW, _PEER, _WEAK = "#24292f", "#0b6bcb", "#8c959f", "#d98324", "#f0cfa5"
_FOURTH = "#2da44e"


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, float, str, str]]]]) -> str:
    """Draw bars in groups, on a logarithmic scale: (title, (name, value, label, kind)).

    ``kind`` is ``"ours"``, ``"raw"``, ``"peer"`` or ``"weak"`` (a peer that does less).
    """
    parts: list[str] = []
    y = 10
    for title, rows in groups:
        y += 24
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(title)}</text>')
        y += 8
        low = 10 ** math.floor(math.log10(min(value for _, value, _, _ in rows)) - 0.3)
        high = max(value for _, value, _, _ in rows)
        for name, value, label, kind in rows:
            length = (_WIDTH - _LEFT - 110) * math.log(value / low) / max(math.log(high / low), 1e-9)
            colour = {"ours": _OURS, "raw": _RAW, "peer": _PEER, "weak": _WEAK}[kind]
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{max(length, 1):.0f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{_LEFT + max(length, 1) + 6:.0f}" y="{y + 13}">{escape(label)}</text>')
            y += _BAR
    return _svg(_WIDTH, y + 16, parts)


def lines(
    title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]], y_offset: int = 0
) -> tuple[str, int]:
    """Draw lines over records (logarithmic), from zero; return the drawing and its height, to be put below another."""
    points = [point for values in series.values() for point in values]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = 1.15 * max(y for _, y in points) or 1.0
    left, top, width, height = 90, y_offset + 40, 760, 180

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_low) / max(math.log(x_high / x_low), 1e-9)
        return left + across * width, top + height - y / y_high * height

    parts = [f'<text x="10" y="{y_offset + 24}" font-weight="bold">{escape(title)}</text>']
    parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#d0d7de"/>')
    for share in (0.0, 0.5, 1.0):
        value = share * y_high
        y = top + height - share * height
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{value:,.3g} {escape(unit)}</text>')
    decade = 10 ** math.ceil(math.log10(x_low) - 1e-9)
    while decade <= x_high * 1.0001:
        x, _ = place(decade, 0)
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle">{decade / 1e6:,g} M</text>')
        decade *= 10
    colours = (_OURS, _PEER, _RAW, _FOURTH)
    for number, (name, values) in enumerate(series.items()):
        colour = colours[number % len(colours)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*value) for value in values))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (place(*v) for v in values)]
        parts.append(f'<text x="{left + 8 + 160 * number}" y="{top + 16}" fill="{colour}">{escape(name)}</text>')
    return "\n".join(parts), y_offset + 40 + height + 24


def stacked(drawings: Sequence[str], height: int) -> str:
    """Return drawings that were made with offsets as one picture."""
    return _svg(_WIDTH, height + 10, drawings)


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {_FONT} fill="{_INK}">'
    return f'{head}\n<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
