"""Schemas from files of others, without types that bring code.

The schema of a frame may have a *user-defined type*: the name of a Python class. A Parquet file that Spark wrote has
such a schema in its footer, and anybody can write one. PySpark imports the module of the class, and so runs a module of
the file's choice, as soon as a program asks a frame for its columns (older versions unpickle the class, which is in the
schema, too). So the schema is looked at first, as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oncelog.errors import CorruptionError, InvalidArgument
from oncelog.shapes import UNREADABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def plain(rows: DataFrame, where: str | None) -> DataFrame:
    """Return a frame that was read from files as it is; ``InvalidArgument`` if a column has a type that brings code."""
    text = rows._jdf.schema().json()  # noqa: SLF001 (rows.schema would import the class)
    if _brings_code(msgspec.json.decode(text)):
        message = (
            f"{where or 'the source'}: a column has a user-defined type, by which the file names a module to run: give "
            "the columns by source.schema, or write the file without it"
        )
        raise InvalidArgument(message)
    return rows


def kept(path: Path) -> StructType:
    """Return the schema that an earlier run kept in a file; ``CorruptionError`` for what is none."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 (as in session)

    try:
        found: Any = msgspec.json.decode(path.read_bytes())
        if not _brings_code(found):
            return StructType.fromJson(found)
        reason = "it has a user-defined type, which would run code"
    except (*UNREADABLE, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    message = (
        f"{path}: not the schema of a pipeline ({reason}): remove the file, and the columns are taken from the source"
    )
    raise CorruptionError(message)


def _brings_code(schema: Any) -> bool:
    return any(isinstance(part, dict) and part.get("type") == "udt" for part in _parts(schema))


def _parts(schema: Any) -> Iterator[Any]:
    """Yield all that is in a document. It may be nested deeply: nothing calls itself here."""
    left = [schema]
    while left:
        part = left.pop()
        yield part
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
