"""The scenarios of DriftQ, each by its name, with the state in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from oncelog import (
    Delivery,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    Message,
    NotFound,
    Queue,
    QueueSettings,
    RetryPolicy,
    Unavailable,
)
from oncelog.queue.deliver.consumer import Consumer
from tests.queue.conftest import World

NO_REST = RetryPolicy(backoff_s=0, max_backoff_s=0, jitter=0)
TOPIC = "emails"


def made(world: World, *, partitions: int = 1, retry: RetryPolicy = NO_REST) -> Queue:
    """Make the queue, as a process that begins would."""
    return world.open().queue(
        TOPIC, QueueSettings(retry=retry, ack_timeout_s=30), partitions=partitions, create=True, state=world.state
    )


def reopened(world: World) -> Queue:
    """Open the queue as another process would."""
    return world.open().queue(TOPIC, state=world.state)


def one(consumer: Consumer) -> Delivery:
    """Receive exactly one."""
    [delivery] = consumer.receive(1)
    return delivery


# Identity.


def test_identity_is_tenant_topic_and_key(world: World) -> None:
    """The same id of another tenant, under another key, or in another topic, is another message."""
    queue = made(world)
    assert not queue.send(b"a", id="x").duplicate
    assert not queue.send(b"a", id="x", tenant="shop").duplicate
    assert not queue.send(b"a", id="x", key="k").duplicate
    assert not queue.send(b"a", id="x", tenant="shop", key="k").duplicate
    other = world.open().queue("letters", create=True, state=world.state)
    assert not other.send(b"a", id="x").duplicate
    assert queue.send(b"a", id="x", tenant="shop", key="k").duplicate


def test_identity_cannot_be_shifted_between_its_parts(world: World) -> None:
    """Tenant, key and id that read the same when put together are not the same."""
    queue = made(world)
    sent = [
        queue.send(b"a", tenant="ab", key="c", id="d"),
        queue.send(b"a", tenant="a", key="bc", id="d"),
        queue.send(b"a", tenant="a", key="b", id="cd"),
        queue.send(b"a", tenant="", key="abc", id="d"),
        queue.send(b"a", tenant="2:ab", key="", id="0:d"),
    ]
    assert not any(answer.duplicate for answer in sent)


def test_empty_tenant_is_a_tenant(world: World) -> None:
    """A message without a tenant is deduplicated like any other."""
    queue = made(world)
    assert not queue.send(b"a", id="x", tenant="").duplicate
    assert queue.send(b"a", id="x").duplicate


def test_empty_key_means_no_idempotence(world: World) -> None:
    """Without an id, what is sent twice is there twice."""
    queue = made(world)
    assert not queue.send(b"a", id="").duplicate
    assert not queue.send(b"a").duplicate
    assert queue.stats().ends == [2]


def test_very_long_key(world: World) -> None:
    """Ids and keys up to their limits keep their identity and come back as they were; longer ones are refused."""
    queue = made(world)
    key, tenant, ident = "k" * 1024, "t" * 1024, "ü" * 127
    assert not queue.send(b"a", id=ident, key=key, tenant=tenant).duplicate
    assert queue.send(b"a", id=ident, key=key, tenant=tenant).duplicate
    assert not queue.send(b"a", id=ident[1:], key=key, tenant=tenant).duplicate
    with queue.consume("g") as consumer:
        delivery = one(consumer)
        assert (delivery.id, delivery.key, delivery.tenant) == (ident, key, tenant)
    for wrong in (Message(b"a", id="i" * 256), Message(b"a", key="k" * 1025), Message(b"a", tenant="t" * 1025)):
        with pytest.raises(InvalidArgument):
            queue.send_many([wrong])


def test_same_key_in_two_topics_is_two_operations(world: World) -> None:
    """The topic is a part of the identity."""
    queue = made(world)
    other = world.open().queue("letters", create=True, state=world.state)
    assert not queue.send(b"a", id="x").duplicate
    assert not other.send(b"b", id="x").duplicate


# Produce.


def test_produce_committed_is_a_success_without_a_message(world: World) -> None:
    """Who sends again gets the first one's place, and the queue has one message."""
    queue = made(world)
    first = queue.send(b"a", id="x")
    status = queue.status("x")
    assert status is not None
    assert (status.status, status.position) == ("COMMITTED", first.position)
    again = queue.send(b"a", id="x")
    assert (again.position, again.duplicate) == (first.position, True)
    assert queue.stats().ends == [1]


def test_same_key_other_payload_is_a_conflict(world: World) -> None:
    """Nothing new is swallowed as a repeat, and the first one's status stands."""
    queue = made(world)
    first = queue.send(b"a", id="x")
    with pytest.raises(IdConflict) as caught:
        queue.send(b"b", id="x")
    assert caught.value.position == first.position
    status = queue.status("x")
    assert status is not None
    assert status.status == "COMMITTED"


def test_a_mixed_batch_is_decided_one_by_one(world: World) -> None:
    """Known, new and anonymous messages in one call each get their own answer."""
    queue = made(world)
    first = queue.send(b"a", id="x")
    sent = queue.send_many([Message(b"a", id="x"), Message(b"b", id="y"), Message(b"c")])
    assert [answer.duplicate for answer in sent] == [True, False, False]
    assert sent[0].position == first.position


# Delivering.


def test_ack_of_a_later_message_before_an_earlier_one_then_restart(world: World) -> None:
    """Acks are a set: the earlier message is delivered again, the later is not."""
    queue = made(world)
    queue.send_many([Message(b"0"), Message(b"1"), Message(b"2")])
    consumer = queue.consume("g", prefetch=3)
    deliveries = consumer.receive()
    deliveries[2].ack()
    deliveries[1].ack()
    queue.close()
    world.clock.advance(31)
    with reopened(world).consume("g") as again:
        delivery = one(again)
        assert (delivery.value, delivery.attempts, delivery.last_error) == (b"0", 2, "ack_timeout")
        delivery.ack()
        assert again.receive() == []


def test_attempts_are_counted_across_a_crash_of_worker_and_broker(world: World) -> None:
    """A worker that dies of a message has spent an attempt: it was stored before the delivery."""
    queue = made(world)
    queue.send(b"poison")
    for attempt in range(1, 4):
        crashed = reopened(world).consume("g")
        delivery = one(crashed)
        assert delivery.attempts == attempt
        assert delivery.last_error == (None if attempt == 1 else "ack_timeout")
        world.clock.advance(31)  # nobody closes, nobody answers


def test_poison_ends_in_the_dlq(world: World) -> None:
    """After its last attempt a message lies among the dead letters with its story, and others go on."""
    queue = made(world, retry=RetryPolicy(max_attempts=3, backoff_s=0, max_backoff_s=0))
    queue.send(b"poison", id="p", key="k", tenant="t", headers={"trace": b"1"})
    queue.send(b"good")
    with queue.consume("g") as consumer:
        for _ in range(3):
            poison = one(consumer)
            assert poison.value == b"poison"
            poison.nack("it bites")
        good = one(consumer)
        good.ack()
        assert (good.value, consumer.receive()) == (b"good", [])
    [letter] = queue.dead_letters.list()
    assert (letter.topic, letter.origin_partition, letter.origin_position) == (TOPIC, 0, 0)
    assert (letter.attempts, letter.last_error, letter.group) == (3, "it bites", "g")
    assert (letter.id, letter.key, letter.tenant, letter.headers) == ("p", "k", "t", {"trace": b"1"})
    assert queue.dead_letters.show(letter.position) == letter
    assert queue.stats().groups["g"].buried == 1


def test_poison_that_never_answers_ends_in_the_dlq(world: World) -> None:
    """Also a message that only ever times out comes to its end."""
    queue = made(world, retry=RetryPolicy(max_attempts=2, backoff_s=0, max_backoff_s=0))
    queue.send(b"poison")
    consumer = queue.consume("g")
    for _ in range(2):
        one(consumer)
        world.clock.advance(31)
    assert consumer.receive() == []
    assert consumer.receive() == []
    [letter] = queue.dead_letters.list()
    assert (letter.attempts, letter.last_error) == (2, "ack_timeout")


def test_not_to_be_retried_goes_to_the_dlq_at_once(world: World) -> None:
    """``retry=False`` ends it, whatever its policy."""
    queue = made(world)
    queue.send(b"bad")
    with queue.consume("g") as consumer:
        one(consumer).nack("never", retry=False)
    assert [letter.last_error for letter in queue.dead_letters.list()] == ["never"]
    assert queue.lag("g") == 0


def test_a_dlq_that_cannot_be_written_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message leaves its queue only when the dead letters have it; until then it is kept, and not delivered."""
    queue = made(world)
    queue.send(b"bad")
    consumer = queue.consume("g")
    monkeypatch.setattr(type(queue), "_dead_letter_queue", _unavailable)
    one(consumer).nack("never", retry=False)
    assert (queue.stats().groups["g"].dying, queue.lag("g")) == (1, 1)
    assert consumer.receive() == []
    queue.close()
    monkeypatch.undo()
    again = reopened(world)
    assert again.consume("g").receive() == []
    assert [letter.last_error for letter in again.dead_letters.list()] == ["never"]
    assert again.lag("g") == 0


def _unavailable(queue: Queue) -> Queue:
    message = f"the disk under dlq.{queue.name} is full"
    raise Unavailable(message)


def test_redrive_comes_back_under_a_new_place_and_its_original_inbox_key(world: World) -> None:
    """An effect that had committed is recognised when its message comes back, even twice."""
    queue = made(world)
    sent = queue.send(b"bad", id="x", key="k")
    anonymous = queue.send(b"worse")
    keys = []
    with queue.consume("g", prefetch=2) as consumer:
        for round_number in range(3):
            deliveries = consumer.receive(2)
            deliveries += consumer.receive(2)
            keys.append({delivery.value: delivery.inbox_key for delivery in deliveries})
            assert {delivery.redriven for delivery in deliveries} == {round_number}
            assert {delivery.attempts for delivery in deliveries} == {1}
            consumer.nack(deliveries, "no", retry=False)
            assert queue.dead_letters.redrive() == 2
            assert queue.dead_letters.list() == []
        final = {delivery.value: delivery for delivery in consumer.receive(2) + consumer.receive(2)}
        assert final[b"bad"].position > sent.position
        assert final[b"worse"].position > anonymous.position
        assert (final[b"bad"].id, final[b"bad"].key) == ("x", "k")
    assert keys[0] == keys[1] == keys[2]
    assert keys[0][b"bad"] != keys[0][b"worse"]


def test_redrive_is_for_the_group_that_it_died_in(world: World) -> None:
    """Who has dealt with a message does not get it again because another group could not."""
    queue = made(world)
    queue.send(b"bad")
    with queue.consume("works") as works, queue.consume("fails") as fails:
        one(works).ack()
        one(fails).nack("no", retry=False)
        queue.dead_letters.redrive()
        assert works.receive() == []
        assert one(fails).redriven == 1
        assert queue.lag("works") == 0


def test_redrive_to_a_group_that_was_removed_leaves_the_letter(world: World) -> None:
    """Nobody would get it, and it would be in neither place; letters of other groups go back all the same."""
    queue = made(world)
    queue.send(b"bad")
    for group in ("stays", "goes"):
        with queue.consume(group) as consumer:
            one(consumer).nack("no", retry=False)
    queue.remove_group("goes")
    with pytest.raises(NotFound, match="1 of group 'goes' stay here"):
        queue.dead_letters.redrive()
    [letter] = queue.dead_letters.list()
    assert letter.group == "goes"
    with pytest.raises(NotFound, match="'goes'"):
        queue.dead_letters.redrive([letter.position])
    with queue.consume("stays") as stays:
        assert one(stays).redriven == 1
    with queue.consume("goes", start="latest") as goes:
        assert queue.dead_letters.redrive() == 1
        assert one(goes).redriven == 1
    assert queue.dead_letters.list() == []


def test_redrive_of_one_leaves_the_others(world: World) -> None:
    """Each dead letter can be sent back, or given up, on its own; one that was is not found again."""
    queue = made(world)
    queue.send_many([Message(b"%d" % number) for number in range(4)])
    with queue.consume("g", prefetch=4) as consumer:
        consumer.nack(consumer.receive(), "no", retry=False)
    letters = queue.dead_letters
    assert letters.redrive([1]) == 1
    assert letters.discard([2]) == 1
    assert [letter.value for letter in letters.list()] == [b"0", b"3"]
    assert [letter.value for letter in letters.list(limit=1)] == [b"0"]
    for gone in (1, 2, 99):
        with pytest.raises(NotFound):
            letters.show(gone)


# Backoff and clocks.


def test_backoff_gates_redelivery_also_after_a_nack(world: World) -> None:
    """A refused message rests, twice as long each time, and no longer than the longest."""
    queue = made(world, retry=RetryPolicy(max_attempts=None, backoff_s=10, max_backoff_s=25, jitter=0))
    queue.send(b"a")
    consumer = queue.consume("g")
    for rest_s in (10, 20, 25, 25):
        one(consumer).nack("not yet")
        world.clock.advance(rest_s - 0.001)
        assert consumer.receive() == []
        world.clock.advance(0.001)
    assert one(consumer).attempts == 5


def test_backoff_survives_a_restart(world: World) -> None:
    """Neither an earlier nor a later time is invented by a new process."""
    queue = made(world, retry=RetryPolicy(backoff_s=10, jitter=0))
    queue.send(b"a")
    one(queue.consume("g")).nack("not yet")
    queue.close()
    world.clock.advance(9)
    consumer = reopened(world).consume("g")
    assert consumer.receive() == []
    world.clock.advance(1)
    assert one(consumer).last_error == "not yet"


def test_clock_moved_back_or_forth_nothing_storms(world: World) -> None:
    """Leases and rests go by a time that no jump of the wall clock moves, in a process that runs and in one that
    starts.
    """
    queue = made(world, retry=RetryPolicy(backoff_s=10, max_backoff_s=10, jitter=0))
    queue.send_many([Message(b"leased"), Message(b"resting")])
    consumer = queue.consume("g")
    leased = one(consumer)
    one(consumer).nack("later")
    for jump_s in (-86_400, 2 * 86_400, -3_600):
        world.clock.jump(jump_s)
        assert consumer.receive() == []
        assert reopened(world).consume("g").receive() == []
    leased.ack()
    world.clock.advance(10)
    assert one(consumer).value == b"resting"


def test_a_process_that_starts_after_the_clock_was_set_back_does_not_wait_for_the_difference(world: World) -> None:
    """Time goes on from where it was stored."""
    queue = made(world)
    queue.send(b"a")
    one(queue.consume("g"))
    queue.close()
    world.clock.jump(-86_400)
    consumer = reopened(world).consume("g")
    assert consumer.receive() == []
    world.clock.advance(31)
    assert one(consumer).attempts == 2


def test_brokers_whose_clocks_differ_have_one_time(world: World) -> None:
    """Neither one that is a day ahead ends the leases of the others, nor does one that is a day behind keep them.

    On one machine, where there is one wall clock, that is a clock that jumped: until a group has looked at it, a delay
    uses that clock.
    """
    queue = made(world)
    queue.send(b"a")
    queue.send(b"late", delay_s=60)
    consumer = queue.consume("g")
    first = one(consumer)
    if world.state is None:
        assert consumer.receive() == []
    for ahead_s in (86_400, -86_400):
        world.clock.jump(ahead_s)
        assert world.open().queue(TOPIC, state=world.state).consume("g").receive() == []
    world.clock.jump(86_400)
    other = reopened(world).consume("g")
    world.clock.advance(30)
    second = one(other)
    assert (second.value, second.token > first.token) == (b"a", True)
    second.ack()
    world.clock.advance(30)
    assert one(other).value == b"late"


# Leases.


def test_lease_runs_out_while_the_worker_still_runs(world: World) -> None:
    """Its late ack, nack and renewal are refused, before and after another has it; that one's result stands."""
    queue = made(world)
    queue.send(b"a")
    slow = one(queue.consume("g"))
    world.clock.advance(31)
    for late in (slow.ack, lambda: slow.nack("late"), lambda: slow.extend(30)):
        with pytest.raises(LeaseLost):
            late()
    quick = one(reopened(world).consume("g"))
    assert quick.token > slow.token
    for late in (slow.ack, lambda: slow.nack("late", retry=False), lambda: slow.extend(30)):
        with pytest.raises(LeaseLost):
            late()
    quick.ack()
    assert queue.lag("g") == 0


def test_extend_keeps_a_message(world: World) -> None:
    """A worker that says that it needs longer has longer."""
    queue = made(world)
    queue.send(b"a")
    consumer = queue.consume("g")
    delivery = one(consumer)
    for _ in range(3):
        world.clock.advance(25)
        delivery.extend(30)
    assert consumer.receive() == []
    delivery.ack()


def test_a_worker_restarted_under_its_old_name_does_not_inherit_its_old_lease(world: World) -> None:
    """What it held before it died comes back when that lease is over, with a new token."""
    queue = made(world)
    queue.send(b"a")
    before = one(queue.consume("g"))
    after = reopened(world).consume("g")
    assert after.receive() == []
    world.clock.advance(31)
    assert one(after).token > before.token


def test_prefetched_messages_go_back_when_a_consumer_closes(world: World) -> None:
    """What nobody saw does not count as an attempt, and is there for others at once."""
    queue = made(world)
    queue.send_many([Message(b"0"), Message(b"1"), Message(b"2")])
    with queue.consume("g", prefetch=3) as consumer:
        one(consumer).ack()
    other = reopened(world).consume("g", prefetch=3)
    assert [(delivery.value, delivery.attempts) for delivery in other.receive()] == [(b"1", 1), (b"2", 1)]


def test_a_message_that_may_have_killed_its_worker_comes_alone(world: World) -> None:
    """Otherwise those that were prefetched with it would die of it too."""
    queue = made(world)
    queue.send_many([Message(b"%d" % number) for number in range(5)])
    queue.consume("g", prefetch=3).receive()
    world.clock.advance(31)
    consumer = queue.consume("g", prefetch=5)
    sizes = []
    while found := consumer.receive():
        sizes.append(len(found))
        consumer.ack(found)
    assert sizes == [1, 1, 1, 2]
