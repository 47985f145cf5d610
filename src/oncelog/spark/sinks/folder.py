"""Batches as folders of files, each batch exactly once, also when two runs write the same batch at the same time.

Spark does not keep two runs of one query apart: both may run a batch in full, side by side. So each attempt writes its
files under a name of its own, *beside* the table. A conditional create of the batch's manifest decides which attempt
is the batch. Every run that finds a manifest puts the files of that manifest into the table; to do so again changes
nothing. Readers such as polars and DuckDB read every file below a table's folder, so nothing else is kept in there.

``<table>.oncelog/`` holds ``owners/``, ``staging/<query>/<batch>-<token>/`` and ``committed/<query>/<batch>``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.shapes import UNREADABLE
from oncelog.storage.bucket.paths import bucket_of
from oncelog.storage.local.disk import RealDisk, explain
from oncelog.storage.local.objects import Folders, Objects

if TYPE_CHECKING:
    from oncelog.storage.bucket.bucket import Bucket

Write = Callable[[str], None]
"""Writes a batch's files into a folder that is not there yet, with Spark."""


FilePath = Annotated[str, Meta(pattern=r"(?s)^(?!.*(^|/)\.{0,2}(/|\Z)).+\Z")]
"""A file by its path below a folder: it does not lead out of that folder. Others may be able to write what names it."""

_T = TypeVar("_T")
_HIDDEN = (".", "_")


class BatchManifest(msgspec.Struct, frozen=True):
    """Which attempt is the batch: its staging folder, and the files in there, by their paths."""

    staging: FilePath
    files: tuple[FilePath, ...]


class TableOwner(msgspec.Struct, frozen=True):
    """Whose a table is: batch numbers of two queries have nothing to do with each other."""

    query: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}\Z")]
    pipeline: str


def decoded(data: bytes, kind: type[_T], what: str) -> _T:
    """Return what is stored beside a table; ``CorruptionError`` for what makes no sense, or leads out of the folder."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        message = f"{what}: cannot be read ({error})"
        raise CorruptionError(message) from error


class FolderTable(Protocol):
    """A folder of batches, on a disk or in a bucket, and the place beside it. ``staging`` is a path in that place."""

    path: str

    def create(self, key: str, data: bytes) -> None:
        """Store an object beside the table, unless one is there."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return an object beside the table."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Return the names that come next below a prefix beside the table, sorted."""
        ...

    def has_batches(self) -> bool:
        """Tell whether there is a batch in the table."""
        ...

    def stage(self, staging: str, write: Write) -> tuple[str, ...]:
        """Have a batch written beside the table, and return its files, which are durable then."""
        ...

    def place(self, folder: str, manifest: BatchManifest) -> None:
        """Put the files of a manifest into the table, as far as they are not there."""
        ...

    def unstage(self, staging: str) -> None:
        """Remove what was staged."""
        ...


class Folder:
    """Writes the batches of one query into a table."""

    def __init__(self, table: FolderTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def own(self, query: str, pipeline: str) -> None:
        """Note whose the table is; ``InvalidArgument`` if another query, or somebody else, has written to it."""
        numbers = self._table.keys("owners/")
        owner = self._owner(numbers)
        if owner is not None and owner.query == query:
            return
        if self._table.has_batches():
            whose = f"pipeline {owner.pipeline!r}, query {owner.query}" if owner is not None else "somebody else"
            message = (
                f"{self._table.path} has batches that {whose} wrote; this is query {query} of {pipeline!r}. Was the "
                "checkpoint lost? The records would be there twice: remove that folder, or name another"
            )
            raise InvalidArgument(message)
        number = f"{len(numbers) + 1:010d}"
        self._table.create(f"owners/{number}", msgspec.json.encode(TableOwner(query, pipeline)))
        self.own(query, pipeline)  # another query may have won that number

    def write(self, query: str, batch: int, write: Write) -> BatchManifest:
        """Write a batch, unless it was written; put into place what was decided to be this batch."""
        key = f"committed/{query}/{batch:010d}"
        decided = self._manifest(key) or self._decide(key, f"staging/{query}/{batch:010d}", write)
        self._table.place(f"batch={batch:010d}", decided)
        self._sweep(query)
        return decided

    def finish(self) -> None:
        """Put into place what a run that was killed has staged and decided."""
        owner = self._owner(self._table.keys("owners/"))
        if owner is not None:
            self._sweep(owner.query)

    def _owner(self, numbers: Sequence[str]) -> TableOwner | None:
        key = f"owners/{numbers[-1]}" if numbers else None
        known = self._table.read(key) if key is not None else None
        return decoded(known, TableOwner, f"{self._table.path}.oncelog/{key}") if known is not None else None

    def _decide(self, key: str, staging: str, write: Write) -> BatchManifest:
        """Stage the batch, and return the manifest that won: this one, or that of another run."""
        staging = f"{staging}-{self._clock.token(8).hex()}"
        try:
            mine = BatchManifest(staging, self._table.stage(staging, write))
        except Exception:
            decided = self._manifest(key)  # if so, the run that has decided has removed what this one staged
            if decided is None:
                raise
            return decided
        self._table.create(key, msgspec.json.encode(mine))
        decided = self._manifest(key)
        if decided is None:
            message = f"{self._table.path}.oncelog/{key} was stored, and is not there: was it removed?"
            raise CorruptionError(message)
        return decided

    def _manifest(self, key: str) -> BatchManifest | None:
        """Return which attempt is a batch: one that was staged for this batch, and nothing else."""
        data, what = self._table.read(key), f"{self._table.path}.oncelog/{key}"
        found = decoded(data, BatchManifest, what) if data is not None else None
        staged = f"staging/{key.removeprefix('committed/')}-"
        if found is not None and (not found.staging.startswith(staged) or "/" in found.staging[len(staged) :]):
            message = f"{what}: names {found.staging!r}, which was not staged for this batch"
            raise CorruptionError(message)
        return found

    def _sweep(self, query: str) -> None:
        """Remove what was staged for batches that are decided. What a killed run staged for a batch that is not decided
        stays until the next run has done that batch.
        """
        for name in self._table.keys(f"staging/{query}/"):
            number, staging = name.partition("-")[0], f"staging/{query}/{name}"
            decided = self._manifest(f"committed/{query}/{number}")
            if decided is None:
                continue
            if decided.staging == staging:
                self._table.place(f"batch={number}", decided)
            self._table.unstage(staging)


class DiskTable:
    """A table in a folder of a disk: a batch appears whole, by one rename."""

    def __init__(self, path: Path, clock: Clock) -> None:
        disk = RealDisk()
        self.path = str(path)
        self._table = Path(os.path.realpath(path.parent)) / path.name
        self._beside = self._table.with_name(f"{path.name}.oncelog")
        self._folders = Folders(disk, self._beside)
        self._objects = Objects(disk, self._folders, self._beside, clock)

    def create(self, key: str, data: bytes) -> None:
        """Store an object beside the table, whole and durable, unless one is there."""
        self._objects.create(self._beside / key, [data])

    def read(self, key: str) -> bytes | None:
        """Return an object beside the table."""
        try:
            found: bytes = self._objects.read(self._beside / key, 0, None).to_pybytes()
        except NotFound:
            return None
        return found

    def keys(self, prefix: str) -> list[str]:
        """Return the names in a folder beside the table."""
        folder = self._beside / prefix
        return sorted(found.name for found in folder.iterdir()) if folder.is_dir() else []

    def has_batches(self) -> bool:
        """Tell whether there is a batch in the table."""
        return any(self._table.glob("batch=*"))

    def stage(self, staging: str, write: Write) -> tuple[str, ...]:
        """Have a batch written; what Spark leaves beside the files goes, and the files are synced."""
        folder = self._beside / staging
        self._settle(folder.parent)
        write(str(folder))
        files = cleaned(folder)
        for file in [folder / name for name in files]:
            synced(file)
        for found in {folder, *((folder / name).parent for name in files)}:
            synced(found)
        return files

    def place(self, folder: str, manifest: BatchManifest) -> None:
        """Rename the staged folder: the first who does so puts the batch into place; for others it is gone."""
        with contextlib.suppress(OSError):  # an error is reported below
            self._table.mkdir(parents=True, exist_ok=True)  # a table is for others to read, as the umask allows
        self._settle(self._table)
        try:
            (self._beside / manifest.staging).rename(self._table / folder)
        except FileNotFoundError:
            return  # in place, by this or another run
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                message = f"{self._table / folder} is there, and this pipeline did not write it: remove that folder"
                raise InvalidArgument(message) from error
            if error.errno == errno.EXDEV:
                message = f"{self._table} is a file system of its own: name a folder in it, so that renames are atomic"
                raise InvalidArgument(message) from error
            raise explain(error, self._table / folder) from error
        synced(self._table)

    def unstage(self, staging: str) -> None:
        """Remove what was staged, if it is there."""
        shutil.rmtree(self._beside / staging, ignore_errors=True)

    def _settle(self, folder: Path) -> None:
        try:
            self._folders.settle(folder)
        except OSError as error:
            raise explain(error, folder) from error


class BucketTable:
    """A table below a prefix of a bucket: the files of a batch appear one by one, and never twice.

    Spark stages into the bucket where it has a file system for it (``s3a://``), else into a local folder.
    """

    def __init__(self, bucket: Bucket, prefix: str, path: str, *, direct: bool) -> None:
        self.path = path
        self.bucket = self._bucket = bucket
        self.prefix = prefix
        self._table = prefix.strip("/")
        self._beside = f"{self._table}.oncelog"
        self._direct = direct

    def create(self, key: str, data: bytes) -> None:
        """Store an object beside the table, unless one is there."""
        self._bucket.create(f"{self._beside}/{key}", [data])

    def read(self, key: str) -> bytes | None:
        """Return an object beside the table."""
        try:
            found: bytes = self._bucket.get(f"{self._beside}/{key}").to_pybytes()
        except NotFound:
            return None
        return found

    def keys(self, prefix: str) -> list[str]:
        """Return the names that come next below a prefix beside the table."""
        start = f"{self._beside}/{prefix}"
        return sorted({path[len(start) :].partition("/")[0] for path, _ in self._bucket.below(start)})

    def has_batches(self) -> bool:
        """Tell whether there is a batch in the table."""
        return any(name.startswith("batch=") for name in self._bucket.folders(f"{self._table}/"))

    def stage(self, staging: str, write: Write) -> tuple[str, ...]:
        """Have a batch written to the bucket: by Spark itself, or by way of a folder on this machine."""
        if self._direct:
            write(f"{self.path.rstrip('/')}.oncelog/{staging}")
            start = f"{self._beside}/{staging}/"
            names = [path[len(start) :] for path, _ in self._bucket.below(start)]
            return tuple(name for name in names if not _is_hidden(name))
        with tempfile.TemporaryDirectory(prefix="oncelog-") as folder:
            staged = Path(folder) / "batch"
            write(str(staged))
            files = cleaned(staged)
            for name in files:
                self._bucket.upload(f"{self._beside}/{staging}/{name}", staged / name)
        return files

    def place(self, folder: str, manifest: BatchManifest) -> None:
        """Copy each file that is not in place. Staged files are removed when all are: one that is gone is in place."""
        for name in manifest.files:
            target = f"{self._table}/{folder}/{name}"
            if self._bucket.size(target) is None:
                with contextlib.suppress(NotFound):
                    self._bucket.copy(f"{self._beside}/{manifest.staging}/{name}", target)

    def unstage(self, staging: str) -> None:
        """Remove what was staged."""
        for path, _ in self._bucket.below(f"{self._beside}/{staging}/"):
            self._bucket.delete(path)


def table(path: str, local: Path | None, clock: Clock) -> FolderTable:
    """Return the table at a path; ``local`` is that path on this machine, if it is here."""
    if local is not None:
        return DiskTable(local, clock)
    found = bucket_of(path)
    if found is None:
        message = f"{path}: files are written exactly once to a disk, or to s3a://, s3://, gs:// and az://"
        raise InvalidArgument(message)
    return BucketTable(*found, path, direct=path.startswith("s3a:"))


def _is_hidden(name: str) -> bool:
    """Tell whether readers pass over a file: what Spark's committer leaves is named so. The folder of a partition is
    not, whatever its column is called (``_day=1``).
    """
    *folders, file = name.split("/")
    return file.startswith(_HIDDEN) or any(each.startswith(_HIDDEN) and "=" not in each for each in folders)


def cleaned(folder: Path) -> tuple[str, ...]:
    """Remove what Spark's committer left beside the files, and return the files."""
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = str(path.relative_to(folder))
        if path.is_file() and _is_hidden(name):
            path.unlink()
        elif path.is_file():
            found.append(name)
    return tuple(found)


def synced(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        os.close(descriptor)
