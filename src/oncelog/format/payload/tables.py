"""Tables of users (pandas, polars, any Arrow producer) to Arrow, and Arrow back to such frames."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa

from oncelog.errors import InvalidArgument, Unsupported
from oncelog.format.payload.schema import HEADERS_TYPE


class ArrowStream(Protocol):
    """A table of pandas, polars, DuckDB or another library: it hands out its columns as Arrow has them."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule, as the Arrow PyCapsule interface defines it."""
        ...


Tabular = pa.Table | pa.RecordBatch | ArrowStream
"""What ``append_arrow`` takes."""


def table_of(given: object) -> pa.Table | pa.RecordBatch:
    """Return what a user gave as an Arrow table: one already, a frame of pandas or polars, or an object that hands out
    its columns by the Arrow PyCapsule interface (``__arrow_c_stream__``).
    """
    if isinstance(given, pa.Table | pa.RecordBatch):
        return given
    if isinstance(given, pa.RecordBatchReader):
        message = "a RecordBatchReader can be read once, and a retry would find it empty: give its read_all()"
        raise InvalidArgument(message)
    if _is_frame("pandas", given):
        return _of_pandas(given)
    if _is_frame("polars", given):  # its newest layout has views, for which Arrow lacks functions
        return _of_frame(given, lambda frame: frame.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest()))
    if hasattr(given, "__arrow_c_stream__"):
        return _of_frame(given, pa.table)
    message = f"a table: is {type(given).__name__}, must be a pyarrow Table or RecordBatch, or a frame"
    raise InvalidArgument(message)


def _is_frame(library: str, given: object) -> bool:
    """Tell whether an object is a frame of a library. If there is one, its library is loaded."""
    loaded = sys.modules.get(library)
    kind = getattr(loaded, "DataFrame", None)
    return kind is not None and isinstance(given, kind)


def _of_frame(frame: Any, convert: Any) -> pa.Table:
    try:
        return convert(frame)
    except Exception as error:  # whatever the library raises
        message = f"a table: this {type(frame).__name__} cannot become an Arrow table: {error}"
        raise InvalidArgument(message) from error


def _of_pandas(frame: Any) -> pa.Table:
    """Return a frame's columns; its index is none of them. Headers may be dicts, or lists of pairs."""
    names, columns = [], []
    for at, name in enumerate(frame.columns):
        try:
            kind = HEADERS_TYPE if name == "headers" else None
            columns.append(pa.array(frame.iloc[:, at], type=kind, from_pandas=True))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{name}: this column cannot become an Arrow array: {error}"
            raise InvalidArgument(message) from error
        names.append(str(name))
    return pa.table(columns, names=names)


def to_pandas(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Any:
    """Return batches as a frame of pandas; headers are dicts."""
    _loaded("pandas")
    return pa.Table.from_batches(batches, schema).to_pandas(maps_as_pydicts="strict")


def to_polars(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Any:
    """Return batches as a frame of polars."""
    return _loaded("polars").from_arrow(pa.Table.from_batches(batches, schema))


def _loaded(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        message = f"{library} is not installed: pip install {library}"
        raise Unsupported(message) from error
