"""A purge takes late duplicates out of sight, and nothing else: places stay, retries are met, kills do no harm."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oncelog
from oncelog import LogSettings, Window
from oncelog.cli.records.reading import position_of
from oncelog.connect import Database
from oncelog.errors import Unsupported, WriterFenced
from oncelog.log.jobs import purge
from oncelog.log.log import Log
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.faults import Killed, When
from oncelog.testing.storage import FaultyStorage
from tests.log.ingest.adoption import adopt, overlap
from tests.log.shop import Shop

SETTINGS = LogSettings(window=Window(max_keys=4), segment_bytes=64 * 1024, seal="off", snapshot_records=1_000_000)
IDS = ["a", "b", "c", "d", "e", "f", "a", "g", "b", "h", "i", "j", "a", "k"]
"""``a`` comes again at 6 and at 12, ``b`` at 8, each when the window of four had forgotten it."""
AGAIN = [6, 8, 12]
KEPT = [position for position in range(len(IDS)) if position not in AGAIN]


def fill(log: Log, ids: list[str] = IDS) -> None:
    """Append records with these ids, whose content is their id."""
    with log.writer() as writer:
        for id in ids:
            assert not writer.append(id.encode(), id=id, type="order").duplicate


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a sealed log in which three records are there again."""
    made = oncelog.connect(tmp_path.as_uri()).log("orders", SETTINGS, create=True)
    fill(made)
    made.seal()
    return made


def check_purged(log: Log) -> None:
    """See that duplicates are gone for readers, that all else is where it was, and that the log says it is sound."""
    assert [(entry.position, entry.id) for entry in log.read()] == [(position, IDS[position]) for position in KEPT]
    assert [
        position for batch in log.read_arrow(columns=["position"]) for position in batch["position"].to_pylist()
    ] == KEPT
    assert log.audit().ok
    assert log.verify().findings == ()


def test_found_and_left_alone_unless_asked(log: Log) -> None:
    """Looking changes nothing."""
    files = log.files()
    found = log.purge()
    assert (found.records, found.duplicates, found.conflicts, found.purged) == (14, 3, 0, 0)
    assert log.files() == files


def test_purged_records_are_out_of_sight_and_places_stay(log: Log) -> None:
    """Readers skip them, from wherever they begin; a second purge finds nothing; no byte of them is left."""
    done = log.purge(remove=True)
    assert (done.purged, done.files, done.unsealed) == (3, 1, 0)
    check_purged(log)
    assert [entry.position for entry in log.read(start=6)] == [7, 9, 10, 11, 13]
    assert log.info().last_position == 13
    again = log.purge(remove=True)
    assert (again.duplicates, again.purged) == (0, 0)
    rows = pq.read_table(log.files()[0].path).to_pylist()
    assert len(log.files()) == 1
    assert [row["purged"] for row in rows] == [{6: 0, 8: 1, 12: 0}.get(position) for position in range(14)]
    assert all((row["value"], row["id"], row["type"]) == (b"", None, None) for row in rows if row["purged"] is not None)


def test_retry_still_meets_a_purged_record(log: Log, tmp_path: Path) -> None:
    """Purged, all snapshots gone, rebuilt: anybody who sends it again gets the place that it was given."""
    log.purge(remove=True)
    for path in (tmp_path / "logs" / "orders" / "dedup_snapshot").rglob("snapshot_*"):
        path.unlink()
    for _ in range(2):
        with log.writer() as writer:
            ack = writer.append(b"a", id="a", type="order")
            assert (ack.position, ack.duplicate) == (12, True)
            with pytest.raises(oncelog.IdConflict):
                writer.append(b"other", id="a", type="order")
        assert log.rebuild().ids == 4
    check_purged(log)


def test_writer_that_goes_on_meanwhile_is_not_disturbed(log: Log) -> None:
    """A purge needs no writer, and stops none."""
    with log.writer() as writer:
        assert log.purge(remove=True).purged == 3
        assert writer.append(b"a", id="a", type="order").position == 12
        assert writer.append(b"new", id="new").position == 14
    assert [entry.position for entry in log.read()] == [*KEPT, 14]
    assert log.verify().ok


def test_reader_on_its_way_goes_on(log: Log) -> None:
    """Anybody who reads while files are exchanged sees each record at most once, and all that stay."""
    reader = iter(log.read())
    seen = [next(reader).position for _ in range(3)]
    log.purge(remove=True)
    seen += [entry.position for entry in reader]
    assert sorted(set(seen)) == seen
    assert set(KEPT) <= set(seen)


def test_moment_of_a_purged_record_is_its_place() -> None:
    """A job that starts at a moment starts there, though the first record of that moment was purged since."""
    clock = SimulatedClock(now_us=5_000_000)
    log = Database(MemoryStorage(), clock).log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        for id in IDS:
            clock.advance(1)
            writer.append(id.encode(), id=id, type="order")
    log.seal()
    moments = [entry.timestamp for entry in log.read()]
    assert log.purge(remove=True).purged == len(AGAIN)
    assert [log.position_at(moment) for moment in moments] == list(range(len(IDS)))
    assert [position_of(log, moment) for moment in moments] == list(range(len(IDS)))


def test_marks_outlive_a_merge_of_files(log: Log) -> None:
    """Small files are put together later: what was purged stays purged, and is still met."""
    log.purge(remove=True)
    fill(log, ["x", "y"])
    log.seal()
    assert len(log.files()) == 1
    assert [entry.position for entry in log.read()] == [*KEPT, 14, 15]
    assert log.verify().findings == ()
    with log.writer() as writer:
        assert writer.append(b"a", id="a", type="order").position == 12


def test_purged_again_after_more_came(log: Log) -> None:
    """What was purged before stays as it was; what came since is purged with it."""
    log.purge(remove=True)
    fill(log, ["x", "y", "z", "c"])
    log.seal()
    assert log.purge(remove=True).purged == 1
    assert [entry.position for entry in log.read()] == [*KEPT, 14, 15, 16]
    assert log.verify().findings == ()


def test_adopted_files_are_purged_too(tmp_path: Path) -> None:
    """A file that was made elsewhere keeps its times and its identities, with and without what is beside it."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", LogSettings(window=Window(duration_s=0.001), seal="off"), create=True)
        table = pa.table({"value": [id.encode() for id in "abc"], "id": list("abc")})
        with log.writer() as writer:
            adopt(writer, [log.stage([table])])
        later = pa.table({"value": [b"x", b"b"], "id": ["x", "b"]})
        with log.writer() as writer:
            while writer.append(b"tick").position is None or overlap(writer, [log.stage([later])])[0].size:
                continue  # until the window has forgotten
            adopt(writer, [staged := log.stage([later])])
        before = {entry.position: entry for entry in log.read()}
        assert log.purge(remove=True).purged == 1
        after = list(log.read())
        gone = log.info().last_position
        assert [entry for position, entry in before.items() if position != gone] == after
        assert log.verify().ok
        beside = tmp_path / "logs" / "orders" / str(staged.identities)
        beside.unlink()
        assert log.verify().ok


def test_files_that_are_merged_meanwhile_are_purged_all_the_same(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that tidies up beside the purge takes its files away: what they became is looked at again."""
    rewrite_file = purge.rewrite_file
    merged: list[str] = []

    def late(*given: Any) -> Any:
        if not merged:
            merged.append("once")
            fill(log, ["x", "y"])
            log.seal()
        return rewrite_file(*given)

    monkeypatch.setattr(purge, "rewrite_file", late)
    done = log.purge(remove=True)
    assert (done.records, done.duplicates, done.purged, done.files, done.unsealed) == (16, 3, 3, 1, 0)
    assert [entry.position for entry in log.read()] == [*KEPT, 14, 15]
    assert log.verify().findings == ()


def test_what_is_not_sealed_is_told(tmp_path: Path) -> None:
    """Only sealed files are written again: the rest is counted."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", SETTINGS, create=True)
    fill(log)
    done = log.purge(remove=True)
    assert (done.duplicates, done.purged, done.unsealed) == (3, 0, 3)
    assert len(list(log.read())) == 14


def test_several_files_are_purged_at_once(tmp_path: Path) -> None:
    """Each file is written again by itself; together they are one purge."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        for number in range(60):
            writer.append(f"{number % 20}".encode() * 10_000, id=f"{number % 20}")
    log.seal()
    assert len(log.files()) > 3
    done = log.purge(remove=True)
    assert done.purged == 40
    assert done.files > 2
    assert [entry.position for entry in log.read()] == list(range(20))
    assert log.verify().findings == ()


def test_conflicts_are_left_alone(tmp_path: Path) -> None:
    """The same id with other content is nobody's duplicate."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", SETTINGS, create=True)
    fill(log, ["a", "b", "c", "d", "e"])
    with log.writer() as writer:
        writer.append(b"other", id="a")
    log.seal()
    done = log.purge(remove=True)
    assert (done.duplicates, done.conflicts, done.purged) == (0, 1, 0)
    assert len(list(log.read())) == 6


def test_streams_are_refused(tmp_path: Path) -> None:
    """A stream's version counts its events, so none may go."""
    log = oncelog.connect(tmp_path.as_uri()).log("orders", SETTINGS, create=True)
    with log.writer() as writer:
        writer.append(b"x", id="a", stream="s")
    log.seal()
    with pytest.raises(Unsupported, match="streams"):
        log.purge()


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_that_a_crash_left_open_is_looked_at(*, sealed: bool, stream: str | None) -> None:
    """Nobody noted whether its records have streams: it is read, and a log without streams can still be purged."""
    storage = MemoryStorage()
    log = Database(storage).log("orders", SETTINGS, create=True)
    crashed = Database(storage).log("orders").writer()
    for id in IDS:
        crashed.append(id.encode(), id=id, stream=stream)
    log.writer(takeover="force").close()
    with contextlib.suppress(WriterFenced):
        crashed.close()
    if sealed:
        log.seal()
    if stream is None:
        assert log.purge(remove=True).purged == (len(AGAIN) if sealed else 0)
    else:
        with pytest.raises(Unsupported, match="streams"):
            log.purge(remove=True)


def test_streams_that_were_truncated_away_are_refused(shop: Shop) -> None:
    """Their versions go on, and count the events that come."""
    log = shop.log(LogSettings(idempotence="off", seal="off"))
    with log.writer() as writer:
        writer.append(b"x", stream="s")
    with log.writer() as writer:
        writer.append(b"y")
    assert log.truncate(before=1).first_position == 1
    with pytest.raises(Unsupported, match="streams"):
        log.purge()


# Killed at every step.


def purged_in(storage: FaultyStorage) -> Log:
    """Open the log of a storage that is started again."""
    storage.restart()
    return Database(storage).log("orders")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_cut_short_at_any_step_and_done_again(how: str, when: When) -> None:
    """Whatever call goes wrong: the log is as before or as after, verifies, and a second purge finishes the work."""
    for number in range(1, 200):
        storage = FaultyStorage(MemoryStorage())
        log = Database(storage).log("orders", SETTINGS, create=True)
        fill(log)
        log.seal()
        before = storage.faults.calls
        getattr(storage, f"{how}_at")(number, when)
        with contextlib.suppress(oncelog.Unavailable, Killed):
            log.purge(remove=True)
        calls = storage.faults.calls - before
        reopened = purged_in(storage)
        assert [entry.position for entry in reopened.read()] in (list(range(14)), KEPT)
        assert reopened.verify().ok
        reopened.purge(remove=True)
        reopened.seal()
        assert [(e.position, e.id) for e in reopened.read()] == [(position, IDS[position]) for position in KEPT]
        assert reopened.audit().ok
        with reopened.writer() as writer:
            assert writer.append(b"a", id="a", type="order").position == 12
        if calls < number:  # all of it went well: there is no step left to be cut short at
            break
    assert 15 < number < 199
