"""A published log is a table with the rows of its sealed files, whatever became of those files since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

import oncelog
from oncelog import LogSettings, Window
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.log.log import Log
from oncelog.tables import publishing
from oncelog.tables.delta import DeltaPublication
from oncelog.tables.iceberg import IcebergPublication
from oncelog.tables.publishing import Published, PublishedTable, State, TableChange

KEEP_S = 7 * 86400.0
SETTINGS = LogSettings(window=Window(max_keys=2), segment_bytes=64 * 1024, seal="off", snapshot_records=1_000_000)
Rows = list[tuple[int, str | None, int | None]]


def catalog(folder: Path) -> dict[str, str]:
    """Return the options of a catalog on a disk."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def _sorted(found: list[dict[str, Any]]) -> Rows:
    return sorted(((row["first_position"], row["id"], row["purged"]) for row in found), key=str)


class Delta:
    """A Delta table, as its readers find it."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "table")

    def table(self, keep_s: float = KEEP_S) -> PublishedTable:
        """Return the table to publish to."""
        return DeltaPublication(self._path, SYSTEM, keep_s)

    def rows(self, version: int | None = None) -> Rows:
        """Return what delta-rs reads, and see that polars and DuckDB read the same."""
        table = DeltaTable(self._path, version=version)
        found = _sorted(table.to_pyarrow_table().to_pylist())
        if version is None:
            assert _sorted(pl.scan_delta(self._path).collect().to_dicts()) == found
            if found:
                asked = f"SELECT id FROM read_parquet({table.file_uris()!r}, union_by_name = true)"
                assert sorted(str(row[0]) for row in duckdb.execute(asked).fetchall()) == sorted(
                    str(row[1]) for row in found
                )
        return found

    def files(self) -> set[str]:
        """Return the files of the table."""
        return {Path(uri.removeprefix("file://")).name for uri in DeltaTable(self._path).file_uris()}


class Iceberg:
    """An Iceberg table, as its readers find it."""

    def __init__(self, folder: Path, *, in_place: bool = False) -> None:
        self._options = catalog(folder)
        self._in_place = in_place

    def catalog(self) -> Catalog:
        """Return the catalog, loaded again."""
        return load_catalog("default", **self._options)

    def table(self, keep_s: float = KEEP_S) -> PublishedTable:
        """Return the table to publish to."""
        return IcebergPublication("shop.orders", SYSTEM, keep_s, options=self._options, in_place=self._in_place)

    def rows(self, version: int | None = None) -> Rows:
        """Return what pyiceberg reads, and see that polars and DuckDB read the same."""
        table = self.catalog().load_table("shop.orders")
        snapshot = table.metadata.snapshots[version - 1].snapshot_id if version is not None else None
        found = _sorted(table.scan(snapshot_id=snapshot).to_arrow().to_pylist())
        if version is None:
            assert _sorted(pl.scan_iceberg(table).collect().to_dicts()) == found
            asked = table.scan().to_duckdb("orders").execute("SELECT first_position, id, purged FROM orders")
            assert sorted(asked.fetchall(), key=str) == found
        return found

    def files(self) -> set[str]:
        """Return the files of the table."""
        table = self.catalog().load_table("shop.orders")
        return {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}


Readers = Delta | Iceberg


@pytest.fixture(autouse=True)
def _planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have polars plan with pyiceberg without a warning that it does so."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture(params=["delta", "iceberg"])
def readers(request: pytest.FixtureRequest, tmp_path: Path) -> Readers:
    """Return the readers of a table that is not there yet."""
    folder = tmp_path / "tables"
    folder.mkdir()
    return Delta(folder) if request.param == "delta" else Iceberg(folder, in_place=request.param == "in place")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log without records."""
    return oncelog.connect(f"file://{tmp_path}/db").log("orders", SETTINGS, create=True)


def fill(log: Log, *ids: str, value: bytes | None = None) -> None:
    """Append records, and seal them: large ones in a file each, small ones together with their neighbours."""
    with log.writer() as writer:
        for id in ids:
            large = hashlib.shake_256(id.encode()).digest(70_000)  # does not compress
            writer.append(large if value is None else value, id=id, headers={"of": b"test"})
    log.seal()


def publish(log: Log, readers: Readers) -> Published:
    """Publish, with the table opened again, as the command does."""
    return publishing.publish(log, readers.table())


@pytest.mark.parametrize("readers", ["iceberg"], indirect=True)
def test_publication_leaves_no_connection_to_the_catalog(log: Log, readers: Iceberg) -> None:
    """A process that publishes every minute does not gather connections, which would keep others from a commit."""
    table: Any = readers.table()
    fill(log, "a", "b")
    publishing.publish(log, table)
    assert table._catalog.engine.pool.checkedin() == 0


def test_table_has_what_is_sealed_and_follows(log: Log, readers: Readers) -> None:
    """A log without files is an empty table; what is sealed later comes by another publication, nothing twice."""
    empty = publish(log, readers)
    assert (empty.rows, readers.rows()) == (0, [])
    fill(log, "a", "b")
    first = publish(log, readers)
    assert (first.added, first.removed, first.rows, first.next_position) == (2, 0, 2, 2)
    assert readers.rows() == [(0, "a", None), (1, "b", None)]
    fill(log, "c")
    publish(log, readers)
    again = publish(log, readers)
    assert (again.added, again.removed) == (0, 0)
    assert {id for _, id, _ in readers.rows()} == {"a", "b", "c"}
    assert len(readers.rows()) == 3
    assert readers.files() == {Path(file.path).name for file in log.files()}


@pytest.mark.parametrize("readers", ["delta", "iceberg", "in place"], indirect=True)
def test_merged_truncated_and_purged_files_are_swapped(log: Log, readers: Readers) -> None:
    """Each publication after a change of files takes old files out, and new ones in, by one commit."""
    fill(log, "a", "b")
    fill(log, "c", "d", value=b"small")
    publish(log, readers)
    fill(log, "e", value=b"small")
    merged = publish(log, readers)
    assert (merged.added, merged.removed) == (1, 1)
    fill(log, "f", "a")  # the window of two has forgotten the first
    publish(log, readers)
    assert log.purge(remove=True).purged == 1
    purged = publish(log, readers)
    assert purged.removed
    found = readers.rows()
    assert sorted(str(id) for _, id, at in found if at is None) == list("abcdef")
    assert [at for _, _, at in found if at is not None] == [0], "the row that was purged names the one that stayed"
    assert log.truncate(1).first_position == 1
    publish(log, readers)
    assert readers.files() == {Path(file.path).name for file in log.files()}
    assert min(first for first, _, _ in readers.rows()) == 1


def test_older_version_of_a_table_stays_readable(log: Log, tmp_path: Path) -> None:
    """The log removes a file after it was truncated; the table's own link is still there."""
    made: list[Readers] = [Delta(tmp_path), Iceberg(tmp_path)]
    fill(log, "a", "b")
    for readers in made:
        publish(log, readers)
    fill(log, *"cdefg")
    assert log.truncate(2).first_position == 2
    for readers in made:
        publish(log, readers)
        assert sorted(str(id) for _, id, _ in readers.rows()) == list("cdefg")
        assert readers.rows(1) == [(0, "a", None), (1, "b", None)]


def test_old_versions_and_their_files_go(log: Log, readers: Readers, tmp_path: Path) -> None:
    """With ``keep`` at 0 a file that has left the table is removed; what the log has stays."""
    fill(log, "a", "b")
    publish(log, readers)
    gone = log.files()[0]
    fill(log, *"cdefg")
    assert log.truncate(1).first_position == 1
    kept = [Path(file.path) for file in log.files()]
    publishing.publish(log, readers.table(keep_s=0.0))
    publishing.publish(log, readers.table(keep_s=0.0))
    assert list((tmp_path / "tables").rglob(Path(gone.path).name)) == []
    assert all(path.exists() for path in kept)
    assert len(readers.rows()) == sum(file.records for file in log.files())


def test_table_of_another_log_is_refused(log: Log, readers: Readers, tmp_path: Path) -> None:
    """The rows of two logs would be mixed, and each publication would remove those of the other."""
    fill(log, "a")
    publish(log, readers)
    other = oncelog.connect(f"file://{tmp_path}/other").log("orders", SETTINGS, create=True)
    with pytest.raises(InvalidArgument, match="was not published to"):
        publish(other, readers)
    assert readers.rows() == [(0, "a", None)]


def test_publication_that_was_overtaken_changes_nothing(log: Log, readers: Readers) -> None:
    """A publication that read the log before another one did must not take the table back to that time."""
    fill(log, "a")
    old = publishing.state_of(log)
    fill(log, "b")
    publish(log, readers)
    assert readers.table().bring(old) is None
    assert {id for _, id, _ in readers.rows()} == {"a", "b"}


def test_another_commit_between_comparison_and_commit(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both publications add the same file: the second commit fails, and the comparison is made again."""
    fill(log, "a")
    publish(log, readers)
    fill(log, "b")
    raced: list[int] = []
    by_name: Callable[[State], Any] = State.by_name

    def race(state: State) -> Any:
        if not raced:
            raced.append(1)
            publish(log, readers)
        return by_name(state)

    paths = IcebergPublication._paths

    def paths_raced(self: IcebergPublication, table: Any, state: State) -> Any:
        race(state)
        return paths(self, table, state)

    monkeypatch.setattr(State, "by_name", race)
    monkeypatch.setattr(IcebergPublication, "_paths", paths_raced)
    done = publish(log, readers)
    assert raced
    assert (done.added, done.removed) == (0, 0)
    assert sorted(str(id) for _, id, _ in readers.rows()) == ["a", "b"]


def test_killed_before_the_commit(log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links without a commit are no part of the table; the next publication commits them."""
    fill(log, "a")
    publish(log, readers)
    fill(log, "b")
    with monkeypatch.context() as patch:
        patch.setattr(IcebergPublication, "_commit", _killed)
        patch.setattr(DeltaTable, "create_write_transaction", _killed)
        with pytest.raises(KeyboardInterrupt):
            publish(log, readers)
    assert readers.rows() == [(0, "a", None)]
    publish(log, readers)
    assert sorted(str(id) for _, id, _ in readers.rows()) == ["a", "b"]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_file_that_is_merged_while_it_is_being_published(log: Log, tmp_path: Path) -> None:
    """The log's file is gone before it can be linked: the log is asked again, and the newer files are published."""
    (tmp_path / "tables").mkdir()
    readers = Delta(tmp_path / "tables")
    fill(log, "a", "b")
    state = publishing.state_of(log)

    class Late:
        """A table whose first publication is given files that are gone."""

        name = "late"

        def __init__(self) -> None:
            self.states = [without_files(state)]

        def bring(self, given: State) -> TableChange | None:
            """Publish the state that was true earlier, once."""
            return readers.table().bring(self.states.pop() if self.states else given)

        def let_go(self) -> None:
            """Keep all."""

    assert publishing.publish(log, Late()).rows == 2
    assert len(readers.rows()) == 2


def without_files(state: State) -> State:
    """Return a state whose file is gone."""
    files = tuple(msgspec.structs.replace(file, path=f"{file.path}.gone") for file in state.files)
    return msgspec.structs.replace(state, files=files)


def test_table_that_others_commit_to_all_the_time(log: Log) -> None:
    """A publication ends with an error that says so."""

    class Busy:
        """A table that is never ours."""

        name = "busy"

        def bring(self, _: State) -> TableChange | None:
            """Be overtaken."""
            return None

        def let_go(self) -> None:
            """Do nothing."""

    with pytest.raises(Unavailable, match="in each of 20 attempts"):
        publishing.publish(log, Busy())


def test_times_of_a_file_are_in_the_table(log: Log, tmp_path: Path) -> None:
    """A query by time opens only the files of that time."""
    readers = Iceberg(tmp_path)
    fill(log, "a")
    middle = SYSTEM.now_us()
    fill(log, "b")
    publish(log, readers)
    table = readers.catalog().load_table("shop.orders")
    when = oncelog.types.moment(middle).isoformat()
    assert len(list(table.scan(f"timestamp < '{when}'").plan_files())) == 1
    assert [row["id"] for row in table.scan(f"timestamp > '{when}'").to_arrow().to_pylist()] == ["b"]


def test_bucket(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket the store copies the files; both tables are read from there, and files that left them go."""
    log = oncelog.connect(f"{bucket_url}/db").log("orders", SETTINGS, create=True)
    fill(log, "a", "b")
    s3 = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": "us-east-1",
    }
    options = catalog(tmp_path) | {"warehouse": f"{bucket_url}/warehouse"} | s3
    tables: list[PublishedTable] = [
        DeltaPublication(f"{bucket_url}/table", SYSTEM, 0.0),
        IcebergPublication("shop.orders", SYSTEM, 0.0, options=options),
    ]
    for table in tables:
        assert publishing.publish(log, table).added == 2
    fill(log, *"cdefg")
    log.truncate(2)
    for table in tables:
        done = publishing.publish(log, table)
        assert (done.added, done.removed) == (5, 2)
        publishing.publish(log, table)
    iceberg = load_catalog("default", **options).load_table("shop.orders")
    delta = DeltaTable(f"{bucket_url}/table", storage_options={"allow_http": "true"})
    for found in (iceberg.scan().to_arrow(), delta.to_pyarrow_table()):
        assert sorted(found["id"].to_pylist()) == list("cdefg")
    with pytest.raises(InvalidArgument, match="in the bucket of the log"):
        publishing.publish(log, DeltaPublication("s3://elsewhere/table", SYSTEM, 0.0))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="table"):
        publishing.publish(log, DeltaPublication(f"{bucket_url}/table", SYSTEM, 0.0))


def test_place_on_another_kind_of_storage_is_refused(log: Log, tmp_path: Path, bucket_url: str) -> None:
    """A log on a disk cannot be linked into a bucket, nor a log in a bucket into a folder."""
    fill(log, "a")
    with pytest.raises(InvalidArgument, match="is not where the log is"):
        publishing.publish(log, DeltaPublication(f"{bucket_url}/table", SYSTEM, 0.0))
    with pytest.raises(InvalidArgument, match="published to a disk"):
        DeltaPublication("hdfs://host/table", SYSTEM, 0.0)
    far = oncelog.connect(f"{bucket_url}/db").log("orders", SETTINGS, create=True)
    fill(far, "a")
    with pytest.raises(InvalidArgument, match="is on a disk"):
        publishing.publish(far, DeltaPublication(str(tmp_path / "table"), SYSTEM, 0.0))
