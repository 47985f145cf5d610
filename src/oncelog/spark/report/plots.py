"""Plots as SVG, small and plain: they take their colours from the page they are in, light or dark, and need nothing
else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import msgspec

WIDTH = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 28
_BAR, _GAP = 22, 14
_LABELS = 12
_TICKS = 4


class Series(msgspec.Struct, frozen=True):
    """Figures of one kind. ``style`` is a class of the page: ``stored``, ``duplicate``, ``conflict``, ``plain``."""

    name: str
    style: str
    values: Sequence[float]


class PlotMark(msgspec.Struct, frozen=True):
    """Something that happened at one place of the x axis."""

    x: float
    text: str


def columns(labels: Sequence[str], series: Sequence[Series], *, what: str, height: int = 240) -> str:
    """Return stacked columns, one for each label."""
    totals = [sum(one.values[at] for one in series) for at in range(len(labels))]
    top, grid = _axis(max(totals, default=0), height)
    inner = WIDTH - _LEFT - _RIGHT
    step = inner / max(1, len(labels))
    width = max(1.0, min(36.0, step - 3))
    parts = [grid]
    for at, label in enumerate(labels):
        x = _LEFT + at * step + (step - width) / 2
        y = float(height - _BOTTOM)
        lines = [label, *(f"{one.name}: {one.values[at]:,.0f}" for one in series)]
        rects = []
        for one in series:
            size = one.values[at] / top * (height - _TOP - _BOTTOM)
            if size > 0:
                y -= size
                rects.append(_rect(x, y, width, size, one.style))
        parts.append(f"<g>{_title(lines)}{''.join(rects)}</g>")
        if at % max(1, math.ceil(len(labels) / _LABELS)) == 0:
            parts.append(_text(_LEFT + at * step + step / 2, height - 9, label, "middle"))
    return _svg(parts, height, what)


def bars(rows: Sequence[tuple[str, Sequence[float], str]], series: Sequence[Series], *, what: str) -> str:
    """Return stacked bars that lie: each row has its name, a figure for each series, and what stands at its end.

    Of ``series``, the names and styles are used.
    """
    height = _TOP + len(rows) * (_BAR + _GAP)
    left = 12 + max((len(name) for name, _, _ in rows), default=0) * 7.2
    room = WIDTH - left - _RIGHT - max((len(end) for _, _, end in rows), default=0) * 7.0
    longest = max((sum(values) for _, values, _ in rows), default=0) or 1
    parts = []
    for number, (name, values, end) in enumerate(rows):
        y = _TOP + number * (_BAR + _GAP)
        x = left
        lines = [name, *(f"{one.name}: {value:,.0f}" for one, value in zip(series, values, strict=True))]
        rects = []
        for one, value in zip(series, values, strict=True):
            size = value / longest * room
            if size > 0:
                rects.append(_rect(x, y, size, _BAR, one.style))
                x += size
        parts.append(f"<g>{_title(lines)}{''.join(rects)}</g>")
        parts.append(_text(left - 8, y + _BAR / 2 + 4, name, "end"))
        parts.append(_text(x + 8, y + _BAR / 2 + 4, end, "start", "strong"))
    return _svg(parts, height, what)


def lines(
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    what: str,
    unit: str,
    marks: Sequence[PlotMark] = (),
    height: int = 220,
) -> str:
    """Return lines over a common x axis, which is in ``unit``, with what happened marked on it."""
    top, grid = _axis(max((max(one.values, default=0) for one in series), default=0), height)
    last = max([*xs, *(mark.x for mark in marks)], default=0) or 1
    inner = WIDTH - _LEFT - _RIGHT

    def at(x: float) -> float:
        return _LEFT + x / last * inner

    parts = [grid]
    for mark in marks:
        side = "end" if at(mark.x) > WIDTH * 0.6 else "start"
        shift = -6 if side == "end" else 6
        parts.append(
            f'<line class="mark" x1="{at(mark.x):.1f}" x2="{at(mark.x):.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        )
        parts.append(_text(at(mark.x) + shift, _TOP + 10, mark.text, side, "mark"))
    for one in series:
        points = [
            (at(x), height - _BOTTOM - y / top * (height - _TOP - _BOTTOM)) for x, y in zip(xs, one.values, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line {one.style}" points="{path}"/>')
        for (x, y), given, value in zip(points, xs, one.values, strict=True):
            title = _title([f"{given:,.1f} {unit}", f"{one.name}: {value:,.0f}"])
            parts.append(f'<circle class="dot {one.style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>')
    parts += [_text(at(tick), height - 9, f"{tick:g} {unit}", "middle") for tick in _ticks(last) if tick <= last]
    return _svg(parts, height, what)


def legend(series: Sequence[Series]) -> str:
    """Return what the colours mean."""
    items = "".join(f'<span><i class="{one.style}"></i>{html.escape(one.name)}</span>' for one in series)
    return f'<p class="legend">{items}</p>'


def _axis(highest: float, height: int) -> tuple[float, str]:
    """Return the top of the y axis and its grid."""
    ticks = _ticks(highest or 1)
    top = max(ticks[-1], highest, 1e-9)
    parts = []
    for tick in ticks:
        y = height - _BOTTOM - tick / top * (height - _TOP - _BOTTOM)
        style = "grid" if tick else "axis"
        parts.append(f'<line class="{style}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, _short(tick), "end"))
    return top, "".join(parts)


def _ticks(highest: float) -> list[float]:
    """Return about four round figures from 0 up to beyond the highest, or just below it.

    >>> _ticks(13_700)
    [0, 5000, 10000, 15000]
    """
    step = 10 ** math.floor(math.log10(highest / 3)) if highest > 0 else 1
    step = next(step * factor for factor in (1, 2, 5, 10) if highest / (step * factor) <= _TICKS)
    return [step * number for number in range(math.ceil(highest / step) + 1)]


def _short(figure: float) -> str:
    """Return a figure as an axis has room for it.

    >>> _short(0), _short(15_000), _short(2_500_000), _short(0.5)
    ('0', '15k', '2.5M', '0.5')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if figure >= size:
            return f"{figure / size:g}{letter}"
    return f"{figure:g}"


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _title(lines: Sequence[str]) -> str:
    return f"<title>{html.escape(chr(10).join(lines))}</title>"


def _svg(parts: Sequence[str], height: int, what: str) -> str:
    label = html.escape(what)
    drawn = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{drawn}</div>'
