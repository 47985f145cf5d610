"""Batches as EventfoldDB has them: written whole, recognised whole, refused whole, forgotten whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oncelog
from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import IdConflict, InvalidArgument, PartialOverlap, Unavailable
from oncelog.format import block
from oncelog.log.writer import Writer
from oncelog.settings import Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.logs.fixtures import duplicate_of, place, places, values
from oncelog.types import Ack, Record
from tests.log.retries import BIG, on_disk, retried
from tests.log.watched import LONG_S, WatchedStorage, orders, until


def batch(ids: str) -> list[Record]:
    """Return a batch with a record for each letter."""
    return [Record(id.encode(), id=id) for id in ids]


Life = Callable[[], Writer]


@pytest.fixture(params=["same writer", "closed and opened", "power cut", "power cut, no snapshots", "snapshot"])
def next_life(request: pytest.FixtureRequest) -> Life:
    """Return what gives a log's writer, the second time in another life: the same promises must hold there."""
    disk = SimulatedDisk()
    lives: list[Writer] = []

    def life() -> Writer:
        if lives and request.param == "same writer":
            return lives[0]
        if lives and request.param == "closed and opened":
            lives[0].close()
        elif lives:
            if request.param != "power cut":
                lives[0].snapshot()
            if request.param == "power cut, no snapshots":
                log = orders(on_disk(disk))
                for key in log.info().snapshots:
                    log._home.delete(key)
            disk.power_cut()
        lives.append(orders(on_disk(disk)).writer())
        return lives[-1]

    return life


class TestRetries:
    """The batches ab and cd and the record e are stored; then, in this life or the next, come their retries."""

    @pytest.fixture
    def stored(self, next_life: Life) -> tuple[Writer, dict[str, list[Ack]]]:
        """Return the writer of the second life, and what the first was told."""
        writer = next_life()
        acks = {ids: writer.append_batch(batch(ids)) for ids in ("ab", "cd")}
        acks["e"] = [writer.append(b"e", id="e")]
        return next_life(), acks

    @pytest.mark.parametrize("ids", ["ab", "cd", "e"])
    def test_exactly_the_stored_batch_gets_all_its_original_acks(
        self, stored: tuple[Writer, dict[str, list[Ack]]], ids: str
    ) -> None:
        """Position, segment, entry and time of each record, in order. A single record is a batch of one."""
        writer, acks = stored
        assert writer.append_batch(batch(ids)) == retried(acks[ids])
        assert writer.append_batch(batch(ids)) == retried(acks[ids])
        assert writer.append_batch(batch("xyz"))[0].position == 5

    @pytest.mark.parametrize(
        ("ids", "known"),
        [
            ("ax", "a"),
            ("xa", "a"),
            ("xb", "b"),
            ("bx", "b"),
            ("ac", "ac"),
            ("bc", "bc"),
            ("ba", "ba"),
            ("dc", "dc"),
            ("abx", "ab"),
            ("xab", "ab"),
            ("axb", "ab"),
            ("abe", "abe"),
            ("abcd", "abcd"),
            ("a", "a"),
            ("b", "b"),
            ("ex", "e"),
            ("xyd", "d"),
        ],
    )
    def test_anything_else_is_refused_whole(
        self, stored: tuple[Writer, dict[str, list[Ack]]], ids: str, known: str
    ) -> None:
        """Mixed, halved, joined, reordered: nothing is written, and what is new is not taken for known afterwards."""
        writer, acks = stored
        with pytest.raises(PartialOverlap) as refused:
            writer.append_batch(batch(ids))
        assert refused.value.known == tuple(known)
        assert refused.value.new == tuple(id for id in ids if id not in known)
        assert writer.last_position == 4
        for id in refused.value.new:
            assert not writer.append(id.encode(), id=id).duplicate
        assert writer.append_batch(batch("ab")) == retried(acks["ab"])

    def test_other_content_is_a_conflict(self, stored: tuple[Writer, dict[str, list[Ack]]]) -> None:
        """The same ids in the same order with one other byte: not a retry, and nothing is written."""
        writer, acks = stored
        with pytest.raises(IdConflict) as refused:
            writer.append_batch([Record(b"c", id="c"), Record(b"D", id="d")])
        assert refused.value.position == acks["cd"][1].position
        assert writer.last_position == 4

    def test_record_by_record_a_batch_is_known_too(self, stored: tuple[Writer, dict[str, list[Ack]]]) -> None:
        """``append`` and ``append_many`` decide each record, whatever it was stored with."""
        writer, acks = stored
        everything = acks["ab"] + acks["cd"] + acks["e"]
        assert writer.append_many(batch("abcde")) == retried(everything)
        assert writer.append(b"b", id="b") == duplicate_of(everything[1])
        assert [ack.duplicate for ack in writer.append_many(batch("axb"))] == [True, False, True]

    def test_records_that_were_appended_one_by_one_are_no_batch(self, next_life: Life) -> None:
        """Neighbours that were not appended together were not promised together."""
        writer = next_life()
        writer.append_many(batch("ab"))
        writer.append(b"c", id="c")
        writer = next_life()
        for ids in ("ab", "bc"):
            with pytest.raises(PartialOverlap):
                writer.append_batch(batch(ids))
        assert [writer.append_batch(batch(id))[0].position for id in "abc"] == [0, 1, 2]

    def test_batches_without_ids_are_whole_but_not_recognised(self, next_life: Life) -> None:
        """Nothing is promised about a retry of records without ids; they are written again, together."""
        nameless = [Record(b"1"), Record(b"2")]
        first = next_life().append_batch(nameless)
        second = next_life().append_batch(nameless)
        assert [ack.position for ack in first + second] == [0, 1, 2, 3]
        assert not any(ack.duplicate for ack in second)


class TestRefused:
    """What cannot be a batch."""

    @pytest.mark.parametrize(
        "records",
        [
            [*batch("ab"), Record(b"a", id="a")],
            [Record(b"1", id="a"), Record(b"2", id="a")],
            [*batch("ab"), Record(b"c")],
            [Record(b"c"), *batch("ab")],
            batch("abcdef"),
            [Record(b"x" * limits.VALUE_BYTES_MAX)] * 5,
        ],
        ids=[
            "repeated",
            "repeated, other bytes",
            "last without id",
            "first without id",
            "over max_keys",
            "over a block",
        ],
    )
    def test_nothing_of_it_is_written(self, records: list[Record]) -> None:
        """A repeated id, ids on some only, more ids than the window keeps, more bytes than a block: refused whole."""
        log = orders(Database(MemoryStorage()), window=Window(max_keys=5))
        with log.writer() as writer:
            with pytest.raises(InvalidArgument) as refused:
                writer.append_batch(records)
            assert not isinstance(refused.value, PartialOverlap)
            assert values(log) == []
            assert not any(ack.duplicate for ack in writer.append_batch(batch("abcde")))

    def test_one_bad_record_keeps_all_out(self) -> None:
        """Records are checked before any of them is taken."""
        log = orders(Database(MemoryStorage()))
        with log.writer() as writer:
            with pytest.raises(InvalidArgument):
                writer.append_batch([*batch("ab"), Record(b"c", id="x" * 256)])
            assert values(log) == []
            assert not writer.append(b"a", id="a").duplicate

    def test_a_batch_as_large_as_the_window_can_be_retried(self) -> None:
        """The largest batch that is taken is remembered whole."""
        log = orders(Database(MemoryStorage()), window=Window(max_keys=5))
        with log.writer() as writer:
            writer.append_batch(batch("vwxyz"))
            acks = writer.append_batch(batch("abcde"))
            assert writer.append_batch(batch("abcde")) == retried(acks)


class TestWhole:
    """One batch is one block, and one entry of the window."""

    def test_a_batch_is_one_block(self) -> None:
        """However small blocks are set to be: a batch that a crash could cut in two would not be atomic."""
        storage = MemoryStorage()
        log = orders(Database(storage), block_records=2, block_bytes=limits.KIB)
        records = [Record(b"x" * 200, id=str(number)) for number in range(50)]
        with log.writer() as writer:
            acks = writer.append_batch(records)
            assert {ack.timestamp for ack in acks} == {acks[0].timestamp}
        found, _ = storage.home("orders").blocks(0, 0, None, 1 << 30)
        assert [block.decode(buffer).payload.num_rows for buffer in found] == [50]

    def test_a_batch_goes_into_one_segment(self) -> None:
        """A batch behind a full segment begins the next, and is not spread over both."""
        log = orders(Database(MemoryStorage()), segment_bytes=limits.SEGMENT_BYTES_MIN)
        with log.writer() as writer:
            writer.append(BIG)
            acks = writer.append_batch(batch("abc"))
        assert [(ack.segment, ack.entry) for ack in acks] == [(1, 0), (1, 1), (1, 2)]

    @pytest.mark.parametrize("reopen", [False, True])
    def test_a_batch_that_max_keys_would_cut_is_evicted_whole(self, *, reopen: bool) -> None:
        """Of five keys one has to go: the whole batch ab goes, for half of it could never be retried."""
        log = orders(Database(MemoryStorage()), window=Window(max_keys=5))
        writer = log.writer()
        for ids in ("ab", "cd", "ef"):
            writer.append_batch(batch(ids))
        if reopen:
            writer.close()
            writer = log.writer()
        with writer:
            assert not any(ack.duplicate for ack in writer.append_batch(batch("ab")))
            assert writer.append_batch(batch("ef"))[0].duplicate
        assert values(log) == [b"a", b"b", b"c", b"d", b"e", b"f", b"a", b"b"]

    def test_a_batch_grows_old_whole(self) -> None:
        """All of a batch is forgotten at the same moment."""
        clock = SimulatedClock()
        with orders(Database(MemoryStorage(), clock), window=Window(duration_s=60)).writer() as writer:
            writer.append_batch(batch("ab"))
            clock.advance(30)
            writer.append_batch(batch("cd"))
            clock.advance(29)
            assert writer.append_batch(batch("ab"))[1].duplicate
            clock.advance(2)
            with pytest.raises(PartialOverlap) as refused:
                writer.append_batch(batch("abcd"))
            assert (refused.value.known, refused.value.new) == (("c", "d"), ("a", "b"))
            assert not writer.append_batch(batch("ab"))[0].duplicate

    def test_a_hit_refreshes_the_whole_batch(self) -> None:
        """With refresh_on_hit one record that is met keeps its batch in the window, whole."""
        window = Window(max_keys=4, refresh_on_hit=True)
        with orders(Database(MemoryStorage()), window=window).writer() as writer:
            acks = writer.append_batch(batch("ab"))
            writer.append_batch(batch("cd"))
            assert writer.append(b"a", id="a").duplicate
            writer.append_batch(batch("ef"))
            assert writer.append_batch(batch("ab")) == retried(acks)
            assert not writer.append_batch(batch("cd"))[0].duplicate

    def test_a_batch_that_is_met_is_refreshed(self) -> None:
        """With refresh_on_hit a batch that is retried as a batch stays too."""
        window = Window(max_keys=4, refresh_on_hit=True)
        with orders(Database(MemoryStorage()), window=window).writer() as writer:
            acks = writer.append_batch(batch("ab"))
            writer.append_batch(batch("cd"))
            assert writer.append_batch(batch("ab")) == retried(acks)
            writer.append_batch(batch("ef"))
            assert writer.append_batch(batch("ab")) == retried(acks)

    def test_a_torn_batch_is_gone_whole(self, tmp_path: Path) -> None:
        """A crash in the midst of writing a batch leaves none of it, and its retry writes all of it."""
        live = tmp_path / "live"
        with orders(oncelog.connect(live.as_uri())).writer() as writer:
            writer.append(b"before", id="before")
            shutil.copytree(live, tmp_path / "crashed")
            writer.append_batch([Record(id.encode() * 1000, id=id) for id in "abc"])
            whole = next(live.rglob("*.blocks")).read_bytes()
        torn = next((tmp_path / "crashed").rglob("*.blocks"))
        size = len(whole.rstrip(b"\x00")) - 1500
        torn.write_bytes(whole[:size].ljust(len(whole), b"\x00"))
        log = orders(oncelog.connect((tmp_path / "crashed").as_uri()))
        with log.writer() as writer:
            acks = writer.append_batch([Record(id.encode() * 1000, id=id) for id in "abc"])
        assert [(ack.position, ack.duplicate) for ack in acks] == [(1, False), (2, False), (3, False)]
        assert len(values(log)) == 4


class TestInFlight:
    """Batches that are not durable yet."""

    def test_exactly_the_batch_in_flight_is_joined(self) -> None:
        """Two attempts of one batch at once: one batch in the log, equal acks, neither before it is durable."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(3) as pool:
            first = pool.submit(writer.append_batch, batch("abc"))
            storage.wait_for_offers(1)
            others = [pool.submit(writer.append_batch, batch("abc")) for _ in range(2)]
            until(lambda: writer.counts().duplicates == 6)
            assert not any(future.done() for future in (first, *others))
            storage.let_go()
            acks = first.result(LONG_S)
            assert [other.result(LONG_S) for other in others] == [retried(acks)] * 2
        assert [place(ack) for ack in acks] == places(log)

    @pytest.mark.parametrize("ids", ["ab", "bca", "abcx", "xa"])
    def test_anything_else_is_refused_at_once(self, ids: str) -> None:
        """What overlaps a batch in flight can never become right: it is refused without waiting."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(1) as pool:
            first = pool.submit(writer.append_batch, batch("abc"))
            storage.wait_for_offers(1)
            with pytest.raises(PartialOverlap):
                writer.append_batch(batch(ids))
            assert not first.done()
            storage.let_go()
            first.result(LONG_S)
        assert values(log) == [b"a", b"b", b"c"]

    def test_other_content_waits_and_is_a_conflict(self) -> None:
        """The same ids with other bytes: told when the first is stored, and not before."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer, ThreadPoolExecutor(2) as pool:
            first = pool.submit(writer.append_batch, batch("ab"))
            storage.wait_for_offers(1)
            other = pool.submit(writer.append_batch, [Record(b"a", id="a"), Record(b"B", id="b")])
            until(lambda: writer.counts().conflicts)
            assert not other.done()
            storage.let_go()
            first.result(LONG_S)
            error = other.exception(LONG_S)
        assert isinstance(error, IdConflict)
        assert error.position == 1
        assert values(log) == [b"a", b"b"]

    def test_an_unknown_outcome_is_settled_whole(self) -> None:
        """A batch whose answer was lost is offered again as it was, and its retry gets all its positions."""
        clock = SimulatedClock(auto_advance=True)
        storage = WatchedStorage(clock=clock)
        log = orders(Database(storage, clock))
        with log.writer() as writer:
            storage.otherwise = "lost"
            with pytest.raises(Unavailable) as unknown:
                writer.append_batch(batch("abc"), timeout_s=1)
            assert unknown.value.outcome == "unknown"
            storage.otherwise = "stored"
            acks = writer.append_batch(batch("abc"), timeout_s=None)
        assert [place(ack) for ack in acks] == places(log)
        assert all(ack.duplicate for ack in acks)
        assert len(set(storage.offers)) == 1

    def test_a_submitted_record_counts_before_a_batch_that_comes_after_it(self) -> None:
        """What was submitted first was there first, decided or not: the batch overlaps it."""
        storage = WatchedStorage()
        log = orders(Database(storage))
        storage.hold()
        with log.writer() as writer:
            submitted = [writer.submit(id.encode(), id=id) for id in "xya"]
            with pytest.raises(PartialOverlap) as refused:
                writer.append_batch(batch("ab"))
            assert refused.value.known == ("a",)
            storage.let_go()
            assert [future.result(LONG_S).position for future in submitted] == [0, 1, 2]
        assert values(log) == [b"x", b"y", b"a"]
