"""What is found in a file: rows, and pieces that are no rows, each with its place."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from oncelog.limits import VALUE_BYTES_MAX

ROW_BYTES_MAX = VALUE_BYTES_MAX
"""A text that is longer is no row: Spark holds rows in memory, and needs half a minute to parse one of this size."""


class TextRow(msgspec.Struct, frozen=True):
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


class Clean(msgspec.Struct, frozen=True):
    """Neighbouring lines of which each is one object, with fields that are all known and none of them twice.

    ``text`` has the lines one behind the other, and ``ends`` where each ends. ``columns`` has the values of each field,
    in the order of the shape; ``None`` where a line has none.
    """

    line: int
    text: bytes
    ends: NDArray[np.int64]
    columns: list[list[Any]]


Piece = TextRow | Rejected
