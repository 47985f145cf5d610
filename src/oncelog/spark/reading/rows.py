"""What is found in a file: rows, and pieces that are no rows, each with its place."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True):
    """A row of a text file. ``cells`` are the texts of the wanted columns (CSV), ``text`` is the object itself (JSON).

    ``rescued`` holds what the schema has no place for: JSON text by the field's name.
    """

    line: int
    text: str = ""
    cells: tuple[str | None, ...] = ()
    rescued: dict[str, str] = {}


class Rejected(msgspec.Struct, frozen=True):
    """A piece of a file that is no row: what it says, on which line, and why it was rejected."""

    line: int
    raw: bytes
    reason: str


Piece = Row | Rejected
