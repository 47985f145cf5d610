"""The places to which a pipeline writes: they do not overlap, can be written to, and belong to one pipeline each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

import oncelog
from oncelog.errors import NotFound, OncelogError
from oncelog.shapes import UNREADABLE
from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.mistakes import Mistake
from oncelog.spark.pipeline.rows import encoding
from oncelog.spark.pipeline.spec import Spec
from oncelog.spark.pipeline.whole_file import write_whole
from oncelog.storage.local import links

FILE = "pipeline.json"
"""The file in a checkpoint that says whose it is."""


class CheckpointOwner(msgspec.Struct, frozen=True):
    """The owner of a checkpoint: the pipeline that keeps its progress there, and the log it writes to.

    ``log_id`` tells this log from a later log with the same name; empty if it was not stored. ``encoding`` is the
    version in which its records are written.
    """

    name: str
    url: str
    log: str
    log_id: str = ""
    encoding: int = 1


def check(given: Spec) -> Iterator[Mistake]:
    """See that nothing is kept in a folder that is somebody else's, and that what is to be written can be."""
    own = {"run.checkpoint": given.checkpoint, "log.url": given.log.url, "report.path": given.report.path}
    sink = {"sink.path": given.sink.path if given.sink is not None else None}
    for key, path in (own | sink).items():
        if path and given.source.path and _within(path, given.source.path):
            yield Mistake(key, "is inside the source's path, so that the pipeline would read what it wrote", "move it")
    for key, path in (sink | {"source.path": given.source.path}).items():
        for other, kept in (("the log", given.log.url), ("the pipeline's progress", given.checkpoint)):
            if path and kept and (_within(path, kept) or (key == "sink.path" and _within(kept, path))):
                yield Mistake(key, f"shares a folder with {other}", "name one of its own")
    if given.source.path and sink["sink.path"] and _within(given.source.path, sink["sink.path"], proper=True):
        yield Mistake(
            "sink.path", "contains the source's path: readers of the output would also read the source", "move it"
        )
    for key, path in (own | sink).items():
        yield from _writable(key, path)
    yield from _checkpoint(given)


def _writable(key: str, place: str | None) -> Iterator[Mistake]:
    path = spec.local_path(place) if place else None
    if path is None:
        return
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if key == "report.path" and path.is_dir():
        yield Mistake(key, f"{path} is a folder, where a file should be", f'write path = "{path.name}/report.html"')
    elif not os.access(there, os.W_OK):
        yield Mistake(key, f"{there} cannot be written to", "name another place, or have it changed")


def _within(inner: str, outer: str, *, proper: bool = False) -> bool:
    """Tell whether a place is inside another, or, unless ``proper``, is that very place."""
    inner, outer = (re.sub(r"^file:(//)?", "", place).rstrip("/*") for place in (inner, outer))
    return (inner + "/").startswith(outer + "/") and not (proper and inner == outer)


def _checkpoint(given: Spec) -> Iterator[Mistake]:
    path = spec.local_path(given.checkpoint)
    if path is None:
        return
    if path.exists() and not path.is_dir():
        yield Mistake("run.checkpoint", f"{path} is a file, where a folder should be", "name another folder")
        return
    owner = owner_of(path)
    if owner is None:
        return
    if (owner.name, owner.url, owner.log) != (given.name, given.log.url, given.log.name):
        what = f"{path} is the progress of pipeline {owner.name!r} on its way into log {owner.log!r} at {owner.url}"
        yield Mistake("run.checkpoint", what, "name another folder, or that pipeline and log")
    elif owner.log_id and not _is_there(given, owner.log_id):
        what = f"{path} is the progress into a log {owner.log!r} that was deleted: what that had would be left out"
        yield Mistake("run.checkpoint", what, f"remove {path}, and what the sink wrote, to begin again")


def _is_there(given: Spec, log_id: str) -> bool:
    """Tell whether the log is the one that had this id. ``_stored`` reports what cannot be asked."""
    try:
        with oncelog.connect(given.log.url) as db:
            return db.log(given.log.name).log_id == log_id
    except NotFound:
        return False
    except OncelogError:
        return True


def owner_of(checkpoint: Path) -> CheckpointOwner | None:
    """Return whose a checkpoint is, if it is anybody's."""
    try:
        return msgspec.json.decode((checkpoint / FILE).read_bytes(), type=CheckpointOwner)
    except (OSError, *UNREADABLE):
        return None


def encoding_of(checkpoint: Path | None) -> int:
    """Return the version that a pipeline writes its records in: the newest, or the one that it began with."""
    owner = owner_of(checkpoint) if checkpoint is not None else None
    return encoding.NEWEST if owner is None else owner.encoding


def own(given: Spec, checkpoint: Path, log_id: str) -> None:
    """Note whose a checkpoint is."""
    checkpoint.mkdir(mode=links.FOLDER_MODE, parents=True, exist_ok=True)
    owner = CheckpointOwner(given.name, given.log.url, given.log.name, log_id, encoding_of(checkpoint))
    write_whole(checkpoint / FILE, msgspec.json.encode(owner))
