"""CSV by RFC 4180: quotes double, a cell may hold line breaks, and each file's own header names its cells.

Spark's reader puts cells under the wrong columns when a header has another order, changes line breaks in cells, and
lets a quote that is not closed swallow the file.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from oncelog.spark.reading import bytes_of, exact
from oncelog.spark.reading.rows import ROW_BYTES_MAX, Piece, Rejected, TextRow

PIECE_BYTES = 8 << 20
"""How much of a text that is no row goes into one piece."""

_BATCH = 2000
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""The byte order mark, where a file was joined to another."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How cells are written; names are Spark's. Without an escape, or with an empty one, quotes double."""

    sep: str = ","
    quote: str = '"'
    escape: str | None = None
    header: bool = False
    null: str = ""


class _Lines:
    """Hands lines to the parser, and remembers those of the record that is being read."""

    def __init__(self, chunks: Iterator[list[bytes]], dialect: Dialect) -> None:
        self._lines = (line for chunk in chunks for line in chunk)
        self._dialect = dialect
        self.number = 0
        self.taken: list[bytes] = []
        self.is_text = True
        self._in_quotes = False
        special = filter(None, (dialect.quote, dialect.escape))
        self._special = re.compile("|".join(map(re.escape, special)))

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            self.taken.append(line)
            try:
                text = line.decode()
            except UnicodeDecodeError:
                self.is_text = False
                text = line.decode(errors="replace")
            yield self._plain(text)

    def _plain(self, line: str) -> str:
        """Return a line in which a quote that is escaped is doubled, as the parser has it.

        As Spark reads an escape: in a cell in quotes it stands before a quote or before itself, and else it is text.
        """
        quote, escape = self._dialect.quote, self._dialect.escape
        if escape in {None, "", quote} or not quote or not (self._in_quotes or quote in line):
            return line
        made, at = [], 0
        while at < len(line):
            if self._in_quotes:
                part, at = self._quoted(line, at)
            elif line.startswith(quote, at):
                part, at, self._in_quotes = quote, at + 1, True
            else:
                part, at = self._rest_of_cell(line, at)
            made.append(part)
        return "".join(made)

    def _quoted(self, line: str, at: int) -> tuple[str, int]:
        """Return the next part of a cell in quotes, and where it ends."""
        quote, escape = self._dialect.quote, self._dialect.escape
        found = self._special.search(line, at)
        end = len(line) if found is None else found.start()
        if end > at:
            return line[at:end], end
        following = line[at + 1 : at + 2]
        if line[at] == escape:
            return {quote: 2 * quote, escape: line[at]}.get(following, line[at]), at + 1 + (
                following in {quote, escape}
            )
        self._in_quotes = False
        part, end = self._rest_of_cell(line, at + 1)
        return quote + (" " if following == quote else "") + part, end  # two quotes would be one that is doubled

    def _rest_of_cell(self, line: str, at: int) -> tuple[str, int]:
        end = line.find(self._dialect.sep, at) + 1 or len(line)
        return line[at:end], end

    def record(self) -> tuple[int, bytes, bool]:
        """Return the line that the record began on, its text, and whether all of that is UTF-8; then forget it."""
        raw, self.taken = b"".join(self.taken), []
        is_text, self.is_text = self.is_text, True
        self._in_quotes = False
        return self.number - raw.count(b"\n") + raw.endswith(b"\n"), raw, is_text


class CsvParser:
    """Finds the rows of one file."""

    def __init__(self, columns: Sequence[str], dialect: Dialect, kinds: Mapping[str, Any] | None = None) -> None:
        self._columns = columns
        self._checked = [(name, kind) for name, kind in (kinds or {}).items() if exact.is_checked(kind)]
        self._dialect = dialect
        csv.field_size_limit(ROW_BYTES_MAX)

    def pieces(self, chunks: Iterator[list[bytes]]) -> Iterator[list[Piece]]:
        """Yield what is in a file, in lists."""
        lines = _Lines(chunks, self._dialect)
        records = self._records(lines)
        places: list[str] | None = None if self._dialect.header else list(self._columns)
        wrong: str | None = None
        header: list[str] = []
        found: list[Piece] = []
        try:
            for number, raw, cells in records:
                if isinstance(cells, str):
                    found += _rejected(number, raw, cells)
                elif places is None:
                    places, header = self._named(cells), cells
                    wrong = _header_fault(places, self._columns)
                elif len(cells) > 1 and [cells[0].removeprefix(_MARK), *cells[1:]] == header:
                    found.append(Rejected(number, raw, "is the header once more: were files joined?"))
                else:
                    found.append(self._row(number, raw, cells, places, wrong))
                if len(found) >= _BATCH:
                    yield found
                    found = []
        except bytes_of.DAMAGED:
            yield found  # what comes before the damage
            raise
        yield found

    def _records(self, lines: _Lines) -> Iterator[tuple[int, bytes, list[str] | str]]:
        """Yield each record with its line and its text: its cells, or what is wrong with it."""
        given = self._dialect
        reader = csv.reader(
            iter(lines),
            delimiter=given.sep,
            quotechar=given.quote or None,
            quoting=csv.QUOTE_MINIMAL if given.quote else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number, raw, _ = lines.record()
                yield number, raw, _fault(error)
                continue
            number, raw, is_text = lines.record()
            if raw.strip() or len(cells) > 1:  # a line of tabs is a row of TSV, and no blank line
                yield number, raw, cells if is_text else "is not UTF-8"

    def _named(self, cells: list[str]) -> list[str]:
        """Return the columns that a header names, in its order: the schema's own spelling where the case differs."""
        known = {name.casefold(): name for name in self._columns}
        exact = set(self._columns)
        return [cell if cell in exact else known.get(cell.strip().casefold(), cell) for cell in cells]

    def _row(self, number: int, raw: bytes, cells: list[str], places: list[str], wrong: str | None) -> Piece:
        if wrong is not None:
            return Rejected(number, raw, wrong)
        if len(cells) != len(places):
            return Rejected(number, raw, f"has {len(cells)} cells, and there are {len(places)} columns")
        by_name = {
            name: None if cell == self._dialect.null or not cell else cell
            for name, cell in zip(places, cells, strict=True)
        }
        known = set(self._columns)
        rescued = {name: json.dumps(cell) for name, cell in by_name.items() if name not in known and cell}
        for name, kind in self._checked:
            cell = by_name.get(name)
            if cell is not None and not exact.holds(kind, cell):
                rescued[name], by_name[name] = json.dumps(cell), None
        return TextRow(number, cells=tuple(by_name.get(name) for name in self._columns), rescued=rescued)


def _header_fault(places: list[str], columns: Sequence[str]) -> str | None:
    twice = sorted(name for name, count in Counter(places).items() if count > 1)
    if twice:
        return f"the header names {twice[0]!r} twice"
    if not set(places) & set(columns):
        return f"the header names none of the columns {', '.join(columns)}"
    return None


def _fault(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quote is opened here, and never closed"
    if "field limit" in str(error):
        return f"a cell has more than {ROW_BYTES_MAX:,} bytes: is a quote not closed?"
    return "text follows a closing quote" if "expected after" in str(error) else f"is not CSV: {error}"


def _rejected(number: int, raw: bytes, reason: str) -> Iterator[Rejected]:
    """Yield a text that is no row, in pieces that a log takes."""
    for start in range(0, max(1, len(raw)), PIECE_BYTES):
        yield Rejected(number + raw.count(b"\n", 0, start), raw[start : start + PIECE_BYTES], reason)
