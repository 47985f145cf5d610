"""What commands print: tables for people, JSON for programs, and on stderr how far they have come."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from oncelog.cli.terminal.quantities import show_bytes, show_count
from oncelog.redaction import harmless, harmless_json, harmless_line

_One = TypeVar("_One")
_PIPE_WIDTH = 1000
"""Nothing is wrapped or cut in a pipe."""

_FOLDED_WIDTH = 20
_GAP = 2
_SEPARATORS = "/-._"


_FILLING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


class _Console(Console):
    """The one way out for text that people see: whatever is printed, the text in it is harmless.

    It leaves it to the command what a reader's going means.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is written: text made harmless, and the control codes of rich itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Say that the reader has gone, as the stream itself would."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return the console on stdout, or on stderr."""
    if stderr:
        return _Console(stderr=True, highlight=False)
    return _Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def say(*parts: str | tuple[str, str] | Text) -> None:
    """Print one line on stdout, and never more than one; a part may come with its style."""
    console().print(_line(parts), soft_wrap=True)


def note(*parts: str | tuple[str, str] | Text) -> None:
    """Print one line on stderr."""
    console(stderr=True).print(_line(parts), soft_wrap=True)


def _line(parts: Iterable[str | tuple[str, str] | Text]) -> Text:
    line = Text()
    for part in parts:
        text, style = part if isinstance(part, tuple) else (part, None)
        line.append(harmless_line(text) if isinstance(text, str) else text, style)
    return line


def print_json(value: object) -> None:
    """Print one JSON object, on one line."""
    sys.stdout.write(json_line(value))


def json_line(value: object) -> str:
    """Return one JSON object on a line, with what a terminal would obey written as escapes.

    The name of a file may have bytes that are no UTF-8, which Python keeps as lone surrogates: escapes, too.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        plain = json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda _: None)  # NaN is no JSON
        text = json.dumps(plain, separators=(",", ":"))
    return harmless_json(text) + "\n"


def json_value(value: bytes) -> dict[str, str]:
    """Return a value for JSON: as text where it is text."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def print_text(text: str) -> None:
    """Print a value as a line: as it is for a pipe, harmless for a terminal."""
    sys.stdout.write((harmless_line(text) if sys.stdout.isatty() else text) + "\n")


def print_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | Text]], *, whole: bool = False
) -> None:
    """Print a table. A column is its heading and how it stands: ``left``, ``right``, or ``fold`` for long text.

    Cells are shown as they are: a name in brackets is no style, and a tab is no place to go to. A column that is empty
    in every row is left out, unless the ``whole`` table was asked for. A table that is wider than the terminal is
    printed row by row, a line for each cell that is not empty: no number is ever cut.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    is_whole = whole or not cells
    filled = [number for number, _ in enumerate(columns) if is_whole or any(row[number] for row in cells)]
    columns, cells = [columns[number] for number in filled], [[row[number] for number in filled] for row in cells]
    terminal = console()
    if _width(columns, cells) > terminal.width:
        print_facts(("", [(name, cell) for (name, _), cell in zip(columns, row, strict=True) if cell]) for row in cells)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading, stands in columns:
        table.add_column(
            _cell(heading), justify="right" if stands == "right" else "left", overflow="fold", no_wrap=stands != "fold"
        )
    room = _folded_room(columns, cells, terminal.width)
    for row in cells:
        table.add_row(
            *(broken(cell, room) if stands == "fold" else cell for cell, (_, stands) in zip(row, columns, strict=True))
        )
    _print_lean(terminal, table)


def _folded_room(columns: Sequence[tuple[str, str]], cells: Sequence[Sequence[Text]], width: int) -> int:
    """Return the width that each column of long text has, when the others have what they need."""
    kept = [number for number, (_, stands) in enumerate(columns) if stands != "fold"]
    needed = _width([columns[number] for number in kept], [[row[number] for number in kept] for row in cells])
    count = len(columns) - len(kept)
    return max(_FOLDED_WIDTH, (width - needed - _GAP * count) // max(1, count))


def broken(cell: Text, room: int) -> Text:
    """Return a long name in lines that end behind a separator: a reader sees its parts whole. Text that has spaces is
    folded at those.
    """
    name, at, ends = cell.plain, 0, list[int]()
    if " " in name or cell.cell_len != len(name):
        return cell
    while len(name) - at > room:
        behind = 1 + max(name.rfind(mark, at, at + room) for mark in _SEPARATORS)
        at = behind if behind > at else at + room
        ends.append(at)
    return Text("\n").join(cell.divide(ends)) if ends else cell


def _width(columns: Sequence[tuple[str, str]], cells: Sequence[Sequence[Text]]) -> int:
    """Return the width that a table needs; a column of long text needs little, because such text is folded."""
    widths = [
        max(cell_len(heading), *(row[number].cell_len for row in cells), 0)
        for number, (heading, _) in enumerate(columns)
    ]
    folded = [
        min(width, _FOLDED_WIDTH) if stands == "fold" else width
        for width, (_, stands) in zip(widths, columns, strict=True)
    ]
    return sum(folded) + _GAP * (len(columns) - 1)


def _cell(text: str | Text) -> Text:
    """Return text as it is on one line. As a ``str``, Rich would look for styles and links in it."""
    if isinstance(text, Text):
        return Text(_cell(text.plain).plain, text.style)
    return Text(harmless_line(text).replace("\t", "\\t"))


def print_list(
    found: Sequence[_One],
    columns: Sequence[tuple[str, str]],
    row: Callable[[_One], Sequence[str | Text]],
    *nothing: str | tuple[str, str],
    json: bool,
    plain: Callable[[_One], object] = lambda one: one,
) -> None:
    """Print things: one JSON object a line for programs; a table for people, or a line if there is nothing."""
    if json:
        for one in found:
            print_json(plain(one))
    elif found:
        print_table(columns, [row(one) for one in found])
    else:
        say(*nothing)


def print_facts(sections: Iterable[tuple[str, Sequence[tuple[str, str | Text]]]]) -> None:
    """Print named facts in sections, all values below each other."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, (title, facts) in enumerate(sections):
        if number:
            table.add_row()
        if title:
            table.add_row(Text(harmless_line(title), "bold not dim"))
        for name, value in facts:
            table.add_row(_cell(name), value if isinstance(value, Text) else Text(harmless(value)))
    _print_lean(console(), table)


def _print_lean(terminal: Console, table: Table) -> None:
    """Print a table without the spaces that fill its last column: a copied line has no spaces at its end."""
    with terminal.capture() as printed:
        terminal.print(table)
    terminal.file.write(_FILLING.sub(r"\1", printed.get()))


class _Done(ProgressColumn):
    """How much was done, of how much: bytes, or things."""

    def render(self, task: Task) -> Text:
        if task.fields["unit"] == "bytes":
            total = f" of {show_bytes(int(task.total))}" if task.total is not None else ""
            return Text(f"{show_bytes(int(task.completed))}{total}", "cyan")
        total = f" of {task.total:,.0f}" if task.total is not None else ""
        return Text(f"{task.completed:,.0f}{total} {task.fields['unit']}", "cyan")


class _Rate(ProgressColumn):
    """How many records a second."""

    def render(self, task: Task) -> Text:
        records, elapsed_s = task.fields["records"], task.elapsed
        rate = task.fields.get("rate") or (records / elapsed_s if elapsed_s else 0)
        return Text(f"{rate:,.0f} records/s" if rate else "", "green")


class Meter:
    """How far a command has come."""

    def __init__(self, progress: Progress, what: str, unit: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(harmless_line(what), total=total, unit=unit, records=0)

    def to(self, done: float, records: int, total: int | None = None) -> None:
        """Show that so much is done, in the meter's unit, and so many records."""
        changes: dict[str, Any] = {} if total is None else {"total": total}
        self._progress.update(self._task, completed=done, records=records, **changes)

    def now(self, what: str, unit: str, records_per_second: float) -> None:
        """Show what is being done from now on, counted in what, and how quickly."""
        self._progress.update(self._task, description=harmless_line(what), unit=unit, rate=records_per_second)


@contextmanager
def meter(what: str, *, unit: str = "records", total: int | None = None, hidden: bool = False) -> Iterator[Meter]:
    """Show a progress bar with rate and remaining time on stderr, if that is a terminal; it goes when it is done."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Done(),
        _Rate(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=hidden or not sys.stderr.isatty(),
    )
    with progress:
        yield Meter(progress, what, unit, total)


def plural(count: int, noun: str) -> Text:
    """Return a count with its noun, the count set off."""
    number, _, rest = show_count(count, noun).partition(" ")
    return Text.assemble((number, "bold"), " ", rest)
