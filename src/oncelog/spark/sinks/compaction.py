"""Small files of a table of batches are put together, and each row stays there once.

On a disk the table's folder is made again beside the table, of hard links and of the new files. One exchange of the two
folders (``renameat2``) puts it in place: a reader finds the table before or after the exchange. A batch that a run puts
into the table meanwhile is in the old folder then, and is moved over.

A bucket has no such exchange. A plan, which is created once, names the files that go and those that come. First the old
ones go, then the new ones come: a reader may miss rows for a moment, and never finds one twice. The next run, or the
next compaction, finishes a plan that a kill cut short.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

import msgspec

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, NotFound, Unavailable, Unsupported
from oncelog.shapes import UNREADABLE
from oncelog.spark.sinks.folder import BucketTable, DiskTable, FilePath, FolderTable, decoded, synced
from oncelog.storage.local.disk import explain

if TYPE_CHECKING:  # without a bucket, no client of buckets is needed
    from oncelog.storage.bucket.bucket import Bucket

TARGET_BYTES = 128 << 20
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_OURS = re.compile("[0-9a-f]{16}")
_PLANS, _DONE = "compactions/", ".done"

Merge = Callable[[Sequence[Path], Path], None]
"""Writes the rows of files into one file."""

Alike = Callable[[Path], object]
"""Returns what two files must have in common to become one: their columns."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """How many files a table had, and has."""

    files_before: int
    files_after: int
    bytes_read: int


class CompactedTable(Protocol):
    """A table whose files can be replaced."""

    def recover(self) -> None:
        """Finish what a compaction that was killed has left."""
        ...

    def files(self) -> list[tuple[str, int]]:
        """Return the table's files by their names in the table, with their sizes, sorted."""
        ...

    def fetched(self, name: str, scratch: Path) -> Path:
        """Return a file of the table as one of this machine."""
        ...

    def replace(self, removed: Sequence[str], merged: Mapping[str, Path]) -> None:
        """Put new files in the place of old ones."""
        ...


def compact(  # noqa: PLR0917
    place: CompactedTable, clock: Clock, scratch: Path, alike: Alike, merge: Merge, target_bytes: int = TARGET_BYTES
) -> Compacted:
    """Put neighbouring small files together until they have about ``target_bytes``."""
    place.recover()
    before = place.files()
    removed: list[str] = []
    merged: dict[str, Path] = {}
    for group in _groups(before, target_bytes):
        local = [(name, place.fetched(name, scratch)) for name in group]
        for _, run in itertools.groupby(local, key=lambda file: alike(file[1])):
            files = list(run)
            if len(files) > 1:
                token = clock.token(8).hex()
                last = PurePosixPath(files[-1][0])
                target = str(last.with_name(f"compact-{token}{''.join(_suffixes(last))}"))
                merged[target] = scratch / f"merged-{token}{''.join(_suffixes(last))}"
                merge([path for _, path in files], merged[target])
                removed += [name for name, _ in files]
    if merged:
        place.replace(removed, merged)
    sizes = dict(before)
    after = len(before) - len(removed) + len(merged)
    return Compacted(files_before=len(before), files_after=after, bytes_read=sum(sizes[name] for name in removed))


def _suffixes(name: PurePosixPath) -> list[str]:
    """Return what a file's name tells of its form; Spark puts the codec before the format: ``.snappy.parquet``."""
    return [each for each in name.suffixes if each[1:].isalnum()][-2:]


def _groups(files: Sequence[tuple[str, int]], target_bytes: int) -> Iterator[list[str]]:
    """Yield small files that may become one: neighbours by their batches, of one partition and one form."""
    by_kind: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for name, size in files:
        path = PurePosixPath(name)
        kind = ("/".join(path.parts[1:-1]), *_suffixes(path))
        if size < target_bytes // 2:
            by_kind.setdefault(kind, []).append((name, size))
    for found in by_kind.values():
        group: list[str] = []
        total = 0
        for name, size in found:
            group.append(name)
            total += size
            if total >= target_bytes:
                yield group
                group, total = [], 0
        if len(group) > 1:
            yield group


class _Swap(msgspec.Struct, frozen=True):
    """The exchange of a table's folder: the batches that were known, and the number of the folder that is new."""

    known: tuple[str, ...]
    inode: int


class TableOnDisk:
    """A table in a folder of a disk."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._table = Path(os.path.realpath(path.parent)) / path.name
        self._swaps = self._table.with_name(f"{path.name}.oncelog") / "compacting"
        self._clock = clock

    def recover(self) -> None:
        """Move batches over that a run put into the old folder; remove what is left of folders."""
        for place in self._left():
            swap = _read(place / "swap.json")
            if swap is not None and self._table.stat().st_ino == swap.inode:
                self._rescue(place, swap)
            shutil.rmtree(place, ignore_errors=True)

    def _left(self) -> list[Path]:
        """Return the folders that earlier compactions made: no others, and none that a link leads to. They go."""
        for place in (self._swaps.parent, self._swaps):
            if place.is_symlink():
                message = f"{place}: is a symbolic link, and a compaction follows none: remove it"
                raise InvalidArgument(message)
            if not place.is_dir():
                return []
        return sorted(place for place in self._swaps.iterdir() if _OURS.fullmatch(place.name))

    def files(self) -> list[tuple[str, int]]:
        """Return the files of all batches."""
        found = [path for path in self._table.glob("batch=*/**/*") if path.is_file()]
        return sorted((str(path.relative_to(self._table)), path.stat().st_size) for path in found)

    def fetched(self, name: str, scratch: Path) -> Path:  # noqa: ARG002 (it is here)
        """Return the file itself."""
        return self._table / name

    def replace(self, removed: Sequence[str], merged: Mapping[str, Path]) -> None:
        """Make the folder again, and exchange the two."""
        place = self._swaps / self._clock.token(8).hex()
        new = place / "table"
        new.mkdir(parents=True)
        known = tuple(sorted(path.name for path in self._table.iterdir()))
        gone = set(removed)
        for name, file in [*self._kept(known, gone), *merged.items()]:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            if name in merged:
                shutil.move(file, new / name)
                synced(new / name)
            else:
                os.link(file, new / name)
        for folder in [new, *(path for path in new.rglob("*") if path.is_dir())]:
            synced(folder)
        swap = _Swap(known, new.stat().st_ino)
        (place / "swap.json").write_bytes(msgspec.json.encode(swap))
        synced(place / "swap.json")
        synced(place)
        exchange(self._table, new)
        synced(self._table.parent)
        synced(place)
        self._rescue(place, swap)
        shutil.rmtree(place, ignore_errors=True)

    def _kept(self, known: Sequence[str], gone: set[str]) -> Iterator[tuple[str, Path]]:
        for top in known:
            for path in [self._table / top, *(self._table / top).rglob("*")]:
                name = str(path.relative_to(self._table))
                if path.is_file() and name not in gone:
                    yield name, path

    def _rescue(self, place: Path, swap: _Swap) -> None:
        """Move batches into the table that came into the old folder after it was looked at."""
        for folder in (place / "table").iterdir():
            if folder.name not in swap.known:
                folder.rename(self._table / folder.name)
        synced(self._table)


def _read(path: Path) -> _Swap | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Swap)
    except (FileNotFoundError, *UNREADABLE):
        return None


def exchange(first: Path, second: Path) -> None:
    """Let two folders change places in one step; ``Unsupported`` where the system has no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        message = "this system cannot exchange two folders in one step (renameat2): compact on Linux"
        raise Unsupported(message)
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
        message = f"{first}: this file system cannot exchange two folders in one step (renameat2)"
        raise Unsupported(message)
    raise explain(OSError(number, os.strerror(number), str(first)), first)


class Plan(msgspec.Struct, frozen=True):
    """Files of a bucket that go, and those that come: staged under one name, in the table under another."""

    removed: tuple[FilePath, ...]
    added: tuple[tuple[FilePath, FilePath], ...]


class TableInBucket:
    """A table below a prefix of a bucket."""

    def __init__(self, bucket: Bucket, prefix: str, clock: Clock) -> None:
        self._bucket = bucket
        self._table = prefix.strip("/")
        self._beside = f"{self._table}.oncelog"
        self._clock = clock
        self._number = 0

    def recover(self) -> None:
        """Do what a plan says that is not done. The next plan has the next number: what is seen of the table from now
        on is out of date if another compaction gets that number.
        """
        start = f"{self._beside}/{_PLANS}"
        names = [path[len(start) :] for path, _ in self._bucket.below(start)]
        self._number = sum(not name.endswith(_DONE) for name in names) + 1
        for name in names:
            if not name.endswith(_DONE) and f"{name}{_DONE}" not in names:
                self._do(name, decoded(self._bucket.get(start + name).to_pybytes(), Plan, start + name))

    def files(self) -> list[tuple[str, int]]:
        """Return the files of all batches."""
        start = f"{self._table}/"
        found = [(path[len(start) :], size) for path, size in self._bucket.below(start)]
        return sorted(file for file in found if file[0].startswith("batch="))

    def fetched(self, name: str, scratch: Path) -> Path:
        """Return a copy of a file."""
        target = scratch / "fetched" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(memoryview(self._bucket.get(f"{self._table}/{name}")))
        return target

    def replace(self, removed: Sequence[str], merged: Mapping[str, Path]) -> None:
        """Stage the new files, create the plan, and do it; ``Unavailable`` if another compaction came first."""
        token = self._clock.token(8).hex()
        added = []
        for number, (name, file) in enumerate(merged.items()):
            staged = f"compacting/{token}/{number}"
            self._bucket.upload(f"{self._beside}/{staged}", file)
            added.append((staged, name))
        start = f"{self._beside}/{_PLANS}"
        name = f"{self._number:010d}"
        plan = Plan(tuple(removed), tuple(added))
        self._bucket.create(start + name, [msgspec.json.encode(plan)])
        if self._bucket.get(start + name).to_pybytes() != msgspec.json.encode(plan):
            message = f"{self._table}: another compaction runs: wait for its end"
            raise Unavailable(message)
        self._do(name, plan)

    def _do(self, name: str, plan: Plan) -> None:
        """Remove what goes, copy what comes, and note that it is done. To do so again changes nothing."""
        for old in plan.removed:
            self._bucket.delete(f"{self._table}/{old}")
        for staged, target in plan.added:
            if self._bucket.size(f"{self._table}/{target}") is None:
                with contextlib.suppress(NotFound):  # another process has done the plan, and removed what was staged
                    self._bucket.copy(f"{self._beside}/{staged}", f"{self._table}/{target}")
        self._bucket.create(f"{self._beside}/{_PLANS}{name}{_DONE}", [b"{}"])
        for staged, _ in plan.added:
            self._bucket.delete(f"{self._beside}/{staged}")


def place_of(table: FolderTable, clock: Clock) -> CompactedTable:
    """Return a table as one whose files can be replaced."""
    if isinstance(table, DiskTable):
        return TableOnDisk(Path(table.path), clock)
    if isinstance(table, BucketTable):
        return TableInBucket(table.bucket, table.prefix, clock)
    message = f"{table.path}: only a folder on a disk or in a bucket can be compacted"
    raise InvalidArgument(message)


def concatenated(files: Sequence[Path], target: Path, *, header: bool = False) -> None:
    """Write files of lines one behind the other; of headers, the first alone."""
    with target.open("wb") as output:
        for number, file in enumerate(files):
            with file.open("rb") as source:
                if header and number:
                    source.readline()
                shutil.copyfileobj(source, output, 1 << 20)


def first_line(file: Path) -> bytes:
    """Return the header of a file."""
    with file.open("rb") as source:
        return source.readline()
