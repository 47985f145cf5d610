"""What every work queue must do, wherever its logs live: one suite that each kind of database runs.

Derive a class from ``QueueContract`` in a test file and give it a fixture ``database`` that yields an empty one, and
``state`` if the queue's state has to be somewhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.connect import Database
from oncelog.errors import IdConflict, InvalidArgument, LeaseLost, NotFound
from oncelog.queue.queue import Queue
from oncelog.queue.rules.message import Message
from oncelog.queue.rules.retry import RetryPolicy
from oncelog.queue.rules.settings import QueueSettings

LONG_S = 60.0
"""Longer than anything here takes: what waits so long has failed."""

SETTINGS = QueueSettings(retry=RetryPolicy(max_attempts=2, backoff_s=0.0, jitter=0.0))


class QueueContract:
    """The public surface of a work queue, as programs are written against it."""

    @pytest.fixture
    def database(self) -> Iterator[Database]:
        """Yield a new, empty database: override this."""
        raise NotImplementedError

    @pytest.fixture
    def state(self) -> str | None:
        """Return where the queue's state is: beside its logs, or override this."""
        return None

    @pytest.fixture
    def queue(self, database: Database, state: str | None) -> Queue:
        """Return a new queue."""
        return database.queue("emails", SETTINGS, create=True, state=state)

    def test_a_message_comes_as_it_was_sent(self, queue: Queue) -> None:
        """Every field that a producer gave is there, and what the queue adds."""
        sent = queue.send(b"welcome", id="user-7", key="k", tenant="t", headers={"trace": b"\x01"})
        with queue.consume("mailer") as deliveries:
            (one,) = deliveries.receive(timeout_s=LONG_S)
            assert (one.value, one.id, one.key, one.tenant) == (b"welcome", "user-7", "k", "t")
            assert (one.headers, one.attempts, one.last_error) == ({"trace": b"\x01"}, 1, None)
            assert (one.topic, one.group, one.position) == ("emails", "mailer", sent.position)
            assert one.sent_at == sent.timestamp
            assert one.inbox_key
            one.ack()
            assert deliveries.receive() == []

    def test_a_send_with_an_id_is_in_the_queue_once(self, queue: Queue) -> None:
        """A repeat is an answer; other content is a conflict; what became of it can be asked."""
        first = queue.send(b"a", id="1")
        again = queue.send(b"a", id="1")
        assert (again.position, again.duplicate) == (first.position, True)
        with pytest.raises(IdConflict):
            queue.send(b"b", id="1")
        status = queue.status("1")
        assert status is not None
        assert (status.status, status.position) == ("COMMITTED", first.position)
        assert queue.status("2") is None

    def test_many_are_sent_and_acknowledged_together(self, queue: Queue) -> None:
        """One call for many, in and out; the order is that of sending."""
        sent = queue.send_many([Message(b"%d" % number, id=str(number)) for number in range(10)])
        assert [one.position for one in sent] == list(range(10))
        with queue.consume(prefetch=10) as deliveries:
            found = deliveries.receive(timeout_s=LONG_S)
            assert [one.value for one in found] == [b"%d" % number for number in range(10)]
            deliveries.ack(found)
            with pytest.raises(LeaseLost):
                deliveries.ack(found[:1])
        assert queue.lag() == 0

    def test_groups_are_apart(self, queue: Queue) -> None:
        """Each group gets every message; one that begins at the end gets what comes then."""
        queue.send(b"before")
        with queue.consume("a") as a, queue.consume("b") as b, queue.consume("late", start="latest") as late:
            queue.send(b"after")
            for consumer, count in ((a, 2), (b, 2), (late, 1)):
                found = [delivery for _, delivery in zip(range(count), consumer, strict=False)]
                assert [one.value for one in found] == [b"before", b"after"][-count:]
                consumer.ack(found)
        assert queue.groups() == ["a", "b", "late"]
        with pytest.raises(NotFound):
            queue.lag("nobody")

    def test_a_refused_message_comes_again_and_then_dies(self, queue: Queue) -> None:
        """The next worker gets the reason. Out of attempts, a message is a dead letter, and can be sent back."""
        queue.send(b"poison", id="1")
        with queue.consume() as deliveries:
            (first,) = deliveries.receive(timeout_s=LONG_S)
            first.nack("no")
            (second,) = deliveries.receive(timeout_s=LONG_S)
            assert (second.attempts, second.last_error) == (2, "no")
            assert second.token > first.token
            second.nack("still no")
            assert deliveries.receive() == []
            (letter,) = queue.dead_letters.list()
            assert (letter.value, letter.attempts, letter.last_error) == (b"poison", 2, "still no")
            assert queue.dead_letters.show(letter.position) == letter
            assert queue.dead_letters.redrive([letter.position]) == 1
            (back,) = deliveries.receive(timeout_s=LONG_S)
            assert (back.value, back.redriven, back.inbox_key) == (b"poison", 1, first.inbox_key)
            back.nack("never", retry=False)
            (letter,) = queue.dead_letters.list()
            assert queue.dead_letters.discard([letter.position]) == 1
        assert queue.dead_letters.list() == []

    def test_a_lease_can_be_extended_and_lost(self, queue: Queue) -> None:
        """A delivery that ran out of time goes to another, and its first worker learns that."""
        endless = RetryPolicy(max_attempts=None, backoff_s=0, max_backoff_s=0)
        queue.send(b"slow", retry=endless)  # on a busy machine a lease may run out before its delivery is handed out
        with queue.consume(ack_timeout_s=0.05) as hasty, queue.consume(ack_timeout_s=60) as patient:
            (first,) = hasty.receive(timeout_s=LONG_S)
            (second,) = patient.receive(timeout_s=LONG_S)
            assert (second.attempts, second.last_error) == (first.attempts + 1, "ack_timeout")
            with pytest.raises(LeaseLost):
                first.ack()
            second.extend(30)
            second.ack()

    def test_what_was_not_handed_out_goes_back(self, queue: Queue) -> None:
        """A consumer that claims ahead and closes leaves no trace of what nobody saw."""
        queue.send_many([Message(b"%d" % number) for number in range(5)])
        with queue.consume(prefetch=5) as deliveries:
            (one,) = deliveries.receive(1, timeout_s=LONG_S)
            one.ack()
        with queue.consume(prefetch=5) as deliveries:
            rest = deliveries.receive(timeout_s=LONG_S)
            assert [(one.value, one.attempts) for one in rest] == [(b"%d" % number, 1) for number in range(1, 5)]

    def test_an_operator_looks_and_pauses(self, queue: Queue) -> None:
        """Stats, peeking and pausing touch no message."""
        queue.send(b"a", id="1")
        with queue.consume("g") as deliveries:
            assert [(one.value, one.standing) for one in queue.peek("g")] == [(b"a", "new")]
            queue.pause("g")
            assert deliveries.receive() == []
            assert queue.stats().groups["g"].paused
            queue.resume("g")
            (one,) = deliveries.receive(timeout_s=LONG_S)
            assert queue.stats().groups["g"].leased == 1
            one.ack()
        assert queue.stats().groups["g"].acked == 1
        assert (queue.settings, queue.partitions) == (SETTINGS, 1)

    def test_bad_arguments_are_refused(self, queue: Queue) -> None:
        """What cannot be sent or consumed is refused, and nothing is."""
        with pytest.raises(InvalidArgument):
            queue.send(b"x", id="a\0b")
        with pytest.raises(InvalidArgument):
            queue.consume(prefetch=0)
        with pytest.raises(InvalidArgument):
            queue.consume(start="middle")  # type: ignore[arg-type]
        with queue.consume(ordered=True, group="o"), pytest.raises(InvalidArgument):
            queue.consume(ordered=False, group="o")
        assert queue.stats().ends == [0]

    def test_submitted_messages_and_settlements(self, queue: Queue) -> None:
        """Calls that do not wait have the answers of those that do."""
        pendings = [queue.submit(b"%d" % number, id=str(number)) for number in range(20)]
        assert [pending.result(LONG_S).position for pending in pendings] == list(range(20))
        assert queue.submit(b"0", id="0").result(LONG_S).duplicate
        with queue.consume(prefetch=20) as deliveries:
            found = deliveries.receive(timeout_s=LONG_S)
            assert [one.submit_ack().result(LONG_S) for one in found[:5]] == [None] * 5
            assert deliveries.submit_ack(found[5:]).result(LONG_S) is None
            with pytest.raises(LeaseLost):
                found[0].submit_ack().result(LONG_S)
        assert queue.lag() == 0
