"""A folder that Spark's tasks write to and this machine reads must be the same folder everywhere.

On a cluster, a task writes to a path of its own machine. Where that path is no shared file system, its rows are gone,
and Spark says nothing of it. So a run on a cluster looks first whether the tasks see what this machine puts there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncelog.errors import Unsupported
from oncelog.storage.bucket.paths import bucket_of

if TYPE_CHECKING:
    from pyspark import SparkContext


def folder_of(path: str | None, local: Path | None, options: Mapping[str, Any]) -> Path | None:
    """Return the folder in which a sink's files are staged, ``None`` if they are in no folder of this machine."""
    if local is not None:
        return local.parent
    place = path or str(options.get("warehouse", ""))
    if place.startswith("s3a:") and path is not None:
        return None
    if bucket_of(place) is not None:
        return Path(tempfile.gettempdir())
    return Path(place.removeprefix("file://")) if place.startswith(("/", "file:")) else None


def check(context: SparkContext, folder: Path) -> None:
    """Raise ``Unsupported`` if a task on a cluster does not see the folder."""
    if str(context.master).startswith("local"):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".oncelog-") as file:
        blind = unseen(context, file.name)
    if blind:
        message = (
            f"tasks of {context.master} do not see {folder} of this machine, where files of the sink are staged: "
            "their rows would be lost. Use a file system that all machines share (for a bucket: set TMPDIR to a folder "
            "in one, or write to s3a://), or a Spark on this machine (--master 'local[*]')"
        )
        raise Unsupported(message)


def unseen(context: SparkContext, path: str) -> int:
    """Return how many of the tasks, two for each core, do not see a file."""
    count = 2 * context.defaultParallelism
    found: Any = context.parallelize(range(count), count)
    return int(found.filter(lambda _: not os.path.exists(path)).count())  # noqa: PTH110 (what is sent to a task)
