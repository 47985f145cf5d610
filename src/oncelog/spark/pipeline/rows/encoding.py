"""Rows as JSON and back, without loss, for every type of Spark. Tests compare cell by cell.

``to_json`` alone cuts microseconds, writes maps whose keys are no strings in a form that ``from_json`` refuses, and
loses the types inside a variant. The encoding has a version, which is kept with a pipeline's checkpoint: a record and
its retry must be the same bytes, so a pipeline stays with the encoding that it began with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

NEWEST = 2
"""1: what ``to_json`` makes of a row. 2: microseconds, any map, variants as their text."""

_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",  # in another zone, local mean times would lose their seconds
}
_REFUSED = ("geometry", "geography")


def quoted(name: str) -> str:
    """Return a column's name as an expression.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def check(schema: StructType) -> None:
    """Raise ``InvalidArgument`` that names the columns which no JSON holds."""
    wrong = [field.name for field in schema.fields if any(kind in field.dataType.simpleString() for kind in _REFUSED)]
    if wrong:
        message = f"{', '.join(wrong)}: geometry and geography are no JSON: convert with ST_AsBinary(…) first"
        raise InvalidArgument(message)


def encoded(rows: DataFrame, version: int, names: list[str] | None = None) -> Column:
    """Return the rows, or some of their columns, as binary JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    fields = [field for field in rows.schema.fields if names is None or field.name in names]
    if version == 1:
        return f.to_json(f.struct(*(quoted(field.name) for field in fields))).cast("binary")
    columns = [_out(f.col(quoted(field.name)), field.dataType).alias(field.name) for field in fields]
    return f.to_json(f.struct(*columns), _OPTIONS).cast("binary")


def decoded(value: Column, schema: StructType, version: int) -> Column:
    """Return the row that a value was made of."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 (as in session)

    text = value.cast("string")
    if version == 1:
        shape = StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])
        return f.from_json(text, shape)
    shape = StructType([StructField(field.name, _shape(field.dataType), nullable=True) for field in schema.fields])
    return _in(f.from_json(text, shape, _OPTIONS), StructType(schema.fields))


def _is_plain(kind: DataType) -> bool:
    """Tell whether JSON holds a type as it is."""
    from pyspark.sql import types as t  # noqa: PLC0415 (as in session)

    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and _is_plain(kind.valueType)
    if isinstance(kind, t.ArrayType):
        return _is_plain(kind.elementType)
    if isinstance(kind, t.StructType):
        return all(_is_plain(field.dataType) for field in kind.fields)
    return not isinstance(kind, t.VariantType | t.NullType)


def _shape(kind: DataType) -> DataType:
    """Return the type that a type has in the JSON."""
    from pyspark.sql import types as t  # noqa: PLC0415 (as in session)

    if isinstance(kind, t.MapType):
        if isinstance(kind.keyType, t.StringType):
            return t.MapType(kind.keyType, _shape(kind.valueType))
        pair = [t.StructField("key", _shape(kind.keyType)), t.StructField("value", _shape(kind.valueType))]
        return t.ArrayType(t.StructType(pair))
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_shape(kind.elementType))
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, _shape(field.dataType)) for field in kind.fields])
    return t.StringType() if isinstance(kind, t.VariantType | t.NullType) else kind


def _out(column: Column, kind: DataType) -> Column:
    """Return a column in the form that it has in the JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql import types as t  # noqa: PLC0415 (as in session)

    if _is_plain(kind):
        return column
    if isinstance(kind, t.MapType):
        value, key = kind.valueType, kind.keyType
        if isinstance(key, t.StringType):
            return f.transform_values(column, lambda _, each: _out(each, value))
        return f.transform(
            f.map_entries(column),
            lambda each: f.struct(_out(each["key"], key).alias("key"), _out(each["value"], value).alias("value")),
        )
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.transform(column, lambda each: _out(each, element))
    if isinstance(kind, t.StructType):
        return _struct(column, kind, _out)
    return f.to_json(column) if isinstance(kind, t.VariantType) else column.cast("string")


def _in(column: Column, kind: DataType) -> Column:
    """Return a column as it was before ``_out``."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)
    from pyspark.sql import types as t  # noqa: PLC0415 (as in session)

    if _is_plain(kind):
        return column
    if isinstance(kind, t.MapType):
        value, key = kind.valueType, kind.keyType
        if isinstance(key, t.StringType):
            return f.transform_values(column, lambda _, each: _in(each, value))
        return f.map_from_entries(
            f.transform(
                column,
                lambda each: f.struct(_in(each["key"], key).alias("key"), _in(each["value"], value).alias("value")),
            )
        )
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.transform(column, lambda each: _in(each, element))
    if isinstance(kind, t.StructType):
        return _struct(column, kind, _in)
    return f.try_parse_json(column) if isinstance(kind, t.VariantType) else f.lit(None)


def _struct(column: Column, kind: StructType, each: Any) -> Column:
    """Return a struct of columns that are changed; one that is null stays null."""
    from pyspark.sql import functions as f  # noqa: PLC0415 (as in session)

    fields = [each(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
    return f.when(column.isNotNull(), f.struct(*fields))
