"""Small files become large ones, and each row stays in the table once, wherever a compaction is killed."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import CorruptionError, InvalidArgument, Unavailable
from oncelog.spark.sinks import compaction
from oncelog.spark.sinks.compaction import CompactedTable, TableInBucket, TableOnDisk, compact, concatenated, first_line
from oncelog.spark.sinks.folder import BucketTable, DiskTable, Folder, FolderTable
from oncelog.storage.bucket.bucket import Bucket

QUERY = "0b5ad1c2-query"
LARGE = 1 << 20


class Killed(BaseException):
    """The process ends here."""


class Opened:
    """The same table, opened again and again, as other processes would."""

    def __init__(self, tmp_path: Path, bucket: Bucket | None) -> None:
        self._path = tmp_path / "out"
        self.bucket = bucket
        self.scratch = tmp_path

    def table(self) -> FolderTable:
        """Return the table for a run."""
        if self.bucket is None:
            return DiskTable(self._path, SYSTEM)
        return BucketTable(self.bucket, "shop/out", "s3://memory/shop/out", direct=False)

    def place(self) -> CompactedTable:
        """Return the table for a compaction."""
        return compaction.place_of(self.table(), SYSTEM)

    def lines(self) -> list[str]:
        """Return all lines that a reader of the folder finds."""
        if self.bucket is None:
            texts = [path.read_text() for path in self._path.rglob("*") if path.is_file()]
        else:
            texts = [self.bucket.get(path).to_pybytes().decode() for path, _ in self.bucket.below("shop/out/")]
        return sorted(line for text in texts for line in text.splitlines())

    def batch(self, number: int, day: str = "a") -> None:
        """Let a run write a batch of two files."""

        def write(path: str) -> None:
            for part in range(2):
                folder = Path(path, f"day={day}")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"part-{part}-{SYSTEM.token(4).hex()}.json").write_text(f"{number:04d}-{part}\n")

        folder = Folder(self.table(), SYSTEM)
        folder.own(QUERY, "orders")
        folder.write(QUERY, number, write)

    def compact(self, place: CompactedTable | None = None) -> compaction.Compacted:
        """Put all files together."""
        scratch = self.scratch / f"scratch-{SYSTEM.token(4).hex()}"
        scratch.mkdir()
        return compact(place or self.place(), SYSTEM, scratch, lambda _: None, concatenated, LARGE)


@pytest.fixture(params=["disk", "bucket", pytest.param("seaweedfs", marks=pytest.mark.soak)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Return a table on a disk, or in a bucket: in memory, or on a real store."""
    fixtures = {"bucket": "memory_bucket", "seaweedfs": "bucket"}
    return Opened(tmp_path, None if request.param == "disk" else request.getfixturevalue(fixtures[request.param]))


def expected(last: int) -> list[str]:
    """Return the lines of all batches before one."""
    return [f"{number:04d}-{part}" for number in range(last) for part in range(2)]


def test_small_files_become_one_for_each_partition(opened: Opened) -> None:
    """Files of a partition are put together; what comes later is put to them; a batch that comes again adds nothing."""
    for number in range(6):
        opened.batch(number, "ab"[number % 2])
    done = opened.compact()
    assert (done.files_before, done.files_after) == (12, 2)
    assert opened.lines() == expected(6)
    opened.batch(5, "b")
    opened.batch(6)
    assert opened.lines() == expected(7)
    assert opened.compact().files_after == 2
    assert opened.compact().files_before == 2
    assert opened.lines() == expected(7)


def _mortal(monkeypatch: pytest.MonkeyPatch, call: int, *, after: bool) -> None:
    """Let the process end at one of the steps that change a table."""
    left = [call]

    def wrap(owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def stepped(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            found = whole(*arguments, **named)
            if left[0] == 0:
                raise Killed
            return found

        monkeypatch.setattr(owner, name, stepped)

    for name in ("create", "delete", "copy", "upload"):
        wrap(Bucket, name)
    for owner, name in ((os, "link"), (compaction, "exchange"), (TableOnDisk, "_rescue"), (shutil, "move")):
        wrap(owner, name)
    wrap(shutil, "rmtree")


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step(opened: Opened, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """On a disk each row is there once at every moment; in a bucket never twice, and once when the next run begins."""
    opened.batch(0)
    for call in itertools.count(1):
        opened.batch(call)
        with monkeypatch.context() as patched:
            _mortal(patched, call, after=after)
            try:
                opened.compact()
                killed = False
            except Killed:
                killed = True
        found = opened.lines()
        assert len(found) == len(set(found)), f"doubled, killed at {call}"
        if opened.bucket is None:
            assert found == expected(call + 1)
        opened.place().recover()
        assert opened.lines() == expected(call + 1), f"killed at {call}"
        if not killed:
            break
    assert call > 4


def test_batch_that_comes_during_the_exchange_is_kept(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a lease puts a batch into the table when the new folder is made already: it is moved over."""
    for number in range(3):
        opened.batch(number)
    if opened.bucket is None:
        exchange = compaction.exchange

        def raced(first: Path, second: Path) -> None:
            opened.batch(3)
            exchange(first, second)

        monkeypatch.setattr(compaction, "exchange", raced)
        opened.compact()
    else:
        upload = Bucket.upload

        def late(bucket: Bucket, path: str, file: Path) -> None:
            monkeypatch.setattr(Bucket, "upload", upload)
            opened.batch(3)
            upload(bucket, path, file)

        monkeypatch.setattr(Bucket, "upload", late)
        opened.compact()
    assert opened.lines() == expected(4)
    assert not list((tmp_path / "out.oncelog" / "compacting").glob("*"))


def test_compaction_that_was_paused_before_its_plan(memory_bucket: Bucket, tmp_path: Path) -> None:
    """Two others come first: what this one has seen of the table is out of date, and it is refused."""
    opened = Opened(tmp_path, memory_bucket)
    for number in range(3):
        opened.batch(number)

    class Paused(TableInBucket):
        def replace(self, removed: Sequence[str], merged: Mapping[str, Path]) -> None:
            opened.compact()
            opened.batch(3)
            opened.compact()
            super().replace(removed, merged)

    with pytest.raises(Unavailable, match="another compaction"):
        opened.compact(Paused(memory_bucket, "shop/out", SYSTEM))
    opened.place().recover()
    assert opened.lines() == expected(4)


def test_compaction_that_was_paused_within_its_plan(memory_bucket: Bucket, tmp_path: Path) -> None:
    """Another finishes the plan, and compacts again: the one that wakes up finds nothing to copy."""
    opened = Opened(tmp_path, memory_bucket)
    for number in range(3):
        opened.batch(number)

    class Paused(TableInBucket):
        def _do(self, name: str, plan: compaction.Plan) -> None:
            opened.batch(3)
            opened.compact()
            assert opened.lines() == expected(4)
            super()._do(name, plan)

    opened.compact(Paused(memory_bucket, "shop/out", SYSTEM))
    assert opened.lines() == expected(4)


@pytest.mark.parametrize("name", ["out.oncelog", "out.oncelog/compacting"])
def test_no_link_leads_a_compaction_to_folders_of_the_user(tmp_path: Path, name: str) -> None:
    """What is left of earlier compactions is removed: by a planted link that was everything in a home folder."""
    opened = Opened(tmp_path, None)
    opened.batch(0)
    home = tmp_path / "home"
    for folder in ("photos", "compacting/photos", "0123456789abcdef", "compacting/0123456789abcdef"):
        (home / folder).mkdir(parents=True)
        (home / folder / "one.jpg").write_text("precious")
    planted = tmp_path / name
    if planted.is_dir():
        planted.rename(tmp_path / "away")
    planted.symlink_to(home)
    with pytest.raises(InvalidArgument, match="symbolic link"):
        opened.compact()
    assert len(list(home.rglob("one.jpg"))) == 4


def test_only_folders_of_compactions_are_removed(tmp_path: Path) -> None:
    """A folder with another name is not what a compaction left."""
    opened = Opened(tmp_path, None)
    opened.batch(0)
    compacting = tmp_path / "out.oncelog" / "compacting"
    for name in ("photos", "0123456789abcdef"):
        (compacting / name).mkdir(parents=True)
    (compacting / "fedcba9876543210").symlink_to(compacting / "photos")
    (compacting / "photos" / "one.jpg").write_text("precious")
    opened.place().recover()
    assert {path.name for path in compacting.iterdir()} == {"photos", "fedcba9876543210"}
    assert (compacting / "photos" / "one.jpg").read_text() == "precious"


def test_headers_of_csv_and_members_of_gzip(tmp_path: Path) -> None:
    """Of headers the first stays; files with another header stay apart; gzip of lines is put together as it is."""
    texts = {"a": b"id,n\n1,2\n", "b": b"id,n\n3,4\n", "c": b"id,n,m\n5,6,7\n"}
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_bytes(text)
    concatenated(paths[:2], tmp_path / "whole", header=True)
    assert (tmp_path / "whole").read_bytes() == b"id,n\n1,2\n3,4\n"
    assert first_line(paths[0]) == first_line(paths[1]) != first_line(paths[2])
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    concatenated(paths, tmp_path / "whole")
    assert gzip.decompress((tmp_path / "whole").read_bytes()) == b"".join(texts.values())


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"{}",
        b'{"removed": ["../other/a"], "added": []}',
        b'{"removed": [], "added": [["compacting/x", "/x"]]}',
    ],
)
def test_a_forged_plan_removes_nothing_elsewhere(memory_bucket: Bucket, forged: bytes) -> None:
    """A plan beside a table names files of that table, and no other object of the bucket."""
    memory_bucket.create("shop/other/a", [b"a"])
    memory_bucket.create("shop/out.oncelog/compactions/0000000001", [forged])
    with pytest.raises(CorruptionError):
        TableInBucket(memory_bucket, "shop/out", SYSTEM).recover()
    assert memory_bucket.get("shop/other/a").to_pybytes() == b"a"
