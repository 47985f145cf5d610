"""What Spark finds by itself: it imports every module named ``pyspark_…`` and registers its ``DefaultSource``.

Nothing else is imported before it is used: a module that fails here would keep Spark from finding any data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``format("oncelog")``: reads a log in batches and as a stream, and writes it exactly once."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "oncelog"

    def schema(self) -> StructType:
        """Return the columns that a log has, or those of the option ``columns``."""
        from oncelog.spark.connector import schema
        from oncelog.spark.connector.options import ReadOptions

        options = ReadOptions.parse(self.options)
        return schema.of(options.columns, with_headers=options.with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the log as it is now."""
        from oncelog.spark.connector.options import ReadOptions
        from oncelog.spark.connector.source import BatchReader

        return BatchReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads the log as it grows."""
        from oncelog.spark.connector.options import ReadOptions
        from oncelog.spark.connector.streaming import StreamReader

        return StreamReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return what appends a table to the log."""
        from oncelog.spark.connector.options import WriteOptions
        from oncelog.spark.connector.sink import BatchWriter

        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return what appends micro-batches to the log, each once."""
        from oncelog.spark.connector.options import WriteOptions
        from oncelog.spark.connector.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)
