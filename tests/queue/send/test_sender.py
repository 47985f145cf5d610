"""The gate of producers: PENDING, COMMITTED, FAILED, across attempts, processes and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from oncelog import (
    AppendErrors,
    IdConflict,
    InvalidArgument,
    LogSettings,
    Message,
    Queue,
    QueueSettings,
    Unavailable,
    Window,
    WriterFenced,
)
from oncelog.connect import Database
from oncelog.limits import VALUE_BYTES_MAX
from oncelog.log import inner
from oncelog.queue.rules.message import identity
from oncelog.queue.send import sender
from oncelog.queue.send.sender import SendStatus
from tests.log.watched import LONG_S, WatchedStorage
from tests.queue.conftest import World

LOG = "queue/emails/0"
SHORT = QueueSettings(log=LogSettings(window=Window(duration_s=10)))


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest) -> str | None:
    """Return where the gate's state is."""
    return request.getfixturevalue("postgres_state") if request.param == "postgresql" else None


@pytest.fixture
def storage() -> WatchedStorage:
    """Return a storage that a test can stop."""
    return WatchedStorage()


@pytest.fixture
def queue(storage: WatchedStorage, state: str | None) -> Iterator[Queue]:
    """Return a queue whose writes a test can stop."""
    with Database(storage) as db:
        yield db.queue("emails", create=True, state=state)
        storage.otherwise = "stored"
        storage.let_go()


def status(queue: Queue, id: str) -> SendStatus:
    """Return what the gate knows."""
    found = queue.status(id)
    assert found is not None
    return found


def test_pending_is_joined_when_asked(queue: Queue, storage: WatchedStorage) -> None:
    """An attempt that meets another on its way waits for its outcome, and there is one message."""
    queue.send(b"first")
    storage.hold()
    offers = len(storage.offers)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(queue.send, b"a", id="x")
        storage.wait_for_offers(offers + 1)
        assert status(queue, "x").status == "PENDING"
        second = pool.submit(queue.send, b"a", id="x", on_pending="join")
        storage.let_go()
        answers = [first.result(LONG_S), second.result(LONG_S)]
    assert {answer.position for answer in answers} == {1}
    assert sorted(answer.duplicate for answer in answers) == [False, True]
    assert status(queue, "x").status == "COMMITTED"


def test_pending_is_refused_when_asked(queue: Queue, storage: WatchedStorage) -> None:
    """Who does not want to wait is told at once, that nothing was written, and the first attempt goes on."""
    storage.hold()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(queue.send, b"a", id="x")
        storage.wait_for_offers(1)
        with pytest.raises(Unavailable, match="PENDING") as refused:
            queue.send(b"a", id="x", on_pending="refuse")
        assert refused.value.outcome == "not written"
        assert status(queue, "x").status == "PENDING"
        storage.let_go()
        first.result(LONG_S)
    assert queue.send(b"a", id="x", on_pending="refuse").duplicate


def test_only_what_is_pending_is_refused(queue: Queue, storage: WatchedStorage) -> None:
    """Each message is decided on its own: one that is on its way does not keep the others out of the queue."""
    storage.hold()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(queue.send, b"a", id="x")
        storage.wait_for_offers(1)
        messages = [Message(b"b", id="y"), Message(b"a", id="x"), Message(b"c", id="z")]
        with pytest.raises(AppendErrors) as errors:
            queue.send_many(messages, on_pending="refuse", timeout_s=0)
        storage.let_go()
        first.result(LONG_S)
    assert [getattr(result, "outcome", None) for result in errors.value.results] == [
        "unknown",
        "not written",
        "unknown",
    ]
    assert "id 'x' is PENDING" in str(errors.value.results[1])
    assert [queue.send(one.value, id=one.id).duplicate for one in messages] == [True, True, True]


def test_pending_in_another_process_is_refused_when_asked(
    queue: Queue, storage: WatchedStorage, state: str | None
) -> None:
    """Also an attempt of somebody else who writes now is seen."""
    storage.hold()
    with Database(storage) as db, ThreadPoolExecutor(1) as pool:
        other = db.queue("emails", state=state)
        first = pool.submit(queue.send, b"a", id="x")
        storage.wait_for_offers(1)
        with pytest.raises(Unavailable, match="PENDING"):
            other.send(b"a", id="x", on_pending="refuse")
        storage.let_go()
        first.result(LONG_S)
        assert other.send(b"a", id="x", on_pending="refuse").duplicate


def test_conflict_is_checked_before_in_progress(queue: Queue, storage: WatchedStorage) -> None:
    """Other content under an id that is on its way is a conflict, and not taken for a repeat."""
    storage.hold()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(queue.send, b"a", id="x")
        storage.wait_for_offers(1)
        second = pool.submit(queue.send, b"b", id="x")
        storage.let_go()
        assert first.result(LONG_S).position == 0
        with pytest.raises(IdConflict):
            second.result(LONG_S)


def test_failed_can_begin_again_with_its_last_error_kept(queue: Queue, storage: WatchedStorage) -> None:
    """An attempt that surely wrote nothing is FAILED; the next one begins again, and the error stays to be seen."""
    with Database(storage) as db, db.log(LOG).writer():
        with pytest.raises(Unavailable) as failed:
            queue.send(b"a", id="x", timeout_s=0)
        assert failed.value.outcome == "not written"
    assert (status(queue, "x").status, status(queue, "x").last_error) == ("FAILED", str(failed.value))
    assert not queue.send(b"a", id="x").duplicate
    assert (status(queue, "x").status, status(queue, "x").last_error) == ("COMMITTED", str(failed.value))


def test_an_unknown_outcome_stays_pending(queue: Queue, storage: WatchedStorage) -> None:
    """Neither a success nor a failure: the same attempt again settles it, and there is one message."""
    queue.send(b"first")
    storage.otherwise = "refused"
    with pytest.raises(Unavailable) as unknown:
        queue.send(b"a", id="x", timeout_s=0.05)
    assert unknown.value.outcome == "unknown"
    assert status(queue, "x").status == "PENDING"
    storage.otherwise = "stored"
    queue.send(b"a", id="x")
    assert status(queue, "x").status == "COMMITTED"
    assert queue.stats().ends == [2]


def test_a_refusal_tells_nothing_of_an_attempt_whose_outcome_is_unknown(
    queue: Queue, storage: WatchedStorage, state: str | None
) -> None:
    """It stays PENDING, with the error to be seen: FAILED would say that it is not in the queue, and it may be."""
    queue.send(b"first")
    storage.otherwise = "refused"
    with pytest.raises(Unavailable):
        queue.send(b"a", id="x", timeout_s=0.05)
    with Database(storage) as db:
        other = db.queue("emails", state=state)
        with pytest.raises(Unavailable) as refused:
            other.send(b"a", id="x", timeout_s=0)
        assert refused.value.outcome == "not written"
        assert (status(other, "x").status, status(other, "x").last_error) == ("PENDING", str(refused.value))
        storage.otherwise = "stored"
        queue.send(b"a", id="x")
        assert status(other, "x").status == "COMMITTED"
    assert queue.stats().ends == [2]


def test_an_unknown_id_has_no_status(queue: Queue) -> None:
    """What was never sent is not known."""
    assert queue.status("x") is None


def test_status_survives_a_restart(world: World) -> None:
    """The gate's answers are not only in memory."""
    queue = world.open().queue("emails", create=True, state=world.state)
    queue.send(b"a", id="x")
    queue.close()
    found = world.open().queue("emails", state=world.state).status("x")
    assert found is not None
    assert found.status == "COMMITTED"


def test_old_answers_are_forgotten(world: World) -> None:
    """The gate does not grow for ever: what ended long ago goes; the log's window decides then."""
    queue = world.open().queue("emails", create=True, state=world.state)
    queue.send(b"a", id="x")
    queue.close()
    world.clock.advance(3601)
    queue = world.open().queue("emails", state=world.state)
    queue.send(b"b", id="y")
    assert queue.status("x") is None
    assert queue.status("y") is not None


def test_some_of_many_are_refused(queue: Queue) -> None:
    """Each gets its own answer, and what is good is stored."""
    queue.send(b"a", id="x")
    with pytest.raises(AppendErrors) as caught:
        queue.send_many([Message(b"other", id="x"), Message(b"b", id="y")])
    conflict, sent = caught.value.results
    assert isinstance(conflict, IdConflict)
    assert sent.position == 1


def test_of_messages_that_are_only_values_no_record_is_made(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored as a column: their answers are those of messages that were sent one by one."""
    monkeypatch.setattr(sender, "Record", None)
    sent = queue.send_many([Message(b"%d" % number) for number in range(5)])
    assert [(one.partition, one.position, one.duplicate) for one in sent] == [(0, number, False) for number in range(5)]
    with queue.consume("g", prefetch=5) as consumer:
        found = consumer.receive()
    assert [(one.value, one.position, one.sent_at) for one in found] == [
        (b"%d" % number, one.position, one.timestamp) for number, one in enumerate(sent)
    ]


def test_a_value_that_is_too_large_is_refused_alone(queue: Queue) -> None:
    """It spoils nothing for the values beside it."""
    with pytest.raises(AppendErrors) as caught:
        queue.send_many([Message(b"a"), Message(bytes(VALUE_BYTES_MAX + 1)), Message(b"c")])
    first, refused, last = caught.value.results
    assert isinstance(refused, InvalidArgument)
    assert (first.position, last.position) == (0, 1)


def test_values_of_several_blocks_are_answered_as_those_of_one(storage: WatchedStorage) -> None:
    """A batch that is too large for one block has acks of each block."""
    with Database(storage) as db:
        queue = db.queue("emails", QueueSettings(log=LogSettings(block_records=2)), create=True)
        sent = queue.send_many([Message(b"%d" % number) for number in range(5)])
        assert [one.position for one in sent] == [0, 1, 2, 3, 4]
        assert not any(one.duplicate for one in sent)
        with queue.consume("g", prefetch=5) as consumer:
            assert [one.sent_at for one in consumer.receive()] == [one.timestamp for one in sent]


def test_values_whose_log_another_has_taken_are_not_sent_twice(
    queue: Queue, storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ids an outcome that is not known is said, and not tried again."""
    calls = []

    def fenced(*_: object) -> object:
        calls.append(1)
        text = "another writer took the log"
        raise WriterFenced(text, outcome="unknown")

    monkeypatch.setattr(inner, "append_payload", fenced)
    with pytest.raises(AppendErrors) as caught:
        queue.send_many([Message(b"a"), Message(b"b")])
    assert [one.outcome for one in caught.value.results] == ["unknown"] * 2
    assert calls == [1]


@pytest.mark.parametrize(
    "message",
    [
        Message(b"a", id=3),  # type: ignore[arg-type]
        Message(b"a", key="\ud800"),
        Message(b"a", delay_s=-1),
        Message(b"a", deadline_s=float("nan")),
        Message(b"a", delay_s=1e12),
        Message(b"a", headers={"oncelog-envelope": b""}),
        Message("text"),  # type: ignore[arg-type]
        "message",
    ],
    ids=["id", "surrogate", "negative", "nan", "too long", "reserved", "text", "no message"],
)
def test_what_cannot_be_sent_is_refused_and_nothing_is_written(message: Message) -> None:
    """A bad message spoils the call before any of it is stored."""
    import oncelog

    with oncelog.connect("memory://") as db:
        queue = db.queue("emails", create=True)
        with pytest.raises((InvalidArgument, AppendErrors)):
            queue.send_many([message])
        assert queue.stats().ends == [0]
        for count in (1, 2):
            with pytest.raises(InvalidArgument):
                queue.send_many([Message(b"a")] * count, on_pending="wait")  # type: ignore[arg-type]


def test_what_is_committed_stays_so_whatever_becomes_of_a_duplicate(world: World) -> None:
    """Somebody who sends it again and is refused, or killed, does not make it look as if it were not in the queue."""
    queue = world.open().queue("work", create=True, state=world.state)
    other = world.open().queue("work", state=world.state)
    queue.send(b"a", id="a")
    before = queue.status("a")
    assert before is not None
    assert (before.status, before.position) == ("COMMITTED", 0)
    assert other.send(b"a", id="a", timeout_s=0).duplicate  # the gate knows it: the writer is not needed
    with pytest.raises(IdConflict):
        other.send(b"b", id="a", timeout_s=0)
    assert queue.status("a") == before
    other._sending._begin(0, [identity("", "", "a")])
    assert queue.status("a") == before


def test_each_partition_answers_for_its_own(storage: WatchedStorage) -> None:
    """What one partition refuses does not hide what is in another already."""
    with Database(storage) as db:
        queue = db.queue("orders", partitions=4, create=True)
        there = Message(b"a", key="a")
        refused = next(
            message
            for message in (Message(b"b", id=str(number)) for number in range(100))
            if queue._sending.partition_of(message) != queue._sending.partition_of(there)
        )
        queue._sending._pending[identity("", "", refused.id)] += 1  # as while another thread sends it
        with pytest.raises(AppendErrors) as caught:
            queue.send_many([there, refused], on_pending="refuse")
        first, second = caught.value.results
        assert (first.position, type(second)) == (0, Unavailable)
        assert sum(queue.stats().ends) == 1


def test_what_is_committed_is_not_sent_again_when_the_log_has_forgotten_it(world: World) -> None:
    """The gate remembers longer than a bounded window: ``status`` said COMMITTED and the send enqueued again."""
    queue = world.open().queue("emails", SHORT, create=True, state=world.state)
    first = queue.send(b"a", id="x", key="k")
    world.clock.advance(20)
    queue.send(b"b", id="y")
    world.clock.advance(20)
    assert status_of(queue, "x", "k") == "COMMITTED"
    again = queue.send(b"a", id="x", key="k")
    assert (again.position, again.duplicate, again.timestamp) == (first.position, True, first.timestamp)
    with pytest.raises(IdConflict, match="id 'x' of key 'k' is taken by other content, stored at position 0"):
        queue.send(b"other", id="x", key="k")
    answers = queue.send_many([Message(b"a", id="x", key="k"), Message(b"new", id="z"), Message(b"b", id="y")])
    assert [(answer.position, answer.duplicate) for answer in answers] == [(0, True), (2, False), (1, True)]
    assert queue.stats().ends == [3]


def test_what_is_committed_and_trimmed_is_not_sent_again(world: World) -> None:
    """A message that was delivered and removed is still COMMITTED: its retry is not a second message."""
    settings = msgspec.structs.replace(SHORT, log=LogSettings(window=Window(duration_s=10), segment_bytes=64 * 1024))
    queue = world.open().queue("emails", settings, create=True, state=world.state)
    queue.send(b"a", id="x")
    for number in range(5):
        world.clock.advance(20)
        queue.send(b"z" * 70_000, id=f"filler {number}")
    with queue.consume(prefetch=10) as consumer:
        consumer.ack(consumer.receive(10))
    assert queue.trim()[0] > 0
    again = queue.send(b"a", id="x")
    assert (again.position, again.duplicate) == (0, True)


def test_what_a_log_that_was_put_back_lacks_is_sent_again(world: World) -> None:
    """The gate is believed as far as the log goes: a log restored from an older copy has lost the message."""
    queue = world.open().queue("emails", create=True, state=world.state)
    queue.send(b"a", id="x")
    with queue._sending._database.writing(durable=False) as transaction:
        transaction.all("UPDATE oncelog_gate SET position = 7")
    assert queue.send(b"a", id="x").position == 0
    assert queue.send(b"c", id="z").position == 1
    with queue._sending._database.writing(durable=False) as transaction:
        transaction.all(
            "INSERT INTO oncelog_gate SELECT queue, '0:0:n', status, last_error, part, 99, session, at_us, "
            "unanswered FROM oncelog_gate WHERE identity = '0:0:z'"
        )
    assert queue.send(b"n", id="n").position == 2


def status_of(queue: Queue, id: str, key: str) -> str:
    """Return what the gate calls an id."""
    found = queue.status(id, key=key)
    assert found is not None
    return found.status
