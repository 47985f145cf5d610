"""Two who want one key: each race is made certain, by doing the other's part exactly in between.

A claimant reads a key and then takes it over; a holder works and then commits. What happens in between decides, and is
told by the status, the nonce and the token that are stored: a step that did not compare them would do the effect twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis.asyncio

from oncelog import Inbox, InvalidArgument, LeaseLost
from oncelog.inbox.contract import AttemptOutcome, Connection, HeldKey, KeyClaim
from oncelog.inbox.decisions import Identity, Stored
from oncelog.inbox.steps import run
from tests.inbox.places import AnyPlace, RedisPlace

KEY = Identity("", "", "", "k")


@contextmanager
def connection_of(inbox: Inbox) -> Iterator[Connection]:
    """Yield a connection of the inbox's own, as an effect has it."""
    connection = run(inbox._home.take())
    yield connection
    run(inbox._home.give_back(connection))


def seen(inbox: Inbox) -> Stored:
    """Return what a claimant reads of the key."""
    with connection_of(inbox) as connection:
        stored = run(connection.look(KEY))
    assert stored is not None
    return stored


def take_over(inbox: Inbox, stored: Stored, nonce: str) -> HeldKey | None:
    """Take the key over from the attempt that was seen there, as an effect does."""
    claim = KeyClaim(KEY, nonce, f"owner of {nonce}", None, 60_000_000, None)
    with connection_of(inbox) as connection:
        run(connection.begin())
        held = run(connection.claim_again(claim, stored))
        run(connection.commit())
    return held


def test_of_two_who_saw_a_lease_run_out_one_takes_the_key(kind: AnyPlace) -> None:
    """Both have read the key as free, then both take it: the second finds another attempt there, and gets nothing."""
    with kind.inbox(lease_s=60) as gone, kind.inbox(lease_s=60) as inbox:
        late = gone.once("k")
        late.__enter__()
        kind.expire()
        stored = seen(inbox)
        assert isinstance(take_over(inbox, stored, "first"), HeldKey)
        assert take_over(inbox, stored, "second") is None
        assert seen(inbox).owner == "owner of first"
        with pytest.raises(LeaseLost):
            late.__exit__(None, None, None)


def test_of_two_who_saw_a_failure_one_takes_the_key(kind: AnyPlace) -> None:
    """The same race for a key whose last attempt failed."""
    with kind.inbox(lease_s=60) as inbox:
        with pytest.raises(RuntimeError), inbox.once("k"):
            raise RuntimeError
        stored = seen(inbox)
        assert stored.status == "FAILED"
        assert isinstance(take_over(inbox, stored, "first"), HeldKey)
        assert take_over(inbox, stored, "second") is None


def test_a_key_that_was_committed_meanwhile_is_not_taken_over(kind: AnyPlace) -> None:
    """The holder's lease ran out, a claimant saw that, and then the holder committed after all: nonce and token are
    those that were seen, and the status alone says that the effect is there.
    """
    with kind.inbox(lease_s=60) as inbox:
        with inbox.once("k") as effect:
            kind.expire()
            stored = seen(inbox)
            effect.result = "there"
        assert take_over(inbox, stored, "other") is None
        with inbox.once("k") as again:
            assert (again.done, again.result) == (True, "there")


def test_one_whose_key_was_taken_over_cannot_commit_it(place: AnyPlace) -> None:
    """While the other is still at work the status is the same for both, and the nonce alone says whose key it is."""
    with place.inbox(lease_s=60, owner="late") as late, place.inbox(lease_s=60, owner="prompt") as prompt:
        slow = late.once("k")
        effect = slow.__enter__()
        place.expire()
        with prompt.once("k") as other:
            with pytest.raises(LeaseLost):
                effect.renew()
            if place.transactional:
                place.run(effect.connection, "SELECT 1")  # type: ignore[union-attr]
            effect.result = "late"
            with pytest.raises(LeaseLost):
                slow.__exit__(None, None, None)
            pending = prompt.look("k")
            assert pending is not None
            assert (pending.status, pending.owner) == ("PENDING", "prompt")
            other.result = "prompt"
        with late.once("k") as again:
            assert (again.done, again.result) == (True, "prompt")


def test_one_whose_key_was_taken_over_cannot_make_it_fail(kind: AnyPlace) -> None:
    """A late failure is not the failure of the attempt that holds the key now."""
    with kind.inbox(lease_s=60) as late, kind.inbox(lease_s=60) as prompt:
        slow = late.once("k")
        slow.__enter__()
        kind.expire()
        with prompt.once("k") as other:
            slow.__exit__(RuntimeError, RuntimeError("late"), None)
            pending = prompt.look("k")
            assert pending is not None
            assert pending.status == "PENDING"
            other.result = 1
        known = prompt.look("k")
    assert known is not None
    assert (known.status, known.result) == ("COMMITTED", 1)


_Decide = Callable[[Connection, Stored], Any]
_DECISIONS: list[_Decide] = [
    lambda connection, stored: connection.settle(KEY, stored, AttemptOutcome("COMMITTED", event="resolved"), None),
    lambda connection, stored: connection.erase(KEY, stored),
]


@pytest.mark.parametrize("decide", _DECISIONS, ids=["resolve", "erase"])
def test_what_an_operator_decides_is_about_the_attempt_that_was_seen(kind: AnyPlace, decide: _Decide) -> None:
    """The key was taken over, or was committed, after somebody looked at it: the decision is refused."""
    with kind.inbox(lease_s=60) as gone, kind.inbox(lease_s=60) as inbox:
        gone.once("k").__enter__()
        kind.expire()
        stored = seen(inbox)
        with inbox.once("k"), connection_of(inbox) as connection:
            assert not run(decide(connection, stored))
        with connection_of(inbox) as connection:
            assert not run(decide(connection, stored))
        assert seen(inbox).status == "COMMITTED"


# One once() for two.


@pytest.mark.parametrize("lease_s", [None, 60])
def test_one_once_is_entered_by_one_at_a_time(kind: AnyPlace, lease_s: float | None) -> None:
    """The second would be answered as the first whose answer was lost, and the effect be at work twice."""
    with kind.inbox(lease_s=lease_s) as inbox:
        once = inbox.once("k")
        with once as effect:
            with pytest.raises(InvalidArgument, match="entered already"):
                once.__enter__()
            assert not effect.done
        with once as effect:  # after it was left, it is an attempt like any other
            assert effect.done


def test_one_once_is_entered_by_one_task_at_a_time(redis_socket: Any) -> None:
    """The same in an event loop."""
    RedisPlace(redis_socket).close()

    async def enter() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_socket)) as client:
            inbox = Inbox(client)
            once = inbox.once("k")
            async with once:
                with pytest.raises(InvalidArgument, match="entered already"):
                    await once.__aenter__()
            await inbox.aclose()

    asyncio.run(enter())


def test_each_entering_of_one_once_is_an_attempt_of_its_own(kind: AnyPlace) -> None:
    """With the nonce of the attempt before, one who came back late could not be told from the next one."""
    with kind.inbox(lease_s=60) as inbox:
        once = inbox.once("k")
        nonces = []
        for _ in range(2):
            once.__enter__()
            nonces.append(seen(inbox).nonce)
            once.__exit__(RuntimeError, RuntimeError("again"), None)
    assert len(set(nonces)) == 2
