"""Producers with sequences: the scenarios of Pulsar's guaranteed deduplication, and what went wrong elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import AppendErrors, Closed, InvalidArgument, LogBusy, PartialOverlap, Unavailable, WriterFenced
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.stored import snapshots
from oncelog.settings import LogSettings, ProducerPolicy, Window
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.clock import SimulatedClock
from oncelog.types import Ack, Record
from tests.log.watched import LONG_S, WatchedStorage, orders, until


@pytest.fixture
def storage() -> WatchedStorage:
    """Return a home that can be held, and can fail."""
    return WatchedStorage()


@pytest.fixture
def log(storage: WatchedStorage) -> Log:
    """Return the log in it."""
    return orders(Database(storage))


def sequences(log: Log, producer: str = "p") -> list[int | None]:
    """Return the sequences that are stored of a producer, in order."""
    return [entry.sequence for entry in log.read() if entry.producer == producer]


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Do something in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


# Pulsar, scenario by scenario.


def test_sequences_0_1_5_accepted_and_0_again_joins_in_flight_or_is_a_duplicate(
    log: Log, storage: WatchedStorage
) -> None:
    """Gaps are allowed; a retry joins the attempt in flight, and once that is stored gets its place."""
    with log.writer(producer="p") as w:
        storage.hold()
        first = w.submit(b"0", sequence=0)
        storage.wait_for_offers(1)
        again = in_thread(lambda: w.append(b"0", sequence=0))
        until(lambda: w.counts().duplicates)
        w.submit(b"1", sequence=1)
        assert not again.done()
        storage.let_go()
        assert first.result(LONG_S).position == 0
        assert again.result(LONG_S) == Ack(0, 0, 0, first.result().timestamp, duplicate=True)
        assert w.append(b"5", sequence=5).position == 2
        later = w.append(b"0", sequence=0)
        assert (later.position, later.duplicate) == (0, True)
    assert sequences(log) == [0, 1, 5]


def test_sequence_7_with_an_unknown_outcome_is_stored_once_and_never_acknowledged_before_it_is_stored(
    log: Log, storage: WatchedStorage
) -> None:
    """The answer is lost, the producer sends 7 again: one 7; and other producers do not notice."""
    with log.writer(producer="p") as w:
        other = w.as_producer("other")
        w.append(b"6", sequence=6)
        storage.otherwise = "refused"
        with pytest.raises(Unavailable) as lost:
            w.append(b"7", sequence=7, timeout_s=0.01)
        assert lost.value.outcome == "unknown"
        again, beside = w.submit(b"7", sequence=7), other.submit(b"x", sequence=1)
        storage.wait_for_offers(4)
        assert not again.done()
        assert w.last_sequence == 6
        storage.answers.append("lost")
        storage.otherwise = "stored"
        assert again.result(LONG_S).duplicate
        assert not beside.result(LONG_S).duplicate
        assert (w.last_sequence, other.last_sequence) == (7, 1)
    assert sequences(log) == [6, 7]
    assert sequences(log, "other") == [1]


def test_two_threads_that_push_7_then_6_lose_neither_silently(log: Log) -> None:
    """The 6 that comes late is refused, not taken for a duplicate of something that was never stored."""
    with log.writer(producer="p") as w:
        assert in_thread(lambda: w.append(b"7", sequence=7)).result(LONG_S).position == 0
        with pytest.raises(InvalidArgument, match="sequence 6 was never pushed"):
            in_thread(lambda: w.append(b"6", sequence=6)).result(LONG_S)
        late = w.submit(b"6", sequence=6)
        assert isinstance(late.exception(LONG_S), InvalidArgument)
        assert w.counts().refused == 2
    assert sequences(log) == [7]


@pytest.mark.parametrize("snapshot", ["taken", "lost", "none"])
def test_last_sequence_is_right_after_reopen(log: Log, snapshot: str) -> None:
    """The producer continues from it, whether a snapshot tells it or the log."""
    with log.writer(producer="p") as w:
        w.append(b"0", sequence=3)
        w.as_producer("q").append(b"q")
        if snapshot != "none":
            w.snapshot()
        w.append(b"1", sequence=9)
    if snapshot == "lost":
        for key in log._home.list(snapshots.prefix(log.info().log_id)):
            log._home.delete(key)
    with log.writer(producer="p") as w:
        assert w.last_sequence == 9
        assert w.append(b"1", sequence=9) == Ack(1 + 1, 0, 2, None, duplicate=True)
        assert w.append(b"old", sequence=4) == Ack(None, None, None, None, duplicate=True)
        assert w.append(b"2", sequence=10).position == 3
        q = w.as_producer("q")
        assert (q.last_sequence, q.append(b"q").position, q.last_sequence) == (0, 4, 1)


def test_last_sequence_is_right_after_failover(log: Log, storage: WatchedStorage) -> None:
    """What the old writer had in flight counts if it is stored, and not if it is not; the old one learns its fate."""
    old = log.writer(producer="p")
    old.append(b"0", sequence=0)
    storage.answers.append("lost")
    storage.otherwise = "refused"
    future = old.submit(b"1", sequence=1)
    until(lambda: len(storage.offers) >= 2)
    with Database(storage).log("orders").writer(takeover="force", producer="p") as new:
        assert new.last_sequence == 1
        storage.otherwise = "stored"
        assert new.append(b"1", sequence=1).duplicate
        assert new.append(b"2", sequence=2).position == 2
        assert isinstance(future.exception(LONG_S), WriterFenced)
        with pytest.raises(WriterFenced):
            old.append(b"3", sequence=3)
    assert sequences(log) == [0, 1, 2]


def test_producer_limit_and_inactivity_never_take_the_place_of_the_active() -> None:
    """At the cap the least recently active goes, after inactivity the inactive, and counters say so."""
    clock = SimulatedClock()
    policy = ProducerPolicy(max_producers=3, inactive_s=100)
    settings = LogSettings(producers=policy, window=Window(duration_s=10))
    log = Database(MemoryStorage(clock=clock), clock).log("orders", settings, create=True)
    with log.writer() as w:
        active = w.as_producer("active")
        for number in range(5):
            active.append(b"x")
            w.as_producer(f"passing-{number}").append(b"x")
            clock.advance(30)
        assert set(w.producers()) == {"active", "passing-3", "passing-4"}
        assert (w.counts().producers, w.counts().producers_evicted) == (3, 3)
        clock.advance(65)
        active.append(b"x")
        assert set(w.producers()) == {"active", "passing-4"}
        assert w.counts().producers_expired == 1
    with log.writer() as w:
        assert w.last_sequence_of("active") == 5


@pytest.mark.parametrize("policy", [ProducerPolicy(max_producers=1), ProducerPolicy(inactive_s=5)])
def test_an_open_producer_is_not_forgotten(policy: ProducerPolicy) -> None:
    """Its retry, however late, is a duplicate, although others came in between: also for the next writer."""
    clock = SimulatedClock()
    log = Database(MemoryStorage(clock=clock), clock).log("orders", LogSettings(producers=policy), create=True)
    with log.writer(producer="own") as w:
        named = w.as_producer("named")
        w.append(b"x", sequence=3)
        named.append(b"x", sequence=7)
        for number in range(3):
            clock.advance(10)
            w.append(b"x", producer=f"passing-{number}", sequence=0)
        assert w.append(b"x", sequence=3).duplicate
        assert named.append(b"x", sequence=7).duplicate
        w.snapshot()
        named.close()
    with log.writer(producer="own") as w:
        assert w.append(b"x", sequence=3).duplicate
    assert sequences(log, "own") == [3]
    assert sequences(log, "named") == [7]


def test_truncation_keeps_what_an_open_producer_got_to() -> None:
    """It was silent for longer than its policy allows, and is open: the base remembers it for the next writer."""
    clock = SimulatedClock()
    settings = LogSettings(
        producers=ProducerPolicy(inactive_s=5), window=Window(duration_s=1), segment_bytes=limits.SEGMENT_BYTES_MIN
    )
    log = Database(MemoryStorage(clock=clock), clock).log("orders", settings, create=True)
    with log.writer() as w:
        producer = w.as_producer("own")
        producer.append(b"x" * limits.SEGMENT_BYTES_MIN, sequence=3)
        for number in range(3):
            clock.advance(10)
            w.append(b"x" * limits.SEGMENT_BYTES_MIN, id=str(number))
        assert log.truncate(before=2).first_position > 0
        assert producer.append(b"x", sequence=3).duplicate
    for key in log._home.list(snapshots.prefix(log.info().log_id)):
        log._home.delete(key)
    with log.writer(producer="own") as w:
        assert w.last_sequence == 3


def test_a_name_belongs_to_one_open_handle(log: Log) -> None:
    """Two that count from the same sequence would lose the second's records as duplicates of the first's."""
    with log.writer(producer="own") as w:
        first = w.as_producer("p")
        for name in ("p", "own"):
            with pytest.raises(LogBusy, match="is open on this writer"):
                w.as_producer(name)
        with pytest.raises(LogBusy):
            w.append(b"second", producer="p", sequence=0)
        with pytest.raises(LogBusy):
            w.append_arrow(pa.table({"value": [b"second"], "producer": ["p"], "sequence": [0]}))
        with pytest.raises(LogBusy):
            w.submit(b"second", producer="p", sequence=0)
        with pytest.raises(LogBusy):
            w.append_batch([Record(b"second", producer="p", sequence=0)])
        first.append(b"first", sequence=0)
        first.close()
        second = w.as_producer("p")
        assert second.append(b"second", sequence=1).position == 1
        del second  # dropped, not closed: nobody is left who could use the name
        assert w.as_producer("p").last_sequence == 1
    assert sequences(log) == [0, 1]


def test_a_name_that_is_taken_by_force_fences_its_first_handle(log: Log) -> None:
    """What the first had submitted is stored, what it sends later is refused as not written; the second goes on."""
    with log.writer() as w:
        first = w.as_producer("p")
        sent = first.submit(b"first", sequence=0)
        second = w.as_producer("p", takeover="force")
        for refused in (
            lambda: first.append(b"late", sequence=1),
            lambda: first.submit(b"late", sequence=1),
            lambda: first.append_many([Record(b"late", sequence=1)]),
            lambda: first.append_batch([Record(b"late", sequence=1)]),
            lambda: first.append_arrow(pa.table({"value": [b"late"], "sequence": [1]})),
        ):
            with pytest.raises(WriterFenced, match="was taken") as fenced:
                refused()
            assert fenced.value.outcome == "not written"
        assert sent.result(LONG_S).position == 0
        assert second.append(b"first", sequence=0).duplicate
        assert not second.append(b"second", sequence=1).duplicate
        first.close()  # it closes itself alone
        with pytest.raises(LogBusy):
            w.as_producer("p")
    assert [entry.value for entry in log.read()] == [b"first", b"second"]


def test_deduplication_off_then_on_is_rebuilt_not_assumed(log: Log) -> None:
    """While it is off everything is stored, as it comes; once it is on, what the log holds is known."""
    with log.writer(producer="p") as w:
        w.append(b"0", sequence=0)
        log.configure(LogSettings(producers=ProducerPolicy(enabled=False)))
        for sequence in (1, 1, 2):
            assert not w.append(b"x", sequence=sequence).duplicate
        log.configure(LogSettings())
        assert w.append(b"x", sequence=2).duplicate
        assert w.append(b"x", sequence=1).duplicate
        assert not w.append(b"x", sequence=3).duplicate
    log.configure(LogSettings(producers=ProducerPolicy(enabled=False)))
    with log.writer(producer="p") as w:
        w.append_arrow(pa.table({"value": pa.array([b"a", b"b"], pa.binary()), "sequence": [3, 4]}))
    log.configure(LogSettings())
    with log.writer(producer="p") as w:
        assert w.last_sequence == 4
        assert w.append(b"x", sequence=4).duplicate
    assert sequences(log) == [0, 1, 1, 2, 3, 3, 4]


def test_namespace_and_log_policy_override_in_order() -> None:
    """A log's own word comes before its namespace's, and that before the database's; each part by itself."""
    storage = MemoryStorage()
    db = Database(storage)
    log = db.log("shop/orders", create=True)
    plain = db.log("orders", create=True)
    with log.writer(producer="p") as w, plain.writer(producer="p") as other:

        def checked(writer: Any = w) -> bool:
            return bool(writer.append(b"x", sequence=0).duplicate)

        assert not checked()
        assert not checked(other)
        assert checked()
        db.set_producer_policy(ProducerPolicy(enabled=False, max_producers=7))
        assert not checked()
        assert not checked(other)
        db.set_producer_policy(ProducerPolicy(enabled=True), namespace="shop")
        assert checked()
        assert not checked(other)
        log.configure(LogSettings(producers=ProducerPolicy(enabled=False)))
        assert not checked()
        assert log.producer_policy() == ProducerPolicy(enabled=False, inactive_s=7 * 86_400, max_producers=7)
    again = Database(storage)
    assert again.producer_policy() == ProducerPolicy(enabled=False, max_producers=7)
    assert again.producer_policy("shop") == ProducerPolicy(enabled=True)
    assert again.producer_policy("other") == ProducerPolicy()
    assert again.logs() == ["orders", "shop/orders"]


def test_a_writer_elsewhere_follows_a_policy_with_its_next_snapshot() -> None:
    """A policy that another process has set needs no restart."""
    clock = SimulatedClock()
    storage = MemoryStorage(clock=clock)
    log = Database(storage, clock).log("orders", create=True)
    with log.writer(producer="p") as w:
        w.append(b"x", sequence=0)
        Database(storage, clock).set_producer_policy(ProducerPolicy(enabled=False))
        assert w.append(b"x", sequence=0).duplicate
        clock.advance(60)
        w.append(b"x", sequence=1)
        until(lambda: w.counts().snapshots)
        assert not w.append(b"x", sequence=0).duplicate


def test_a_snapshot_with_more_producers_than_the_cap_loses_none_of_the_active() -> None:
    """A cap that is lowered takes those who were silent for longest."""
    clock = SimulatedClock()
    db = Database(MemoryStorage(clock=clock), clock)
    log = db.log("orders", create=True)
    with log.writer() as w:
        for number in range(20):
            clock.advance(1)
            w.append(b"x", producer=f"p{number:02d}", sequence=number)
        clock.advance(1)
        w.append(b"x", producer="p00", sequence=100)
        w.snapshot()
    log.configure(LogSettings(producers=ProducerPolicy(max_producers=3)))
    with log.writer() as w:
        assert {name: mark.last_sequence for name, mark in w.producers().items()} == {"p18": 18, "p19": 19, "p00": 100}


# Names, counting, sessions.


def test_a_name_that_is_not_given_is_assigned_and_unique(log: Log) -> None:
    """The application learns it, and may come back under it."""
    with log.writer() as w:
        first, second = w.as_producer(), w.as_producer()
        assert len({first.producer, second.producer, w.producer}) == 3
        assert w.append(b"x", sequence=0).position == 0
        assert (w.last_sequence, first.last_sequence) == (0, None)
        name = w.producer
        assert first.append(b"y").position == 1
    with log.writer(producer=name) as w:
        assert (w.producer, w.last_sequence) == (name, 0)


def test_sequences_are_counted_from_the_initial_one_and_continue(log: Log) -> None:
    """Without a first one they begin with 0, and always go on behind the last."""
    with log.writer(producer="p", initial_sequence=100) as w:
        w.append(b"x")
        [future.result(LONG_S) for future in [w.submit(b"x") for _ in range(40)]]
        w.append_many([Record(b"x"), Record(b"x")])
        w.append_batch([Record(b"x"), Record(b"x")])
        w.append_arrow(pa.table({"value": pa.array([b"x"] * 3, pa.binary())}))
    with log.writer(producer="p") as w:
        w.append(b"x")
    assert sequences(log) == list(range(100, 100 + 1 + 40 + 2 + 2 + 3 + 1))


@pytest.mark.parametrize("how", ["append_many", "append_batch", "append_arrow"])
def test_counting_ends_at_the_highest_sequence_there_is(log: Log, how: str) -> None:
    """Records that have no sequence left are refused, and nothing is stored under a wrong one."""
    with log.writer() as w:
        p = w.as_producer("p", initial_sequence=(1 << 63) - 3)
        records = [Record(b"x")] * 4
        with pytest.raises((InvalidArgument, AppendErrors)):
            p.append_arrow(pa.table({"value": [b"x"] * 4})) if how == "append_arrow" else getattr(p, how)(records)
        assert [p.append(b"x").position for _ in range(3)] == [0, 1, 2]
        with pytest.raises(InvalidArgument, match="highest sequence"):
            p.append(b"x")
    assert sequences(log) == [(1 << 63) - 3, (1 << 63) - 2, (1 << 63) - 1]


@pytest.mark.parametrize("how", ["append_many", "append_batch", "append_arrow"])
def test_the_highest_sequence_there_is_can_be_counted(log: Log, how: str) -> None:
    """It is stored as what it is, though the number behind it does not fit 64 bits."""
    with log.writer(producer="p", initial_sequence=(1 << 63) - 2) as w:
        for _ in range(2):
            w.append_arrow(pa.table({"value": [b"x"]})) if how == "append_arrow" else getattr(w, how)([Record(b"x")])
    assert sequences(log) == [(1 << 63) - 2, (1 << 63) - 1]


@pytest.mark.parametrize("name", ["", "x" * 1025, 5])
def test_a_name_that_cannot_be_one_is_refused_and_the_log_is_let_go(log: Log, name: Any) -> None:
    """Nobody shares a producer by not having a name; the writer that was opened for it is closed."""
    with pytest.raises(InvalidArgument):
        log.writer(producer=name)
    with log.writer(wait_s=0) as w, pytest.raises(InvalidArgument):
        w.as_producer(name)


def test_an_initial_sequence_that_is_known_replays(log: Log) -> None:
    """An application that restarts from an earlier message gets duplicates until it comes to what is new."""
    with log.writer(producer="p") as w:
        w.append_many([Record(b"%d" % number) for number in range(3)])
    with log.writer(producer="p", initial_sequence=1) as w:
        assert [w.append(b"x").duplicate for _ in range(3)] == [True, True, False]
    assert sequences(log) == [0, 1, 2, 3]


def test_every_record_must_carry_a_sequence_if_one_does(log: Log) -> None:
    """A record that forgot its sequence is refused: whatever it got, another might claim."""
    with log.writer(producer="p") as w:
        w.append(b"x", sequence=4)
        with pytest.raises(InvalidArgument, match="every record must carry one"):
            w.append(b"x")
        with pytest.raises(AppendErrors) as errors:
            w.append_many([Record(b"y", sequence=5), Record(b"y")])
        assert all(isinstance(result, InvalidArgument) for result in errors.value.results)
    assert sequences(log) == [4]


def test_a_hundred_threads_count_one_after_the_other(log: Log) -> None:
    """Counting and order are one: no thread's sequence is overtaken by another's."""
    with log.writer() as w:
        producer = w.as_producer("p")
        barrier = threading.Barrier(20)

        def work() -> None:
            barrier.wait(LONG_S)
            for _ in range(5):
                producer.append(b"x")

        with ThreadPoolExecutor(20) as pool:
            for done in [pool.submit(work) for _ in range(20)]:
                done.result(LONG_S)
    assert sequences(log) == list(range(100))


def test_many_producers_share_one_writer_in_columns(log: Log) -> None:
    """Rows of several producers, and of none, in one table: each by its own sequences."""
    table = pa.table(
        {
            "value": pa.array([b"%d" % row for row in range(6)], pa.binary()),
            "producer": ["a", "b", None, "a", "a", "b"],
            "sequence": pa.array([1, 1, None, 2, 2, 0], pa.int64()),
        }
    )
    with log.writer() as w:
        with pytest.raises(AppendErrors) as errors:
            w.append_arrow(table)
        results = errors.value.results
        assert [getattr(result, "position", "refused") for result in results] == [0, 1, 2, 3, 3, "refused"]
        acks = w.append_arrow(table.slice(0, 5))
        assert acks.positions.tolist() == [0, 1, 4, 3, 3]
        assert acks.duplicates.tolist() == [True, True, False, True, True]
    with log.writer() as w:
        acks = w.append_arrow(table.slice(0, 4))
        assert acks.positions.tolist() == [-1, 1, 5, 3]
        assert acks.duplicates.tolist() == [True, True, False, True]


def test_a_batch_of_sequences_is_all_or_nothing(log: Log) -> None:
    """All new: written. All known: their acks. Anything else: refused whole."""
    batch = [Record(b"a", sequence=1), Record(b"b", sequence=4)]
    with log.writer(producer="p") as w:
        acks = w.append_batch(batch)
        assert [(ack.position, ack.duplicate) for ack in w.append_batch(batch)] == [(0, True), (1, True)]
        assert [ack.position for ack in acks] == [0, 1]
        with pytest.raises(PartialOverlap):
            w.append_batch([batch[1], Record(b"c", sequence=5)])
        for wrong in ([3, 5], [5, 5], [6, 5]):
            with pytest.raises(InvalidArgument):
                w.append_batch([Record(b"c", sequence=sequence) for sequence in wrong])
        with pytest.raises(InvalidArgument, match="all must, or none"):
            w.as_producer("q")._writer._sequences.judge_batch(
                pa.record_batch({"value": [b"a", b"b"], "producer": ["q", None]}), 0
            )
    assert sequences(log) == [1, 4]


def test_a_retry_of_a_large_table_is_all_duplicates(log: Log) -> None:
    """In columns and across pieces, with the places of all that this session pushed."""
    count = 25_000
    table = pa.table({"value": pa.array([b"x"] * count, pa.binary()), "sequence": np.arange(count) * 3})
    with log.writer(producer="p") as w:
        first = w.append_arrow(table)
        again = w.append_arrow(table.slice(count - 100))
        assert again.duplicates.all()
        assert again.positions.tolist() == first.positions[-100:].tolist()
    with log.writer(producer="p") as w:
        assert w.append_arrow(table).duplicates.all()


def test_a_closed_producer_leaves_its_writer(log: Log) -> None:
    """Its handle is closed, its writer and its neighbours are not; under its name another session begins."""
    with log.writer() as w:
        with w.as_producer("p") as producer:
            producer.append(b"x", sequence=7)
        with pytest.raises(Closed):
            producer.append(b"x", sequence=8)
        again = w.as_producer("p")
        assert again.append(b"late", sequence=6) == Ack(None, None, None, None, duplicate=True)
        assert again.append(b"y", sequence=8).position == 1
        with pytest.raises(InvalidArgument, match="cannot be appended by"):
            again.append_many([Record(b"z", producer="other", sequence=1)])


def test_sequences_on_a_log_that_keeps_no_ids() -> None:
    """Producers do not need a window; what they got to is stored all the same, and no empty window is believed."""
    clock = SimulatedClock()
    log = Database(MemoryStorage(clock=clock), clock).log("orders", LogSettings(idempotence="off"), create=True)
    with log.writer(producer="p") as w:
        w.append(b"x", sequence=1)
        w.snapshot()
        assert w.counts().snapshots == 1
        w.append(b"x", sequence=2)
    with log.writer(producer="p") as w:
        assert w.append(b"x", sequence=2).duplicate
    log.configure(LogSettings())
    with log.writer() as w:
        w.append(b"x", id="a")
        w.snapshot()
    log.configure(LogSettings(idempotence="off"))
    with log.writer() as w:
        w.append(b"x", producer="p", sequence=3)
        w.snapshot()
    log.configure(LogSettings())
    with log.writer() as w:
        assert w.append(b"x", id="a").duplicate
        assert w.append(b"x", producer="p", sequence=3).duplicate


def test_content_ids_are_not_given_to_what_has_a_sequence() -> None:
    """Two messages that say the same are two, if their producer says so."""
    log = Database(MemoryStorage()).log("orders", LogSettings(idempotence="content"), create=True)
    with log.writer() as w:
        producer = w.as_producer("p")
        assert [producer.append(b"same").position for _ in range(2)] == [0, 1]
        acks = producer.append_arrow(pa.table({"value": pa.array([b"same"] * 2, pa.binary())}))
        assert not acks.duplicates.any()
        assert w.append(b"same").position == 4
        assert w.append(b"same").duplicate
    assert [entry.id is None for entry in log.read()] == [True] * 4 + [False]


def test_staged_files_carry_no_sequences(log: Log) -> None:
    """Only the writer can hold sequences against each other."""
    table = pa.table({"value": pa.array([b"x"], pa.binary()), "producer": ["p"], "sequence": [1]})
    with pytest.raises(InvalidArgument, match="use ids"):
        log.stage([table])


def test_small_segments_are_folded_too() -> None:
    """What a producer stored many segments ago is still known, without a snapshot."""
    log = Database(MemoryStorage()).log("orders", LogSettings(segment_bytes=64 * KIB, seal="off"), create=True)
    with log.writer() as w:
        w.append(b"x", producer="early", sequence=5)
        for number in range(6):
            w.append(bytes(40 * KIB), id=str(number))
    assert log.info().segments >= 3
    assert log.producers()["early"].last_position == 0
    with log.writer() as w:
        assert w.append(b"x", producer="early", sequence=5).position == 0


@pytest.mark.parametrize("idempotence", ["explicit", "off"])
def test_a_truncation_past_the_newest_snapshot_loses_no_producer(idempotence: str) -> None:
    """What a snapshot is too old to know, and the log no longer has, is in the base: a retry is still a duplicate."""
    storage = MemoryStorage()
    with Database(storage) as db:
        log = db.log("orders", LogSettings(idempotence=idempotence), create=True)  # type: ignore[arg-type]
        with log.writer() as w:
            w.append(b"early", producer="p", sequence=0)
            w.snapshot()
            w.append(b"later", producer="q", sequence=7)
            w.append(b"later", producer="p", sequence=9)
        with log.writer() as w:
            w.append(b"last")
            assert log.truncate(before=3).first_position == 3
    with Database(storage) as db, db.log("orders").writer() as w:
        assert (w.last_sequence_of("p"), w.last_sequence_of("q")) == (9, 7)
        assert w.append(b"later", producer="q", sequence=7).duplicate


def test_the_old_holder_does_not_say_how_far_a_producer_is(log: Log, storage: WatchedStorage) -> None:
    """After a forced takeover it does not know: it gave the sequence of its own time until its next write."""
    old = log.writer(producer="p")
    old.append(b"0", sequence=0)
    with Database(storage).log("orders").writer(takeover="force", producer="p") as new:
        new.append(b"1", sequence=1)
        with pytest.raises(WriterFenced):
            _ = old.last_sequence
        with pytest.raises(WriterFenced):
            old.producers()
        assert new.last_sequence == 1
    old.close()
