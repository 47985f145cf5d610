"""What else a queue does: order, delays, deadlines, partitions, pausing, looking, trimming."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import oncelog
from oncelog import Closed, InvalidArgument, Message, NotFound, Queue, QueueSettings, RetryPolicy, limits
from oncelog.queue import inner
from oncelog.queue.deliver.consumer import Consumer
from oncelog.settings import LogSettings, Window
from tests.queue.conftest import World

NO_REST = RetryPolicy(backoff_s=0, max_backoff_s=0, jitter=0)


def made(world: World, *, partitions: int = 1, settings: QueueSettings | None = None) -> Queue:
    """Make a queue."""
    return world.open().queue(
        "emails", settings or QueueSettings(retry=NO_REST), partitions=partitions, create=True, state=world.state
    )


def values(consumer: Consumer) -> list[bytes]:
    """Receive once, and return what came."""
    return [delivery.value for delivery in consumer.receive()]


# Order.


def test_order_is_kept_per_key_when_asked(world: World) -> None:
    """The next message of a key comes when the one before is settled, and other keys do not wait for it."""
    queue = made(world)
    queue.send_many([Message(b"a1", key="a"), Message(b"a2", key="a"), Message(b"b1", key="b"), Message(b"-")])
    with queue.consume("g", prefetch=10, ordered=True) as consumer:
        first = consumer.receive()
        assert [delivery.value for delivery in first] == [b"a1", b"b1", b"-"]
        assert consumer.receive() == []
        first[0].nack("again")
        [again] = consumer.receive()
        assert (again.value, consumer.receive()) == (b"a1", [])
        again.ack()
        assert values(consumer) == [b"a2"]


def test_order_is_kept_across_death_and_timeouts(world: World) -> None:
    """A message whose lease is over, or that is dying, still stands before the next of its key."""
    queue = made(world, settings=QueueSettings(retry=RetryPolicy(max_attempts=2, backoff_s=0, max_backoff_s=0)))
    queue.send_many([Message(b"a1", key="a"), Message(b"a2", key="a")])
    consumer = queue.consume("g", ordered=True)
    for _ in range(2):
        assert values(consumer) == [b"a1"]
        assert consumer.receive() == []
        world.clock.advance(31)
    assert consumer.receive() == []  # it dies here
    assert values(consumer) == [b"a2"]
    assert [letter.value for letter in queue.dead_letters.list()] == [b"a1"]


def test_keys_of_two_tenants_do_not_wait_for_each_other(world: World) -> None:
    """A key is its tenant's."""
    queue = made(world)
    queue.send_many([Message(b"1", key="k", tenant="a"), Message(b"2", key="k", tenant="b")])
    assert values(queue.consume("g", prefetch=2, ordered=True)) == [b"1", b"2"]


def test_a_delayed_message_holds_its_key_back(world: World) -> None:
    """Order is order."""
    queue = made(world)
    queue.send_many([Message(b"1", key="k", delay_s=10), Message(b"2", key="k"), Message(b"3", key="other")])
    consumer = queue.consume("g", prefetch=3, ordered=True)
    assert values(consumer) == [b"3"]
    world.clock.advance(10)
    assert values(consumer) == [b"1"]


def test_a_group_is_ordered_from_its_beginning(world: World) -> None:
    """Two consumers that disagree about order would both be wrong."""
    queue = made(world)
    queue.consume("g", ordered=True)
    with pytest.raises(InvalidArgument, match="ordered"):
        queue.consume("g", ordered=False)
    assert world.open().queue("emails", state=world.state).consume("g").group == "g"


def test_one_key_with_many_messages_does_not_fill_the_state(world: World) -> None:
    """Of an ordered group, only so many messages wait for others of their keys; the rest stays in the log."""
    queue = made(world)
    queue.send_many([Message(b"%d" % number, key="hot") for number in range(2_500)])
    with queue.consume("g", prefetch=100, ordered=True) as consumer:
        for number in range(60):
            [delivery] = consumer.receive()
            assert delivery.value == b"%d" % number
            delivery.ack()
        assert queue.stats().groups["g"].waiting <= 2_300
        assert queue.stats().groups["g"].new > 0


def test_a_key_that_waits_does_not_hold_other_keys_back(world: World) -> None:
    """However many messages are parked behind one that is delayed, what is behind them all is delivered."""
    queue = made(world)
    queue.send(b"head", key="hot", delay_s=60)
    queue.send_many([Message(b"%d" % number, key="hot") for number in range(2_600)])
    queue.send(b"behind", key="other")
    with queue.consume("g", ordered=True) as consumer:
        [behind] = consumer.receive()
        assert behind.value == b"behind"
        behind.ack()
        assert queue.stats().groups["g"].waiting == 2_601
        world.clock.advance(60)
        for expected in (b"head", b"0", b"1"):
            [delivery] = consumer.receive()
            assert delivery.value == expected
            delivery.ack()


def test_delayed_messages_of_many_keys_do_not_hold_other_keys_back(world: World) -> None:
    """Those that wait for their own time only are not parked, and nobody waits for them."""
    queue = made(world)
    queue.send_many([Message(b"-", key=str(number), delay_s=60) for number in range(2_100)])
    queue.send_many([Message(b"behind", key="a"), Message(b"behind", key="b")])
    with queue.consume("g", ordered=True) as consumer:
        assert [values(consumer), values(consumer), values(consumer)] == [[b"behind"], [b"behind"], []]


# Delays and deadlines.


def test_a_delayed_message_comes_when_its_time_has_come(world: World) -> None:
    """Not before, and others do not wait for it; also in a process that starts meanwhile."""
    queue = made(world)
    queue.send_many([Message(b"late", delay_s=60), Message(b"now")])
    assert values(queue.consume("g", prefetch=2)) == [b"now"]
    world.clock.advance(59)
    other = world.open().queue("emails", state=world.state).consume("g", prefetch=2)
    assert b"late" not in values(other)
    world.clock.advance(1)
    assert values(other) == [b"late"]


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_what_cannot_be_delivered_yet_does_not_hide_what_is_behind_it(world: World, *, ordered: bool) -> None:
    """However many are delayed, or wait for others of their key, a consumer that asks once gets what there is."""
    queue = made(world)
    delay_s = 0.0 if ordered else 60.0
    queue.send_many([Message(b"%d" % number, key="hot", delay_s=delay_s) for number in range(1_000)])
    queue.send(b"behind", key="other")
    with queue.consume("g", ordered=ordered) as consumer:
        if ordered:
            assert values(consumer) == [b"0"]
        assert values(consumer) == [b"behind"]


def test_a_delay_counts_from_when_it_was_sent(world: World) -> None:
    """A group that looks later does not delay it again."""
    queue = made(world)
    queue.send(b"late", delay_s=60)
    world.clock.advance(60)
    assert values(queue.consume("g")) == [b"late"]


@pytest.mark.parametrize("looked_at", [False, True], ids=["fresh", "looked at before"])
def test_past_its_deadline_a_message_is_not_delivered(world: World, *, looked_at: bool) -> None:
    """It lies among the dead letters instead: nothing is lost."""
    queue = made(world)
    queue.send(b"offer", deadline_s=60)
    consumer = queue.consume("g")
    if looked_at:
        consumer.receive()[0].nack("busy")
    world.clock.advance(60)
    assert consumer.receive() == []
    consumer.receive()
    [letter] = queue.dead_letters.list()
    assert (letter.value, letter.last_error, letter.attempts) == (b"offer", "deadline_exceeded", int(looked_at))


def test_a_message_past_its_deadline_hides_no_other(world: World) -> None:
    """Who asks for one message gets the next that can be delivered, and is not told that there is none."""
    queue = made(world)
    queue.send_many([Message(b"offer", deadline_s=60), Message(b"offer", deadline_s=60), Message(b"letter")])
    with queue.consume("g", prefetch=3) as consumer:
        consumer.nack(consumer.receive(), "busy")
    world.clock.advance(60)
    assert values(queue.consume("g")) == [b"letter"]


def test_a_message_may_bring_its_own_retry_policy(world: World) -> None:
    """It uses that policy, and the others use the queue's."""
    queue = made(world)
    queue.send(b"once", retry=RetryPolicy(max_attempts=1))
    queue.send(b"often")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no")
        consumer.receive()[0].nack("no")
        assert values(consumer) == [b"often"]
    assert [letter.value for letter in queue.dead_letters.list()] == [b"once"]


# Partitions and groups.


def test_one_key_is_in_one_partition(world: World) -> None:
    """And the same id always meets the same window."""
    queue = made(world, partitions=4)
    sent = [queue.send(b"%d" % number, key=f"k{number % 8}", id=str(number)) for number in range(64)]
    assert len({answer.partition for answer in sent}) == 4
    assert all(answer.partition == sent[number % 8].partition for number, answer in enumerate(sent))
    again = [queue.send(b"%d" % number, key=f"k{number % 8}", id=str(number)) for number in range(64)]
    assert all(answer.duplicate for answer in again)
    with queue.consume("g", prefetch=10) as consumer:
        seen = []
        while found := consumer.receive():
            seen += [int(delivery.value) for delivery in found]
            consumer.ack(found)
    assert sorted(seen) == list(range(64))


def test_the_number_of_partitions_is_fixed(world: World) -> None:
    """Another number would send a key to another window."""
    made(world, partitions=2)
    with pytest.raises(InvalidArgument, match="2 partitions"):
        world.open().queue("emails", partitions=3, state=world.state)
    assert world.open().queue("emails", partitions=2, state=world.state).partitions == 2


def test_each_group_gets_every_message(world: World) -> None:
    """Groups know nothing of each other; one that comes later begins where it is told to."""
    queue = made(world)
    queue.send(b"1")
    assert values(queue.consume("a")) == [b"1"]
    assert values(queue.consume("b")) == [b"1"]
    late = queue.consume("late", start="latest")
    queue.send(b"2")
    assert values(late) == [b"2"]
    assert queue.groups() == ["a", "b", "late"]


# Operating.


def test_pause_and_resume(world: World) -> None:
    """A paused queue takes messages and delivers none; what was delivered can be acknowledged."""
    queue = made(world)
    queue.send_many([Message(b"1"), Message(b"2")])
    consumer, other = queue.consume("g"), queue.consume("other")
    [delivery] = consumer.receive()
    queue.pause()
    queue.send(b"3")
    delivery.ack()
    assert consumer.receive() == other.receive() == []
    queue.resume()
    queue.pause("g")
    assert consumer.receive() == []
    assert values(other) == [b"1"]
    queue.resume("g")
    assert values(consumer) == [b"2"]
    with pytest.raises(NotFound):
        queue.pause("nobody")


def test_peek_and_lag_show_what_is_unsettled(world: World) -> None:
    """Each message with how it stands, and nothing is delivered by looking."""
    queue = made(world, settings=QueueSettings(retry=RetryPolicy(backoff_s=10, jitter=0)))
    queue.send_many([Message(b"%d" % number, id=str(number), key="k", tenant="t") for number in range(4)])
    with queue.consume("g", prefetch=2) as consumer:
        held = consumer.receive()
        held[0].nack("why not")
        peeked = queue.peek("g")
        assert [(one.value, one.standing, one.attempts) for one in peeked] == [
            (b"0", "waiting", 1), (b"1", "leased", 1), (b"2", "new", 0), (b"3", "new", 0)
        ]  # fmt: skip
        world.clock.advance(4)
        assert [one.due_in_s for one in queue.peek("g", limit=2)] == [6, 26]
        assert (peeked[0].last_error, peeked[0].id, peeked[0].key, peeked[0].tenant) == ("why not", "0", "k", "t")
        assert queue.lag("g") == 4
        stats = queue.stats().groups["g"]
        assert (stats.new, stats.waiting, stats.leased, stats.watermarks) == (2, 1, 1, [0])
        held[1].ack()
        assert (queue.lag("g"), queue.stats().groups["g"].watermarks) == (3, [0])
        assert len(queue.peek("g", limit=1)) == 1
    with pytest.raises(NotFound):
        queue.peek("nobody")
    with pytest.raises(NotFound, match="there are 'g'"):
        queue.lag("nobody")


def test_trim_removes_what_every_group_has_settled(world: World) -> None:
    """And nothing that one of them may still need."""
    small = LogSettings(window=Window(max_keys=1), segment_bytes=64 * 1024, block_records=10)
    queue = made(world, settings=QueueSettings(retry=NO_REST, log=small))
    for _ in range(4):
        queue.send_many([Message(bytes(5_000)) for _ in range(50)])
    assert queue.trim() == [0]
    fast, slow = queue.consume("fast", prefetch=200), queue.consume("slow", prefetch=200)
    fast.ack(fast.receive())
    assert queue.trim() == [0]
    held = slow.receive()
    slow.ack(held[:150])
    [first] = queue.trim()
    assert 0 < first <= 150
    world.clock.advance(31)
    again = slow.receive() + slow.receive()
    assert [delivery.position for delivery in again] == [150, 151]


def test_settings_are_stored_and_can_change(world: World) -> None:
    """A queue uses what was stored; other settings are refused unless they are configured."""
    queue = made(world)
    assert world.open().queue("emails", state=world.state).settings.retry == NO_REST
    with pytest.raises(InvalidArgument, match="retry"):
        world.open().queue("emails", QueueSettings(), state=world.state)
    queue.configure(QueueSettings(retry=RetryPolicy(max_attempts=1)))
    queue.send(b"a")
    with queue.consume("g") as consumer:
        consumer.receive()[0].nack("no")
    assert len(queue.dead_letters.list()) == 1
    with pytest.raises(InvalidArgument, match="log"):
        queue.configure(QueueSettings(log=LogSettings(block_records=7)))


def test_a_queue_that_is_not_there(world: World) -> None:
    """Only who asks for it makes one."""
    db = world.open()
    with pytest.raises(NotFound):
        db.queue("emails", state=world.state)
    db.queue("emails", create=True, state=world.state)
    assert db.queues(state=world.state) == ["emails"]


# Handles.


def test_a_waiting_consumer_is_woken_by_a_send() -> None:
    """Nobody polls for what happens in the same process: a wait that would be for ever ends with the message."""
    with oncelog.connect("memory://") as db, ThreadPoolExecutor(1) as pool:
        queue = db.queue("emails", create=True)
        with queue.consume("g") as consumer:
            waiting = pool.submit(consumer.receive, 1, timeout_s=60)
            queue.send(b"a")
            assert [delivery.value for delivery in waiting.result(60)] == [b"a"]


def test_close_ends_an_iteration_from_another_thread() -> None:
    """A worker that is told to stop stops."""
    with oncelog.connect("memory://") as db, ThreadPoolExecutor(1) as pool:
        queue = db.queue("emails", create=True)
        queue.send(b"a")
        consumer = queue.consume("g")
        got = threading.Event()

        def work() -> int:
            count = 0
            for delivery in consumer:
                delivery.ack()
                count += 1
                got.set()
            return count

        counted = pool.submit(work)
        assert got.wait(60)
        consumer.close()
        assert counted.result(60) == 1


@pytest.mark.parametrize("name", ["position", "value", "lease", "until_us", "headers"])
def test_what_was_delivered_cannot_be_changed(name: str) -> None:
    """An ack of a delivery whose position was another would settle another message."""
    with oncelog.connect("memory://") as database:
        queue = database.queue("emails", create=True)
        queue.send(b"hello")
        [delivery] = queue.consume("g").receive()
        with pytest.raises(AttributeError):
            setattr(delivery, name, getattr(delivery, name))
        until_us = delivery.until_us
        delivery.extend(3_600)
        assert delivery.until_us > until_us


def test_closed_handles_say_so() -> None:
    """What was closed is not used by mistake."""
    with oncelog.connect("memory://") as db:
        queue = db.queue("emails", create=True)
        consumer = queue.consume("g")
        queue.close()
        for use in (lambda: queue.send(b"a"), queue.stats, consumer.receive, lambda: queue.consume("g"), queue.pause):
            with pytest.raises(Closed):
                use()
        assert not db.queue("emails").closed


def test_acks_of_many_threads_share_commits(world: World) -> None:
    """Each is told when its own is stored, and none is left out."""
    queue = made(world)
    queue.send_many([Message(b"%d" % number) for number in range(64)])
    with queue.consume("g", prefetch=64) as consumer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda delivery: delivery.ack(), consumer.receive()))
    stats = queue.stats().groups["g"]
    assert (stats.acked, stats.lag) == (64, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefetch": 0},
        {"prefetch": 10_001},
        {"ack_timeout_s": 0},
        {"ack_timeout_s": -1},
        {"start": "now"},
        {"group": ""},
    ],
    ids=str,
)
def test_bad_arguments_are_refused(wrong: dict[str, object]) -> None:
    """Each says what is wrong, before anything is stored."""
    with oncelog.connect("memory://") as db:
        queue = db.queue("emails", create=True)
        with pytest.raises(InvalidArgument):
            queue.consume(**{"group": "g", **wrong})  # type: ignore[arg-type]
        assert queue.groups() == []


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(ack_timeout_s=0),
        QueueSettings(retry=RetryPolicy(max_attempts=0)),
        QueueSettings(retry=RetryPolicy(backoff_s=2, max_backoff_s=1)),
        QueueSettings(retry=RetryPolicy(jitter=2)),
        QueueSettings(retry=RetryPolicy(backoff_s="1")),  # type: ignore[arg-type]
        QueueSettings(log=LogSettings(idempotence="off")),
    ],
    ids=["ack_timeout_s", "max_attempts", "backoff", "jitter", "type", "idempotence"],
)
def test_bad_settings_are_refused(settings: QueueSettings) -> None:
    """A queue that could not keep its promises is not made."""
    with oncelog.connect("memory://") as db:
        with pytest.raises(InvalidArgument):
            db.queue("emails", settings, create=True)
        assert db.queues() == []


# Large messages.


def _in_claims(consumer: Consumer, limit: int) -> list[list[tuple[int, int]]]:
    """Receive and refuse until nothing comes; return the position and the attempts of each, claim by claim."""
    claims: list[list[tuple[int, int]]] = []
    while found := consumer.receive(limit):
        claims.append([(one.position, one.attempts) for one in found])
        consumer.ack(found)
    return claims


@pytest.mark.parametrize("ordered", [False, True])
def test_a_claim_of_large_messages_has_fewer_of_them(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    ordered: bool,  # noqa: FBT001
) -> None:
    """A claim of many large messages filled the memory. Over a wire it was larger than any message may be: nobody got
    them, and they died.
    """
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 250)
    queue = made(world, partitions=1)
    sizes = [100, 100, 100, 1_000, 10, 10, 230, 1]
    queue.send_many([Message(b"x" * size, key=str(row)) for row, size in enumerate(sizes)])
    expected = [[0, 1], [2], [3], [4, 5, 6], [7]]
    with queue.consume("fresh", ordered=ordered) as consumer:
        claims = _in_claims(consumer, 8)
        assert [[position for position, _ in claim] for claim in claims] == expected
        assert {attempts for claim in claims for _, attempts in claim} == {1}
    with queue.consume("again", prefetch=8, ordered=ordered) as consumer:
        with monkeypatch.context() as roomy:
            roomy.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 10_000)
            consumer.nack(consumer.receive(), "not yet")
        claims = _in_claims(consumer, 8)
        assert sorted(position for claim in claims for position, _ in claim) == list(range(8))
        assert {attempts for claim in claims for _, attempts in claim} == {2}, "what went back was not delivered"
        assert max(sum(sizes[position] for position, _ in claim) for claim in claims if len(claim) > 1) <= 250


def test_a_look_at_large_messages_shows_fewer_of_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits, and what has died, is shown in answers that fit."""
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 25_000)
    queue = made(world)
    queue.send_many([Message(b"x" * 10_000)] * 5)
    with queue.consume("g", prefetch=5) as consumer:
        assert [one.position for one in queue.peek("g")] == [0, 1]
        while found := consumer.receive():
            consumer.nack(found, "no", retry=False)
    assert len(queue.dead_letters.list()) == 5
    pages = [[one.position for one in inner.dead_letters(queue, None, start)] for start in (0, 2, 4, 5)]
    assert pages == [[0, 1], [2, 3], [4], []]
    assert [one.position for one in inner.dead_letters(queue, 1, 1)] == [1]


def test_a_look_leaves_out_no_message_between_those_that_it_shows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large message ends it: the small ones behind that are not the first."""
    queue = made(world)
    queue.send_many([Message(b"x" * size) for size in (200, 200, 10)])
    with queue.consume("g", prefetch=3) as consumer:
        consumer.nack(consumer.receive(), "no")
    queue.send(b"new")
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 250)
    assert [one.position for one in queue.peek("g")] == [0]
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 411)
    assert [one.position for one in queue.peek("g")] == [0, 1, 2]
    monkeypatch.setattr(limits, "QUEUE_CLAIM_BYTES_MAX", 413)
    assert [one.position for one in queue.peek("g")] == [0, 1, 2, 3]


def test_a_page_of_dead_letters_has_so_many_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small letters with long keys: by their values alone, all of them fit, and no answer has room for their keys."""
    queue = made(world)
    queue.send_many([Message(b"", key="k" * 1_000)] * 5)
    with queue.consume("g", prefetch=5) as consumer:
        consumer.nack(consumer.receive(), "no", retry=False)
    monkeypatch.setattr("oncelog.queue.deliver.dead_letters._PAGE_MAX", 2)
    pages = [[one.position for one in inner.dead_letters(queue, None, start)] for start in (0, 2, 4, 5)]
    assert pages == [[0, 1], [2, 3], [4], []]
    assert len(queue.dead_letters.list()) == 5
