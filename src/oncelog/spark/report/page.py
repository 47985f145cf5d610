"""Reports: one HTML file that opens anywhere, offline, light or dark."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline.whole_file import write_whole

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #ffffff; --ink: #1b1f24; --soft: #646c76; --rule: #e4e6e9;
  --stored: #2d6cdf; --duplicate: #b9c2cf; --conflict: #e0762b; --plain: #7a8594; --good: #16794a; --bad: #c0352b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1b1f25; --ink: #e8eaed; --soft: #9aa3ae;
  --rule: #2d333b; --stored: #5f97f6; --duplicate: #56606e; --conflict: #f0934e; --plain: #8d97a5; --good: #4cc38a;
  --bad: #ff7b6e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 48px 24px 72px; }
header p, footer { color: var(--soft); }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
header p { margin: 0; max-width: 66ch; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 20px 22px;
  margin: 20px 0; }
section > p { margin: 0 0 14px; color: var(--soft); max-width: 76ch; }
.figures { display: flex; flex-wrap: wrap; gap: 1px; overflow: hidden;
  background: var(--rule); border: 1px solid var(--rule); border-radius: 10px; margin: 28px 0 20px; }
.figures div { flex: 1 1 auto; min-width: 96px; max-width: 100%; background: var(--card); padding: 14px 14px; }
.figures b { display: block; font-size: 22px; font-weight: 600; line-height: 1.2; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.figures span { display: block; color: var(--soft); font-size: 13px; line-height: 1.3; margin-top: 2px; }
.good b, td.good { color: var(--good); } .bad b, td.bad { color: var(--bad); }
svg { display: block; width: 100%; min-width: 560px; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
@media (max-width: 640px) { main { padding: 28px 12px 48px; } section { padding: 16px 14px; }
  svg text { font-size: 14px; } .figures div { min-width: 88px; padding: 12px 10px; } }
svg text.strong { fill: var(--ink); font-weight: 600; } svg text.mark { fill: var(--bad); font-weight: 600; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg line.mark { stroke: var(--bad); stroke-dasharray: 4 3; }
rect.stored { fill: var(--stored); } rect.duplicate { fill: var(--duplicate); } rect.conflict { fill: var(--conflict); }
rect.plain { fill: var(--plain); } svg g:hover rect { opacity: 0.8; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .line.stored { stroke: var(--stored); }
.line.plain { stroke: var(--plain); } .line.conflict { stroke: var(--conflict); }
.dot { stroke: var(--card); stroke-width: 1.5; } .dot.stored { fill: var(--stored); } .dot.plain { fill: var(--plain); }
.dot.conflict { fill: var(--conflict); } .line.duplicate { stroke: var(--duplicate); }
.dot.duplicate { fill: var(--duplicate); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; margin: 0 0 10px !important; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.legend i.stored { background: var(--stored); } .legend i.duplicate { background: var(--duplicate); }
.legend i.conflict { background: var(--conflict); } .legend i.plain { background: var(--plain); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr:last-child td { border-bottom: 0; }
pre { overflow-x: auto; margin: 0; font: 13px/1.5 ui-monospace, "Liberation Mono", monospace; }
details summary { cursor: pointer; color: var(--soft); }
footer { font-size: 13px; margin-top: 28px; }
"""

_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)
"""Nothing runs and nothing is fetched, whatever got into the page: its own style alone is used."""


class Figure(msgspec.Struct, frozen=True):
    """A figure that matters; ``good`` says whether it is as it should be, if that can be said."""

    name: str
    value: int
    good: bool | None = None


class Section(msgspec.Struct, frozen=True):
    """A part of a report: a plot or a table (``body`` is HTML), with a title and a sentence."""

    title: str
    text: str
    body: str


def table(head: Sequence[str], rows: Sequence[Sequence[object]], judged: Sequence[str] = ()) -> str:
    """Return a table. Columns named in ``judged`` are good when they are 0."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = []
    for row in rows:
        parts = []
        for name, cell in zip(head, row, strict=True):
            style = "" if name not in judged else f' class="{"good" if cell == 0 else "bad"}"'
            parts.append(f"<td{style}>{html.escape(f'{cell:,}' if isinstance(cell, int) else str(cell))}</td>")
        lines.append(f"<tr>{''.join(parts)}</tr>")
    return f'<div class="scroll"><table><tr>{cells}</tr>{"".join(lines)}</table></div>'


def page(title: str, intro: str, figures: Sequence[Figure], sections: Sequence[Section], footer: str) -> str:
    """Return a report as one HTML page."""
    tiles = "".join(_tile(figure) for figure in figures)
    parts = "".join(
        f"<section><h2>{html.escape(one.title)}</h2><p>{html.escape(one.text)}</p>{one.body}</section>"
        for one in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{html.escape(title)}</h1><p>{html.escape(intro)}</p></header>"
        f'<div class="figures">{tiles}</div>{parts}<footer>{html.escape(footer)}</footer></main></body></html>\n'
    )


def _tile(figure: Figure) -> str:
    style = {True: "good", False: "bad", None: ""}[figure.good]
    return f'<div class="{style}"><b>{figure.value:,}</b><span>{html.escape(figure.name)}</span></div>'


def write(path: Path, text: str) -> None:
    """Write a report, so that a reader sees the one before or this one, whole."""
    if not path.name:
        message = f"the report's path is {str(path)!r}, must name a file"
        raise InvalidArgument(message)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
