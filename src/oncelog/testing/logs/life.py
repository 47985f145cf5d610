"""The contract of a log's life: opening, settings, closing, coming back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import Closed, IdConflict, InvalidArgument, LogBusy, NotFound, PartialOverlap
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.testing.logs.fixtures import (
    CONTENT,
    FULL,
    LONG_S,
    ORIGINAL,
    SMALL_SEGMENTS,
    LogContractFixtures,
    Reopen,
    append,
    duplicate_of,
    place,
    places,
    table,
    values,
)
from oncelog.types import Ack, Record


class SettingsContract(LogContractFixtures):
    """Opening, settings and names."""

    def test_a_log_is_created_only_when_asked(self, database: Database) -> None:
        """A name that is mistyped does not become a log."""
        with pytest.raises(NotFound, match="create=True"):
            database.log("orders")
        assert database.logs() == []
        database.log("orders", create=True)
        database.log("orders")
        database.log("orders", create=True)
        assert database.logs() == ["orders"]

    def test_settings_that_differ_are_named(self, database: Database) -> None:
        """Opening with other settings tells which, and changes nothing; without any, the stored ones hold."""
        stored = LogSettings(window=Window(max_keys=10), on_conflict="original")
        assert database.log("orders", stored, create=True).settings == stored
        assert database.log("orders").settings == stored
        assert database.log("orders", create=True).settings == stored
        database.log("orders", stored)
        with pytest.raises(InvalidArgument, match=r"window\.max_keys: stored 10, given 20") as refused:
            database.log("orders", LogSettings(window=Window(max_keys=20), on_conflict="original"), create=True)
        assert "on_conflict" not in str(refused.value)
        assert database.log("orders").settings == stored

    def test_configure(self, database: Database) -> None:
        """New settings hold for the writers opened after it, for every handle, and are the stored ones then."""
        log, other = database.log("orders", create=True), database.log("orders")
        with log.writer() as writer:
            writer.append(b"v", id="1")
        log.configure(ORIGINAL)
        assert log.settings == other.settings == other.info().settings == ORIGINAL
        with other.writer() as writer:
            assert writer.append(b"w", id="1").conflict
        with pytest.raises(InvalidArgument):
            database.log("orders", LogSettings())

    @pytest.mark.parametrize(
        "bad",
        [
            LogSettings(idempotence="maybe"),  # type: ignore[arg-type]
            LogSettings(window=Window(max_keys=0)),
            LogSettings(window=Window(duration_s=-1)),
            LogSettings(window=Window(max_keys=1.5)),  # type: ignore[arg-type]
            LogSettings(window=Window(duration_s=float("nan"))),
            LogSettings(segment_bytes=1),
            LogSettings(block_bytes=limits.BLOCK_BYTES_MAX + 1),
            LogSettings(pending_records=0),
        ],
        ids=str,
    )
    def test_bad_settings_are_refused(self, database: Database, bad: LogSettings) -> None:
        """Settings that cannot hold are refused by name, on creation and later, and nothing is created."""
        with pytest.raises(InvalidArgument, match="settings"):
            database.log("orders", bad, create=True)
        assert database.logs() == []
        log = database.log("orders", create=True)
        with pytest.raises(InvalidArgument, match="settings"):
            log.configure(bad)
        assert log.settings == LogSettings()

    @pytest.mark.parametrize(
        "name", ["a", "ä", "日本", "x" * 255, "ü" * 127, "A.b-c_1", "%41", "a b", "shop/orders", ".hidden", "CON", "~"]
    )
    def test_names_of_every_kind(self, database: Database, name: str) -> None:
        """A name is 1 to 255 bytes of text, and names that look alike are different logs."""
        neighbours = {name, "A", "b", name[:-1] + "z", name.swapcase()}
        for each in neighbours:
            with database.log(each, create=True).writer() as writer:
                writer.append(each.encode())
        assert database.logs() == sorted(neighbours)
        assert values(database.log(name)) == [name.encode()]

    @pytest.mark.parametrize("name", ["", ".", "..", "/", "a/../b", "/a", "a//b", "x" * 256, "a\n", "\ud800", 7, None])
    def test_bad_names_are_refused(self, database: Database, name: Any) -> None:
        """No name leads out of the database, or cannot be written down."""
        with pytest.raises(InvalidArgument, match="name"):
            database.log(name, create=True)
        assert database.logs() == []

    def test_info(self, log: Log, writer: Writer) -> None:
        """An operator gets the figures, and they count what was done."""
        assert (log.info().first_position, log.info().last_position) == (0, -1)
        writer.append(b"v", id="1")
        writer.append(b"v", id="1")
        writer.append_many([Record(b"w", id="2"), Record(b"n")])
        with pytest.raises(IdConflict):
            writer.append(b"x", id="1")
        info = log.info()
        assert (info.name, info.first_position, info.last_position) == ("orders", 0, 2)
        assert info.counters is not None
        counted = info.counters
        assert [counted.attempts, counted.stored, counted.duplicates, counted.conflicts] == [5, 3, 1, 1]
        assert counted.commits > 0
        assert counted.bytes_written > 0
        assert (info.window["keys"], info.window["pending"]) == (2, 0)
        writer.snapshot()
        assert list(log.info().snapshots.values()) == [3]


class LifeContract(LogContractFixtures):
    """Opening, closing, and who may write."""

    def test_leaving_the_with_stores_what_was_submitted(self, log: Log) -> None:
        """Nobody has to hold the futures."""
        with log.writer() as writer:
            futures = [writer.submit(b"%d" % number) for number in range(20)]
        assert [future.result(0).position for future in futures] == list(range(20))
        assert len(values(log)) == len(futures)

    @pytest.mark.parametrize("ending", ["writer", "log", "database"])
    def test_a_closed_writer_says_so(self, database: Database, ending: str) -> None:
        """Closed by itself, by its log or by its database, a writer stores what is pending and then refuses."""
        log = database.log("orders", create=True)
        writer = log.writer()
        future = writer.submit(b"pending", id="1")
        ended: dict[str, Any] = {"writer": writer, "log": log, "database": database}
        ended[ending].close()
        ended[ending].close()
        assert future.result(0).position == 0
        for use in _uses_of_a_writer(writer):
            with pytest.raises(Closed):
                use()

    def test_a_closed_log_and_database_say_so(self, database: Database, log: Log) -> None:
        """Nothing can be done with what is closed, and it is not asked of storage first."""
        other = database.log("other", create=True)
        log.close()
        for use in (
            log.writer,
            log.read,
            log.read_arrow,
            log.tail,
            log.info,
            lambda: log.read(99),
            lambda: log.settings,
        ):
            with pytest.raises(Closed):
                use()
        assert list(other.read()) == []
        database.close()
        uses: list[Callable[[], object]] = [database.logs, lambda: database.log("orders"), other.read]
        for each in uses:
            with pytest.raises(Closed):
                each()

    def test_a_database_ends_what_was_opened_through_logs_nobody_kept(self, database: Database) -> None:
        """Writers and tails end with their database, whether or not the log they came from is still in hand."""
        writer = database.log("orders", create=True).writer()
        entries = database.log("orders").tail()
        gc.collect()
        database.close()
        with pytest.raises(Closed):
            writer.append(b"v")
        assert list(entries) == []

    def test_one_writer_at_a_time(self, log: Log) -> None:
        """A second writer waits, then gets ``LogBusy``; once the first is closed, it can open the log."""
        with log.writer() as first:
            with pytest.raises(LogBusy):
                log.writer(wait_s=0)
            with pytest.raises(LogBusy):
                log.writer(wait_s=0.02)
            first.append(b"1")
        with log.writer(wait_s=0) as second:
            assert second.append(b"2").position == 1

    def test_a_writer_that_waits_gets_the_log_when_it_is_free(self, log: Log) -> None:
        """Waiting for a writer ends when that one is closed."""
        first = log.writer()
        first.append(b"1", id="1")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.writer, wait_s=LONG_S)
            first.close()
            with waiting.result(LONG_S) as second:
                assert second.append(b"1", id="1").duplicate

    def test_a_bad_takeover_is_refused(self, log: Log) -> None:
        """There are two ways to take over, and they have names."""
        rude: Any = "rude"
        with pytest.raises(InvalidArgument, match="rude"):
            log.writer(takeover=rude)

    def test_threads_share_a_writer(self, log: Log, writer: Writer) -> None:
        """A hundred threads, ten ids: ten records, and every answer of one id is the same place."""
        go = threading.Barrier(100)

        def attempt(number: int) -> Ack:
            go.wait()
            return writer.append(b"%d" % (number % 10), id=str(number % 10))

        with ThreadPoolExecutor(100) as pool:
            acks = list(pool.map(attempt, range(100)))
        assert sorted(values(log)) == [b"%d" % number for number in range(10)]
        for number in range(10):
            same = acks[number::10]
            assert {place(ack) for ack in same} == {place(same[0])}
            assert [ack.duplicate for ack in same].count(False) == 1


class ReopenContract(LogContractFixtures):
    """Coming back, after a close and after a crash."""

    @pytest.fixture(params=[False, True], ids=["closed", "crashed"])
    def crash(self, request: pytest.FixtureRequest) -> bool:
        """Return whether the database ends by a crash."""
        return bool(request.param)

    def test_what_was_acknowledged_is_there(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """Every acknowledged record is at its place, with its time."""
        writer = log.writer()
        acks = [writer.append(b"%d" % number, id=str(number)) for number in range(10)]
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            assert places(again) == [place(ack) for ack in acks]
            assert writer.append(b"next").position == len(acks)

    def test_a_retry_gets_the_ack_of_the_life_before(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """Retries, by record, by column and by batch, meet what was stored before; conflicts too."""
        writer = log.writer()
        single = append(writer, FULL)
        batch = [Record(b"1", id="1"), Record(b"2", id="2")]
        pair = writer.append_batch(batch)
        rows = [Record(b"3", id="3"), Record(b"4", id="4", type="T")]
        writer.append_arrow(table(*rows))
        with reopen(crash=crash).log("orders").writer() as writer:
            assert append(writer, FULL) == duplicate_of(single)
            assert writer.append_batch(batch) == [duplicate_of(ack) for ack in pair]
            assert [ack.duplicate for ack in writer.append_many(rows)] == [True, True]
            assert writer.append_arrow(table(*rows)).positions.tolist() == [3, 4]
            with pytest.raises(PartialOverlap):
                writer.append_batch(batch[:1])
            with pytest.raises(IdConflict):
                writer.append(b"other", id="3")

    def test_with_a_snapshot_and_a_gap_behind_it(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """What the snapshot has and what came after it are known alike."""
        writer = log.writer()
        acks = []
        for number in range(30):
            acks.append(writer.append(b"%d" % number, id=str(number)))
            if number % 10 == 0:
                writer.snapshot()
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            retries = [writer.append(b"%d" % number, id=str(number)) for number in range(30)]
        assert retries == [duplicate_of(ack) for ack in acks]

    def test_again_and_again(self, database: Database, reopen: Reopen, *, crash: bool) -> None:
        """Many lives of one log, over segments that roll: positions go on, every retry is known."""
        del database
        acks: list[Ack] = []
        db = reopen()
        log = db.log("lives", SMALL_SEGMENTS, create=True)
        for life in range(4):
            writer = log.writer()
            retries = [writer.append(b"%d" % number * 8000, id=str(number)) for number in range(len(acks))]
            assert retries == [duplicate_of(ack) for ack in acks]
            acks += [writer.append(b"%d" % number * 8000, id=str(number)) for number in range(life * 6, life * 6 + 6)]
            log = reopen(crash=crash).log("lives")
        assert places(log) == [place(ack) for ack in acks]
        assert [ack.position for ack in acks] == list(range(24))

    def test_settings_and_epochs_are_kept(self, database: Database, reopen: Reopen, *, crash: bool) -> None:
        """A log comes back as it was configured, and every writer has an epoch of its own."""
        log = database.log("orders", CONTENT, create=True)
        writer = log.writer()
        writer.append(b"v")
        before = log.info()
        again = reopen(crash=crash).log("orders", CONTENT)
        with again.writer() as writer:
            assert writer.append(b"v").duplicate
            after = again.info()
        assert after.log_id == before.log_id
        assert after.epoch > before.epoch
        assert after.settings == CONTENT

    def test_segments_are_numbered_on(self, log: Log, reopen: Reopen, *, crash: bool) -> None:
        """No segment and entry is ever given twice."""
        writer = log.writer()
        writer.append(b"1")
        again = reopen(crash=crash).log("orders")
        with again.writer() as writer:
            writer.append(b"2")
        pairs = [(entry.segment, entry.entry) for entry in again.read()]
        assert all(first < second for first, second in pairwise(pairs))


def _uses_of_a_writer(writer: Writer) -> list[Callable[[], object]]:
    return [
        lambda: writer.append(b"v"),
        lambda: writer.submit(b"v"),
        lambda: writer.append_many([Record(b"v")]),
        lambda: writer.append_batch([Record(b"v")]),
        lambda: writer.append_arrow(table(Record(b"v"))),
        writer.flush,
        writer.snapshot,
    ]
