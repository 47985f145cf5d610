"""A batch is in its folder once, whichever of two runs writes it, and wherever each of them is killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import CorruptionError, InvalidArgument
from oncelog.spark.sinks.folder import BucketTable, DiskTable, Folder, FolderTable, table
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.paths import bucket_of

QUERY = "0b5ad1c2-query"


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """A table whose user dies at one of its calls, before or after what the call does."""

    def __init__(self, inner: FolderTable, call: int, *, after: bool) -> None:
        self._inner = inner
        self._left = call
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def called(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            try:
                return found(*arguments)
            finally:
                if self._left == 0:
                    raise Killed

        return called


Make = Callable[[], FolderTable]


@pytest.fixture(params=["disk", "bucket"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return what opens the same table, on a disk or in a bucket, as another process would."""
    if request.param == "disk":
        return lambda: DiskTable(tmp_path / "out", SYSTEM)
    bucket: Bucket = request.getfixturevalue("memory_bucket")
    return lambda: BucketTable(bucket, "shop/out", "s3://memory/shop/out", direct=False)


def writing(first: int, last: int, files: int = 3, column: str = "day") -> Callable[[str], None]:
    """Return what writes rows as Spark does: files of names of their own, and what its committer leaves."""

    def write(path: str) -> None:
        folder = Path(path)
        folder.mkdir(parents=True)
        (folder / "_SUCCESS").touch()
        for part in range(files):
            rows = list(range(first, last))[part::files]
            token = SYSTEM.token(4).hex()
            (folder / f"{column}={part}").mkdir()
            (folder / f"{column}={part}" / f".part-{token}.parquet.crc").touch()
            pq.write_table(pa.table({"n": rows}), folder / f"{column}={part}" / f"part-{token}.parquet")

    return write


def rows(opened: FolderTable, tmp_path: Path) -> list[int]:
    """Return the rows of a table, as a reader that takes every file below its folder finds them."""
    if isinstance(opened, BucketTable):
        found = []
        for path, _ in opened._bucket.below("shop/out/"):
            assert path.endswith(".parquet")
            found += pq.read_table(pa.BufferReader(opened._bucket.get(path))).column("n").to_pylist()
        return sorted(found)
    if not any((tmp_path / "out").rglob("*.parquet")):
        return []
    frame = pl.scan_parquet(str(tmp_path / "out" / "**" / "*"), hive_partitioning=False).collect()
    return sorted(frame["n"].to_list())


def done(make: Make, batch: int, first: int, last: int) -> None:
    """Write a batch as a run does that nothing befalls."""
    folder = Folder(make(), SYSTEM)
    folder.own(QUERY, "orders")
    folder.write(QUERY, batch, writing(first, last))


def test_batch_written_again_is_there_once(make: Make, tmp_path: Path) -> None:
    """A replayed batch, and one that two runs write, is what the first manifest says; nothing else is in the folder."""
    done(make, 0, 0, 10)
    done(make, 0, 0, 10)
    done(make, 1, 10, 20)
    assert rows(make(), tmp_path) == list(range(20))
    assert make().keys("staging/" + QUERY + "/") == []


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_and_run_again(make: Make, tmp_path: Path, *, after: bool) -> None:
    """Wherever a run dies, no row is there twice, and the next run puts each row there once."""
    done(make, 0, 0, 5)
    for call in itertools.count(1):
        mortal: Any = Mortal(make(), call, after=after)
        folder = Folder(mortal, SYSTEM)
        batch = call
        try:
            folder.own(QUERY, "orders")
            folder.write(QUERY, batch, writing(5 * batch, 5 * batch + 5))
        except Killed:
            found = rows(make(), tmp_path)
            assert len(found) == len(set(found)), "doubled in between"
            done(make, batch, 5 * batch, 5 * batch + 5)
            assert rows(make(), tmp_path) == list(range(5 * batch + 5))
            continue
        break
    assert call > 6
    done(make, call, 5 * call, 5 * call + 5)
    assert rows(make(), tmp_path) == list(range(5 * call + 5))
    assert make().keys("staging/" + QUERY + "/") == []


@pytest.mark.parametrize("after", [False, True])
def test_two_runs_at_once_one_killed_at_any_step(make: Make, tmp_path: Path, *, after: bool) -> None:
    """A second run does the same batch while the first writes its files; the first dies at any of its steps."""
    for call in itertools.count(1):
        batch, first = call - 1, 5 * (call - 1)
        mortal: Any = Mortal(make(), call, after=after)
        folder = Folder(mortal, SYSTEM)

        def both(path: str, batch: int = batch, first: int = first) -> None:
            writing(first, first + 5)(path)
            done(make, batch, first, first + 5)
            assert rows(make(), tmp_path) == list(range(first + 5))

        killed = False
        try:
            folder.own(QUERY, "orders")
            folder.write(QUERY, batch, both)
        except Killed:
            killed = True
        done(make, batch, first, first + 5)
        assert rows(make(), tmp_path) == list(range(first + 5))
        if not killed:
            break
    assert call > 6


def test_run_that_wakes_up_late_adds_nothing(make: Make, tmp_path: Path) -> None:
    """A run that was paused before its manifest finds that of another run, and that the batch is long in place."""
    done(make, 0, 0, 5)

    def paused(path: str) -> None:
        writing(5, 10)(path)
        done(make, 1, 5, 10)
        done(make, 2, 10, 15)

    Folder(make(), SYSTEM).write(QUERY, 1, paused)
    assert rows(make(), tmp_path) == list(range(15))


def test_folder_of_another_query_is_refused(make: Make, tmp_path: Path) -> None:
    """Batch numbers begin again when a checkpoint is lost: its batches would be taken for those that are there."""
    done(make, 0, 0, 5)
    with pytest.raises(InvalidArgument, match="twice"):
        Folder(make(), SYSTEM).own("another", "orders")
    assert rows(make(), tmp_path) == list(range(5))


def test_emptied_folder_may_be_begun_again(tmp_path: Path) -> None:
    """Who removes the table with its checkpoint begins at batch 0, under another query."""
    one = DiskTable(tmp_path / "out", SYSTEM)
    Folder(one, SYSTEM).own(QUERY, "orders")
    Folder(one, SYSTEM).write(QUERY, 0, writing(0, 3))
    for path in sorted((tmp_path / "out").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = Folder(one, SYSTEM)
    again.own("another", "orders")
    again.write("another", 0, writing(0, 3))
    assert rows(one, tmp_path) == [0, 1, 2]


def test_folder_that_somebody_else_wrote_is_refused(tmp_path: Path) -> None:
    """Files that are there before the first batch are not ours to add to."""
    writing(0, 2)(str(tmp_path / "out" / "batch=0000000000"))
    with pytest.raises(InvalidArgument, match="somebody else"):
        Folder(DiskTable(tmp_path / "out", SYSTEM), SYSTEM).own(QUERY, "orders")


def test_batch_without_files(make: Make, tmp_path: Path) -> None:
    """A batch whose rows SQL left out has no files, and is done all the same."""
    empty = Folder(make(), SYSTEM)
    empty.own(QUERY, "orders")
    empty.write(QUERY, 0, writing(0, 0, files=0))
    done(make, 1, 0, 3)
    assert rows(make(), tmp_path) == [0, 1, 2]


def test_partition_whose_column_has_a_name_of_hidden_files(make: Make, tmp_path: Path) -> None:
    """``partition_by = ["_rescued"]``: its folders were taken for what Spark's committer leaves, and removed."""
    folder = Folder(make(), SYSTEM)
    folder.own(QUERY, "orders")
    assert len(folder.write(QUERY, 0, writing(0, 10, column="_rescued")).files) == 3
    assert rows(make(), tmp_path) == list(range(10))


def test_batches_in_a_real_bucket(bucket_url: str, tmp_path: Path) -> None:
    """Conditional creates and server-side copies of a real S3 server: two runs, one batch each."""
    opened = table(f"{bucket_url}/out", None, SYSTEM)
    assert isinstance(opened, BucketTable)

    def both(path: str) -> None:
        writing(0, 5)(path)
        Folder(opened, SYSTEM).write(QUERY, 0, writing(0, 5))

    Folder(opened, SYSTEM).own(QUERY, "orders")
    Folder(opened, SYSTEM).write(QUERY, 0, both)
    Folder(opened, SYSTEM).write(QUERY, 0, writing(0, 5))
    found = bucket_of(bucket_url)
    assert found is not None
    bucket, prefix = found
    files = [path for path, _ in bucket.below(f"{prefix}/out/")]
    assert len(files) == 3
    got = [n for path in files for n in pq.read_table(pa.BufferReader(bucket.get(path))).column("n").to_pylist()]
    assert sorted(got) == list(range(5))
    assert opened.keys(f"staging/{QUERY}/") == []


def test_staged_by_spark_itself_in_a_bucket(memory_bucket: Bucket) -> None:
    """With s3a:// the files are in the bucket when they are staged: what the committer left is no part of the batch."""
    opened = BucketTable(memory_bucket, "shop/out", "s3a://memory/shop/out", direct=True)

    def write(path: str) -> None:
        below = path.removeprefix("s3a://memory/")
        for name in ("_SUCCESS", "part-1.parquet", "_temporary/0/_day=1/part-2.parquet"):
            memory_bucket.create(f"{below}/{name}", [b"x"])

    assert Folder(opened, SYSTEM).write(QUERY, 0, write).files == ("part-1.parquet",)
    assert [path for path, _ in memory_bucket.below("shop/out/")] == ["shop/out/batch=0000000000/part-1.parquet"]


def test_path_that_cannot_be_written_once(tmp_path: Path) -> None:
    """A file system without renames and conditional creates that are known here is refused by name."""
    with pytest.raises(InvalidArgument, match="hdfs://x/out"):
        table("hdfs://x/out", None, SYSTEM)


@pytest.mark.parametrize(
    "forged",
    [
        {"staging": "{victim}", "files": ["a"]},
        {"staging": "../victim", "files": ["a"]},
        {"staging": "staging/q/../../../victim", "files": ["a"]},
        {"staging": f"staging/{QUERY}/0000000000-../../../../victim", "files": ["a"]},
        {"staging": f"staging/{QUERY}/0000000001-aa", "files": ["a"]},
        {"staging": f"staging/{QUERY}/0000000000-aa", "files": ["../../../victim/a"]},
        {"staging": 7},
        [[]],
    ],
)
def test_a_forged_manifest_moves_nothing_from_elsewhere(tmp_path: Path, make: Make, forged: object) -> None:
    """A manifest beside a table could name any folder of its reader: that folder was moved into the table."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "a").touch()
    data = msgspec.json.encode(forged).replace(b"{victim}", str(tmp_path / "victim").encode())
    make().create(f"committed/{QUERY}/0000000000", data)
    with pytest.raises(CorruptionError):
        Folder(make(), SYSTEM).write(QUERY, 0, writing(0, 9))
    assert (tmp_path / "victim" / "a").exists()


@pytest.mark.parametrize("forged", [b"", b"{}", b'{"query": "../../x", "pipeline": "p"}', b"[" * 5000])
def test_a_forged_owner_is_damage(make: Make, forged: bytes) -> None:
    """Whose a table is names a folder, too."""
    make().create("owners/0000000001", forged)
    with pytest.raises(CorruptionError):
        Folder(make(), SYSTEM).finish()
    with pytest.raises(CorruptionError):
        Folder(make(), SYSTEM).own(QUERY, "orders")
