"""The eight edge cases of Woodpecker's idempotent writes, by name, on a quorum of folders, or of real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import NotFound, OncelogError, Unavailable, WriterFenced
from oncelog.settings import Window
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.quorum.folder import FolderBucket
from oncelog.testing.logs.fixtures import duplicate_of, values
from tests.log.retries import BIG, SMALL_SEGMENTS, retried, write
from tests.log.watched import LONG_S, orders, until
from tests.storage.quorum.place import NODES, Place

SERVERS = pytest.param("servers", marks=[pytest.mark.soak, pytest.mark.xdist_group("quorum-servers")])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SeaweedFS]]:
    """Run a server for the store, and one for each node."""
    started: dict[str, SeaweedFS] = {}
    try:
        for name in ("store", *NODES):
            started[name] = SeaweedFS(tmp_path_factory.mktemp(name))
        yield started
    finally:
        for server in started.values():
            server.end()


@pytest.fixture(params=["folders", SERVERS])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a store and three nodes on real disks, or on real servers."""
    if request.param == "folders":
        return Place(monkeypatch, {name: FolderBucket(tmp_path / name) for name in ("store", *NODES)})
    prefix = SYSTEM.token(8).hex()
    running: dict[str, SeaweedFS] = request.getfixturevalue("servers")
    return Place(
        monkeypatch,
        {name: Bucket.connect(f"s3://{BUCKET}/{prefix}", dict(server.options)) for name, server in running.items()},
    )


@pytest.fixture
def databases() -> Iterator[list[Database]]:
    """Return where a test puts the databases of processes that live to its end."""
    opened: list[Database] = []
    yield opened
    for database in opened:
        database.close()


def test_case_1_crash_between_write_and_snapshot(place: Place, databases: list[Database]) -> None:
    """What came after the last snapshot is found on the nodes: no retry of it is a second write."""
    writer = orders(place.process(), window=Window(duration_s=600)).writer()
    acks = write(writer, range(10))
    writer.snapshot()
    acks += write(writer, range(10, 14))
    place.crash()
    databases.append(place.process())
    log = orders(databases[0])
    assert list(log.info().snapshots.values()) == [10]
    with log.writer() as writer:
        assert write(writer, range(14)) == retried(acks)
    assert len(values(log)) == 14


def test_case_2_fake_failure_stored_but_the_answer_lost(place: Place, databases: list[Database]) -> None:
    """The answers of two nodes are lost: the append is unknown, and its retry settles the record where it is."""
    databases.append(place.process())
    log = orders(databases[0])
    with log.writer() as writer:
        first = writer.append(b"0", id="0")
        for name in NODES[:2]:
            node = place.seen[name]
            node.faults.fail_forever(
                lambda operation, _: Unavailable("lost", outcome="unknown") if operation == "create" else None, "after"
            )
        with pytest.raises(Unavailable) as unknown:
            writer.append(b"X", id="X", timeout_s=0.1)
        assert unknown.value.outcome == "unknown"
        for name in NODES[:2]:
            place.seen[name].faults.heal()
        ack = writer.append(b"X", id="X", timeout_s=None)
    assert (ack.segment, ack.entry, ack.duplicate) == (first.segment, 1, True)
    assert values(log) == [b"0", b"X"]


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_case_3_failover_with_writes_in_flight(copies: int, place: Place, databases: list[Database]) -> None:
    """The new writer decides. A record of which a node has a copy is kept where it is; one without is new."""
    old = orders(place.process()).writer()
    write(old, range(1))
    until(lambda: len(place.stores["n2"].below("logs/")) == 1)
    for name in NODES[copies:]:
        place.seen[name].cut_off()
    for name in NODES[:copies]:
        place.seen[name].faults.fail_forever(lambda *_: Unavailable("lost", outcome="unknown"), "after")
    pending = old.submit(b"X", id="X")
    until(lambda: all(len(place.stores[name].below("logs/")) == 2 for name in NODES[:copies]))
    until(lambda: old.counts().storage_failures)
    place.crash()
    databases.append(place.process())
    log = orders(databases[0])
    with log.writer(takeover="force") as new:
        retry = new.append(b"X", id="X")
        assert (retry.position, retry.duplicate) == (1, copies > 0)
    assert values(log) == [b"0", b"X"]
    with contextlib.suppress(OncelogError):
        old.close(timeout_s=0)
    error = pending.exception(LONG_S)
    assert isinstance(error, (Unavailable, WriterFenced))
    assert error.outcome == "unknown"


@pytest.mark.parametrize("sealed", [False, True])
def test_case_4_segment_finalized_since_the_snapshot(place: Place, databases: list[Database], *, sealed: bool) -> None:
    """Where the snapshot stopped is read on from, whether that segment is open, closed or sealed by now."""
    log = orders(place.process(), **SMALL_SEGMENTS, window=Window(duration_s=600))
    writer = log.writer()
    acks = write(writer, range(3), 16_000)
    writer.snapshot()
    acks += write(writer, range(3, 10), 16_000)
    assert acks[2].segment == acks[3].segment == 0
    assert acks[-1].segment
    if sealed:
        log.seal()
    place.crash()
    databases.append(place.process())
    with orders(databases[0]).writer() as writer:
        assert write(writer, range(10), 16_000) == retried(acks)


def test_case_5_segment_truncated(place: Place, databases: list[Database]) -> None:
    """Truncation takes what the window has forgotten and no more; what is left is known without the rest."""
    log = orders(place.process(), **SMALL_SEGMENTS, window=Window(max_keys=5))
    writer = log.writer()
    write(writer, range(5), 16_000)
    writer.snapshot()
    acks = write(writer, range(5, 12), 16_000)
    log.truncate(before=10)
    first = log.info().first_position
    assert 0 < first <= 7
    with pytest.raises(NotFound):
        log.read(0)
    place.crash()
    databases.append(place.process())
    with orders(databases[0]).writer() as writer:
        assert write(writer, range(7, 12), 16_000) == retried(acks[2:])
        assert [ack.position for ack in write(writer, range(2), 16_000)] == [12, 13]


def test_case_6_new_segment_rolled_after_the_snapshot(place: Place, databases: list[Database]) -> None:
    """Segments that the snapshot has never heard of are read from their beginning."""
    writer = orders(place.process(), **SMALL_SEGMENTS, window=Window(duration_s=600)).writer()
    acks = write(writer, range(2))
    writer.snapshot()
    acks += [writer.append(BIG, id=f"big {number}") for number in range(3)]
    place.crash()
    databases.append(place.process())
    with orders(databases[0]).writer() as writer:
        again = write(writer, range(2)) + [writer.append(BIG, id=f"big {number}") for number in range(3)]
    assert again == retried(acks)
    assert len({ack.segment for ack in acks}) == 3


def test_case_7_snapshot_write_fails(place: Place, databases: list[Database]) -> None:
    """The store takes no snapshot: appends go on, the snapshot before it stands, and a crash then loses nothing."""
    log = orders(place.process(), window=Window(duration_s=600))
    writer = log.writer()
    acks = write(writer, range(10))
    writer.snapshot()
    place.seen["store"].faults.fail_forever(
        lambda operation, key: Unavailable("full") if operation == "create" and "snapshot" in key else None
    )
    acks += write(writer, range(10, 15))
    with pytest.raises(Unavailable):
        writer.snapshot()
    assert list(log.info().snapshots.values()) == [10]
    place.crash()
    databases.append(place.process())
    log = orders(databases[0])
    with log.writer() as writer:
        assert write(writer, range(15)) == retried(acks)
        writer.snapshot()
        assert max(log.info().snapshots.values()) == 15
    assert len(values(log)) == 15


def test_case_8_retry_after_the_window(place: Place, databases: list[Database]) -> None:
    """An id that the window has forgotten is a new write; one that the window still has is not."""
    databases.append(place.process())
    log = orders(databases[0], window=Window(max_keys=3))
    with log.writer() as writer:
        first = writer.append(b"X", id="X")
        write(writer, range(2))
        assert writer.append(b"X", id="X") == duplicate_of(first)
        write(writer, range(2, 4))
        second = writer.append(b"X", id="X")
        assert (second.position, second.duplicate) == (5, False)
    assert values(log) == [b"X", b"0", b"1", b"2", b"3", b"X"]


def test_case_8_the_window_ends_by_time_too(place: Place, databases: list[Database]) -> None:
    """A window of a moment forgets while a writer is up: in the end the retry is a new write, and only then."""
    databases.append(place.process())
    log = orders(databases[0], window=Window(duration_s=0.2))
    with log.writer() as writer:
        acks = [writer.append(b"X", id="X")]
        again = writer.append(b"X", id="X")
        while again.duplicate:
            acks.append(again)
            again = writer.append(b"X", id="X")
    assert {ack.position for ack in acks} == {0}
    assert again.position == 1
    assert values(log) == [b"X", b"X"]
