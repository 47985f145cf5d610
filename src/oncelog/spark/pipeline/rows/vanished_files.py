"""Files that Spark took for a batch, and that were not there when the batch was read: a pipeline reads them later.

Spark notes which files a batch has, and never looks at a file twice. When it reads a batch again, after a failure, it
leaves out files that are gone without an error. So the files that were read, or those that Spark planned to read, are
compared with Spark's notes; a file that was left out is noted here, before Spark notes that the batch is done, and is
read once it is back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from oncelog.errors import CorruptionError, Unavailable
from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.rows import source_files
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.pipeline.whole_file import write_whole

FILE = "vanished.json"
"""In the checkpoint: the files by their names, each with the time of its last change, or null as long as it is away."""

_NAMED_MAX = 3
_SPECIAL = re.compile(r"([\\*?\[\]{}])")


def known(given: Spec) -> dict[str, int | None]:
    """Return the files that vanished; those that were read since have the time of their last change, in ms."""
    checkpoint = spec.local_path(given.checkpoint)
    if checkpoint is None or not (checkpoint / FILE).exists():
        return {}
    try:
        return msgspec.json.decode((checkpoint / FILE).read_bytes(), type=dict[str, int | None])
    except UNREADABLE as error:
        message = (
            f"{checkpoint / FILE}: cannot be understood, so that it is not known which files were gone when they were "
            f"to be read: {error}. Restore the file; without it, those files are not read when they are back"
        )
        raise CorruptionError(message) from error


def away(given: Spec) -> tuple[str, ...]:
    """Return the files that vanished and were not read since."""
    return tuple(sorted(file for file, changed_ms in known(given).items() if changed_ms is None))


def back(given: Spec) -> list[str]:
    """Return the files of the source that vanished, were not read since, and are there again."""
    root = os.path.normpath(source_files.root(given))  # as Spark does with ".." in a path
    return [file for file in away(given) if Path(os.path.normpath(file)).is_relative_to(root) and Path(file).is_file()]


def note(given: Spec, files: Iterable[str]) -> None:
    """Note files that a batch was to have and that are gone.

    ``Unavailable`` where the next run must find them instead: the source has no files at all now, as a mount point has
    whose disk is away; or source or checkpoint are not on this machine; or ``on_bad_row`` is ``fail``, and not all of
    them are back.
    """
    gone = sorted(files)
    if not gone:
        return
    checkpoint, path = spec.local_path(given.checkpoint), spec.local_path(given.source.path or "")
    named = ", ".join(gone[:_NAMED_MAX]) + (f" and {len(gone) - _NAMED_MAX:,} more" if len(gone) > _NAMED_MAX else "")
    told = f"taken by Spark for this batch, and gone when the batch was read: {named}. Nothing is rejected."
    fails = given.source.on_bad_row == "fail" and not all(Path(file).is_file() for file in gone)
    if checkpoint is None or path is None or fails:
        message = f"{told} Put back what is missing (an empty file says that it is gone for good), and run again"
        raise Unavailable(message)
    if next(source_files.listed(path, None), None) is None:
        message = (
            f"{told} {path} has no files at all: is its disk mounted? Run again when it is. If files were removed on "
            "purpose, put an empty file in the place of each: it says that the file is gone for good"
        )
        raise Unavailable(message)
    _keep(checkpoint, known(given) | dict.fromkeys(gone))


def settle(given: Spec, file: str, changed_ms: int) -> None:
    """Note that a file which was back was read, as it was changed last at that time."""
    checkpoint = spec.local_path(given.checkpoint)
    assert checkpoint is not None
    _keep(checkpoint, known(given) | {file: changed_ms})


def changed_ms(file: str) -> int:
    """Return when a file was changed last, as Spark counts."""
    return os.stat(file).st_mtime_ns // 1_000_000  # noqa: PTH116 (a text is what is given)


def alone(given: Spec, file: str) -> Spec:
    """Return a pipeline whose source is one file, read as a whole. What would be a pattern in its name is escaped.

    Where Spark itself reads files, it finds the columns that folders are named for (``day=1``) below ``basePath``. Of a
    stream, that is the source's folder.
    """
    replace, wanted = msgspec.structs.replace, given.source
    folder, options = spec.local_path(wanted.path or ""), wanted.options
    by_spark = not source_files.is_read_here(given) and source_files.option(given, "basePath") is None
    if by_spark and folder is not None and folder.is_dir():
        options = options | {"basePath": str(folder)}
    escaped = _SPECIAL.sub(r"\\\1", file)
    return replace(given, source=replace(wanted, path=escaped, options=options, streaming=False))


def _keep(checkpoint: Path, files: dict[str, int | None]) -> None:
    write_whole(checkpoint / FILE, msgspec.json.encode(files, order="sorted"))
