"""A sink whose driver dies in the middle of a commit: at the nth object that it stores, before or after that is stored.

It is what users have, but for the dying: the same tasks, the same commit, the same storage.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from oncelog.spark.connector.options import WriteOptions
from oncelog.spark.connector.sink import StreamWriter
from oncelog.storage.base import Chunk
from oncelog.storage.local.home import LocalHome
from pyspark_oncelog import DefaultSource


class DyingSource(DefaultSource):
    """``format("dying")``: with ``batch``, ``step`` and ``when`` saying where, and ``victims`` who dies."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return a writer that dies in the commit of one batch."""
        return DyingWriter(WriteOptions.parse(self.options), schema, dict(self.options), overwrite=overwrite)


class DyingWriter(StreamWriter):
    """Appends micro-batches, and dies."""

    def __init__(self, options: WriteOptions, wanted: StructType, given: dict[str, Any], *, overwrite: bool) -> None:
        super().__init__(options, wanted, overwrite=overwrite)
        self._given = given

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, and die on the way if this is the batch."""
        if str(batchId) == self._given.get("dies.batch"):
            die_at(int(self._given["dies.step"]), self._given["dies.when"], self._given["dies.victims"])
        super().commit(messages, batchId)


def die_at(step: int, when: str, victims: str) -> None:
    """Let this process, and the driver it works for, die at the nth object that it stores."""
    stored = LocalHome.create
    count = 0

    def create(home: LocalHome, key: str, data: Sequence[Chunk]) -> bool:
        nonlocal count
        count += 1
        if count == step and when == "before":
            die(victims)
        done = stored(home, key, data)
        if count == step:
            die(victims)
        return done

    LocalHome.create = create  # type: ignore[method-assign, assignment]


def die(victims: str) -> None:
    """Kill processes, and this one last."""
    for victim in victims.split(","):
        os.kill(int(victim), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
