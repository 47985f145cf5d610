"""Columns in Spark's words: what a log has to read, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncelog.errors import InvalidArgument
from oncelog.format.payload.schema import READ_SCHEMA

_HEADERS = MapType(StringType(), BinaryType())
_READ: dict[str, DataType] = {
    "position": LongType(),
    "segment": LongType(),
    "entry": LongType(),
    "timestamp": TimestampType(),
    "id": StringType(),
    "stream": StringType(),
    "type": StringType(),
    "value": BinaryType(),
    "headers": _HEADERS,
    "producer": StringType(),
    "sequence": LongType(),
    "tenant": StringType(),
}
_TEXT = (StringType,)
_WRITE: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "id": _TEXT,
    "stream": _TEXT,
    "type": _TEXT,
    "headers": (MapType, ArrayType),
    "producer": _TEXT,
    "sequence": (LongType, IntegerType, ShortType),
    "tenant": _TEXT,
}
_ASSIGNED = ("position", "segment", "entry", "timestamp")


def of(columns: Sequence[str] | None, *, with_headers: bool = True) -> StructType:
    """Return the columns of a log, or those named, as Spark's."""
    if columns is None and not with_headers:
        columns = [name for name in _READ if name != "headers"]
    for name in columns or ():
        if name not in _READ:
            message = f"option columns: no column {name!r}, there are {', '.join(_READ)}"
            raise InvalidArgument(message)
    return StructType([StructField(name, _READ[name]) for name in columns or _READ])


def check_read(schema: StructType) -> list[str]:
    """Return the columns of a schema that a user gave with ``.schema(…)``, in its order."""
    for field in schema.fields:
        if field.name not in _READ:
            message = f"schema: no column {field.name!r}, there are {', '.join(_READ)}"
            raise InvalidArgument(message)
        if field.dataType != _READ[field.name]:
            message = (
                f"schema: column {field.name} is {field.dataType.simpleString()}, must be "
                f"{_READ[field.name].simpleString()}; cast it after reading"
            )
            raise InvalidArgument(message)
    return list(schema.fieldNames())


def arrow(names: Sequence[str]) -> pa.Schema:
    """Return the columns as Spark wants them in Arrow: all nullable."""
    return pa.schema([pa.field(name, READ_SCHEMA.field(name).type) for name in names])


def check_write(schema: StructType, id_column: str | None) -> None:
    """Check the columns of what is to be written; ``InvalidArgument`` says all that is wrong with them."""
    names = [name.lower() for name in schema.fieldNames()]
    id_column = id_column.lower() if id_column is not None else None
    wrong = [f"{name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if "value" not in names:
        wrong.append("value is missing, must be binary or string")
    if id_column is not None and id_column not in names:
        wrong.append(f"{id_column} is missing, and idColumn names it")
    if id_column not in {None, "id"} and "id" in names:
        wrong.append(f"id is there beside idColumn {id_column}, must be one of them")
    for field in schema.fields:
        name = field.name.lower()
        rule = _rule("id" if name == id_column else name, field.dataType, nullable=field.nullable)
        if rule:
            wrong.append(f"{field.name} {rule}")
    if wrong:
        message = f"columns cannot be written: {'; '.join(wrong)}. A log takes {', '.join(_WRITE)}"
        raise InvalidArgument(message)


def _rule(name: str, kind: DataType, *, nullable: bool) -> str | None:
    if name in _ASSIGNED:
        return "is assigned by the log: select the other columns, or drop it"
    if name not in _WRITE:
        return "is unknown: drop it, or put it into value or headers"
    if name in {"producer", "sequence"} and not nullable:
        return "is never null, and rows from Spark are deduplicated by id: drop it, or put it into value or headers"
    if isinstance(kind, NullType) and name != "value":
        return None
    if not isinstance(kind, _WRITE[name]) or (name == "headers" and not _is_headers(kind)):
        return f"is {kind.simpleString()}, must be {_wanted(name)}{_cast(name, kind)}"
    return None


def _wanted(name: str) -> str:
    if name == "headers":
        return "map<string,binary>, map<string,string>, or Kafka's array<struct<key:string,value:binary>>"
    return " or ".join(each().simpleString() for each in _WRITE[name])


def _cast(name: str, kind: DataType) -> str:
    return f": select CAST({name} AS STRING)" if _WRITE[name] == _TEXT and isinstance(kind, AtomicType) else ""


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        fields = [(field.name.lower(), type(field.dataType)) for field in kind.elementType.fields]
        return fields in ([("key", StringType), ("value", BinaryType)], [("key", StringType), ("value", StringType)])
    if not isinstance(kind, MapType):
        return False
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, BinaryType | StringType)
