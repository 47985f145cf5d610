"""What holds in every place: an effect happens once, whatever its message, its handler and its worker do."""

# ruff: noqa: PT012  (what is raised comes out of a `with`, and its body is what leads to it)

from __future__ import annotations

import asyncio
import queue
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from oncelog import EffectFailed, IdConflict, InvalidArgument, LeaseLost, NotFound, Unavailable, Unsupported, limits
from oncelog.inbox.contract import KeyClaim
from oncelog.inbox.effect import Effect
from oncelog.inbox.inbox import Inbox
from oncelog.inbox.leases import LeaseKeeper
from oncelog.inbox.steps import Steps
from tests.inbox.places import AnyPlace, Place


def act(place: AnyPlace, inbox: Inbox, key: str = "k", result: Any = None, **named: Any) -> Effect:
    """Have an effect once, as a handler would."""
    with inbox.once(key, **named) as effect:
        if not effect.done:
            place.act(effect.connection)
            effect.result = result
    return effect


def fail(place: AnyPlace, inbox: Inbox, error: Exception, key: str = "k") -> None:
    """Have an effect that fails after it has done its work."""
    with pytest.raises(type(error)), inbox.once(key) as effect:
        if place.transactional:
            place.act(effect.connection)
        raise error


def test_an_effect_happens_once_and_gives_the_same_each_time(place: AnyPlace) -> None:
    """The message comes three times; so does the result, and the effect is there once."""
    with place.inbox() as inbox:
        results = [act(place, inbox, result={"sent": 7}) for _ in range(3)]
    assert place.effects() == ["effect"]
    assert [effect.done for effect in results] == [False, True, True]
    assert [effect.result for effect in results] == [{"sent": 7}] * 3
    assert len({effect.token for effect in results}) == 1
    assert inbox.counts() == {"committed": 1, "done": 2}


@pytest.mark.parametrize("result", [0, "", None, False, [], b"", {}, 0.0])
def test_falsy_results_are_results(kind: AnyPlace, result: object) -> None:
    """A zero is not "nothing is known": the effect is not run again because of it."""
    with kind.inbox() as inbox:
        act(kind, inbox, result=result)
        again = act(kind, inbox, result="another")
    assert again.done
    assert again.result == result
    assert type(again.result) is type(result)
    assert kind.effects() == ["effect"]


def test_a_result_that_cannot_be_stored_is_refused_with_its_effect(place: AnyPlace) -> None:
    """Otherwise the effect would be there and anybody who comes again would get something else."""
    with place.inbox() as inbox:
        with pytest.raises(InvalidArgument, match="cannot be stored"), inbox.once("k") as effect:
            if place.transactional:
                place.act(effect.connection)
            effect.result = object()
        assert place.effects() == []
        assert not act(place, inbox).done


def test_a_failure_leaves_nothing_but_its_reason(place: AnyPlace) -> None:
    """What failed is tried again, knows why it failed, and is there once in the end."""
    with place.inbox() as inbox:
        fail(place, inbox, RuntimeError("deadlock"))
        assert place.effects() == []
        known = inbox.look("k")
        assert known is not None
        assert (known.status, known.last_error, known.final) == ("FAILED", "RuntimeError: deadlock", False)
        fail(place, inbox, RuntimeError("again"))
        effect = act(place, inbox, result=1)
        known = inbox.look("k")
    assert (effect.attempts, effect.last_error) == (3, "RuntimeError: again")
    assert place.effects() == ["effect"]
    assert known is not None
    assert (known.status, known.attempts, known.result) == ("COMMITTED", 3, 1)
    assert [event.detail for event in known.story if event.what == "failed"] == [
        "RuntimeError: deadlock",
        "RuntimeError: again",
    ]
    assert known.story == sorted(known.story, key=lambda event: (event.token, event.at_us))


def test_tokens_only_grow(kind: AnyPlace) -> None:
    """Anybody who compares tokens can tell which attempt is the later one."""
    tokens = []
    with kind.inbox() as inbox:
        for number in range(5):
            with pytest.raises(RuntimeError), inbox.once("k") as effect:
                tokens.append(effect.token)
                raise RuntimeError(number)
        tokens.append(act(kind, inbox).token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("error", [EffectFailed("card expired"), ValueError("no such user")])
def test_a_final_failure_is_not_tried_again(place: AnyPlace, error: Exception) -> None:
    """Errors that the inbox was told of, and those that say so themselves, end it; until somebody decides otherwise."""
    with place.inbox(final=(ValueError,)) as inbox:
        fail(place, inbox, error)
        with pytest.raises(EffectFailed) as refused:
            act(place, inbox)
        assert str(error) in refused.value.error
        assert place.effects() == []
        inbox.resolve("k", to="again")
        assert act(place, inbox).attempts == 2
    assert place.effects() == ["effect"]


def test_another_payload_is_a_conflict(place: AnyPlace) -> None:
    """A key that is used for something else is refused, done or not; without a payload there is nothing to compare."""
    with place.inbox() as inbox:
        act(place, inbox, payload=b"10 EUR")
        with pytest.raises(IdConflict, match="'k'"):
            act(place, inbox, payload=b"99 EUR")
        assert act(place, inbox, payload=b"10 EUR").done
        assert act(place, inbox).done
        act(place, inbox, key="n", payload={"a": 1, "b": [2]})
        assert act(place, inbox, key="n", payload={"b": [2], "a": 1}).done
        with pytest.raises(IdConflict):
            act(place, inbox, key="n", payload={"a": 1, "b": [3]})
    assert len(place.effects()) == 2
    assert inbox.counts()["conflicts"] == 2


def test_identity_is_tenant_topic_group_and_key(kind: AnyPlace) -> None:
    """The same key elsewhere is another effect, empty names are names, and no two places look the same."""
    scopes = [
        {},
        {"tenant": "a"},
        {"topic": "a"},
        {"group": "a"},
        {"tenant": "a", "topic": "b"},
        {"tenant": "ab"},
        {"topic": "a", "group": "b"},
        {"group": "ab"},
    ]
    with kind.inbox() as inbox:
        for scope in scopes * 2:
            act(kind, inbox, **scope)
        assert len(inbox.show("k")) == len(scopes)
        assert len({known.effect_id for known in inbox.show("k")}) == len(scopes)
    assert len(kind.effects()) == len(scopes)


def test_the_latest_keys_are_listed_by_what_became_of_them(kind: AnyPlace) -> None:
    """An operator sees what changed last, first; a status chooses; a limit holds; what is no status is refused."""
    with kind.inbox() as inbox:
        assert inbox.latest() == []
        for key in ("a", "b", "c"):
            act(kind, inbox, key)
        fail(kind, inbox, ValueError("no"), "d")
        assert [known.key for known in inbox.latest()] == ["d", "c", "b", "a"]
        assert [known.key for known in inbox.latest("COMMITTED", limit=2)] == ["c", "b"]
        assert [known.key for known in inbox.latest("FAILED")] == ["d"]
        assert inbox.latest("PENDING") == []
        for wrong in ({"status": "committed"}, {"limit": 0}, {"limit": 10_001}):
            with pytest.raises(InvalidArgument):
                inbox.latest(**wrong)


def test_long_and_odd_keys_are_keys(place: AnyPlace) -> None:
    """No key is cut off or taken for another; what cannot be stored is refused by name."""
    odd = ["x" * 60_000, "x" * 59_999 + "y", "Schlüssel 🗝", "a'b\"c\n%s :x {now} \\", " ", "@0:1"]
    with place.inbox() as inbox:
        for key in odd * 2:
            act(place, inbox, key=key)
        for bad in ["x" * 70_000, "a\0b", "\ud800"]:
            with pytest.raises(InvalidArgument, match=r"^key "):
                act(place, inbox, key=bad)
    assert len(place.effects()) == len(odd)


def test_an_empty_key_means_no_idempotence(kind: AnyPlace) -> None:
    """Anybody who gives no key gets every effect, and nothing is stored of it."""
    with kind.inbox() as inbox:
        act(kind, inbox, key="k")
        for _ in range(2):
            assert not act(kind, inbox, key="", result=3).done
    assert len(kind.effects()) == 3
    assert kind.keys() == 1


# Leases.


def test_a_pending_effect_is_seen_and_left_alone(place: AnyPlace) -> None:
    """While one is at it, another is told for how long, and a conflict is told before that."""
    with place.inbox(lease_s=60, owner="first") as inbox, inbox.once("k", payload=b"a") as effect:
        known = inbox.look("k")
        assert known is not None
        assert (known.status, known.owner, known.token) == ("PENDING", "first", effect.token)
        with pytest.raises(IdConflict):
            act(place, inbox, payload=b"b")
        with pytest.raises(Unavailable, match="first is at it") as busy:
            act(place, inbox, payload=b"a")
        assert 0 < busy.value.retry_after_s <= 60
        for change in (inbox.erase, lambda key: inbox.resolve(key, to="again")):
            with pytest.raises(Unavailable):
                change("k")


@pytest.mark.parametrize("owner", ["second", "first"])
def test_the_late_one_changes_nothing(place: AnyPlace, owner: str) -> None:
    """Its lease ran out and another has taken over: its renewal and its commit are refused, its work is not there. A
    worker under the same name does not inherit the lease either.
    """
    with place.inbox(lease_s=60, owner="first") as late, place.inbox(lease_s=60, owner=owner) as prompt:
        with pytest.raises(LeaseLost), late.once("k") as effect:
            place.expire()
            new = act(place, prompt, result="prompt")
            with pytest.raises(LeaseLost):
                effect.renew()
            if place.transactional:
                place.act(effect.connection, "late")
            effect.result = "late"
        assert new.token > effect.token
        assert new.attempts == 2
        known = late.look("k")
        assert known is not None
        assert (known.status, known.owner, known.result, known.token) == ("COMMITTED", owner, "prompt", new.token)
        assert late.counts()["lost"] == 1
    assert place.effects() == ["effect"]


def test_a_late_failure_changes_nothing(kind: AnyPlace) -> None:
    """One who lost the key cannot make the other's effect fail."""
    with kind.inbox(lease_s=60) as late, kind.inbox(lease_s=60) as prompt:
        with pytest.raises(RuntimeError), late.once("k"):
            kind.expire()
            act(kind, prompt)
            raise RuntimeError
        known = late.look("k")
    assert known is not None
    assert known.status == "COMMITTED"


def test_a_lease_that_cannot_be_renewed_says_so(database: AnyPlace) -> None:
    """With one connection, which is in the effect's transaction, nobody would see a longer lease: to return as if it
    was renewed would let another take the key while this one believes to hold it.
    """
    assert isinstance(database, Place)
    with Inbox(database.connect(), lease_s=60) as inbox:
        with inbox.once("k") as effect, pytest.raises(Unsupported, match="one connection"):
            effect.renew()
        with inbox.once("k") as effect:
            effect.renew()  # it is done: there is nothing to renew


def test_a_renewed_lease_is_kept(place: AnyPlace) -> None:
    """Renewed in time, nobody can take it."""
    with place.inbox(lease_s=60) as inbox, place.inbox(lease_s=60) as other:
        with inbox.once("k") as effect:
            place.expire()
            effect.renew()
            with pytest.raises(Unavailable):
                act(place, other)
            place.act(effect.connection)
        assert act(place, other).done
    assert place.effects() == ["effect"]


def test_a_lease_is_renewed_by_itself_while_its_effect_is_at_work(
    kind: AnyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may take longer than its lease; when it has ended, nothing is renewed any more."""
    renewed: queue.Queue[bool] = queue.Queue()
    original = LeaseKeeper._renew

    def noted(self: LeaseKeeper, claim: KeyClaim) -> Steps[bool]:
        kept = yield from original(self, claim)
        renewed.put(kept)
        return kept

    monkeypatch.setattr(LeaseKeeper, "_renew", noted)
    with kind.inbox(lease_s=60) as inbox:
        assert inbox._keeper is not None
        inbox._keeper._pause_s = 0.01
        with inbox.once("k") as effect:
            kind.expire()
            while not renewed.empty():
                renewed.get()
            assert all(renewed.get(timeout=30) for _ in range(2))
            with pytest.raises(Unavailable, match="is at it"):
                act(kind, inbox)
            kind.act(effect.connection)
        assert inbox._keeper._held == {}
    assert kind.effects() == ["effect"]


def test_a_lease_is_renewed_in_an_event_loop(redis_socket: Path) -> None:
    """The same where effects are awaited."""

    async def run() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(redis_socket)) as client:
            await client.flushall()
            inbox = Inbox(client, lease_s=60)
            assert inbox._keeper is not None
            inbox._keeper._pause_s = 0.01
            async with inbox.once("k"):
                [name] = await client.keys("oncelog:inbox:*")
                await client.hset(name, "until_us", "1")
                while await client.hget(name, "until_us") == b"1":
                    pass  # asking lets the renewal go on
                with pytest.raises(Unavailable, match="is at it"):
                    await inbox.once("k").__aenter__()

    asyncio.run(run())


def test_a_lease_that_ran_out_and_nobody_took_still_counts(kind: AnyPlace) -> None:
    """There is no second owner who could have acted: refusing the only one would lose its work for nothing."""
    with kind.inbox(lease_s=60) as inbox:
        with inbox.once("k") as effect:
            kind.expire()
            kind.act(effect.connection)
        assert act(kind, inbox).done
    assert kind.effects() == ["effect"]


def test_expired_fail_makes_it_a_failure(kind: AnyPlace) -> None:
    """Anybody who would rather not do it twice than do it at all can have that."""
    with kind.inbox(lease_s=60, expired="fail") as inbox:
        with pytest.raises(LeaseLost), inbox.once("k"):
            kind.expire()
            with pytest.raises(EffectFailed) as failed:
                act(kind, inbox)
            assert failed.value.error == "lease_expired"
        known = inbox.look("k")
    assert known is not None
    assert (known.status, known.final) == ("FAILED", True)
    assert kind.effects() == []


@pytest.mark.parametrize("to", ["committed", "failed", "again"])
def test_expired_manual_waits_for_somebody(kind: AnyPlace, to: Any) -> None:
    """Nobody knows whether it happened: it is not run before somebody has looked, and then as they say."""
    with kind.inbox(lease_s=60, expired="manual") as inbox:
        with pytest.raises(LeaseLost), inbox.once("k"):
            kind.expire()
            for _ in range(2):
                with pytest.raises(Unavailable, match="resolve") as unknown:
                    act(kind, inbox)
                assert unknown.value.outcome == "unknown"
            inbox.resolve("k", to=to, result="by hand")
        if to == "committed":
            assert act(kind, inbox).result == "by hand"
            with pytest.raises(InvalidArgument, match="taken back"):
                inbox.resolve("k", to="again")
        elif to == "failed":
            with pytest.raises(EffectFailed):
                act(kind, inbox)
        else:
            assert not act(kind, inbox).done
    assert kind.effects() == (["effect"] if to == "again" else [])


def test_a_result_given_by_hand_is_checked_like_any_other(kind: AnyPlace) -> None:
    """What cannot be stored, or is too large, is refused by name, and the key stays as it was."""
    with kind.inbox() as inbox:
        with pytest.raises(RuntimeError), inbox.once("k"):
            raise RuntimeError
        for result in (object(), b"x" * (limits.INBOX_RESULT_BYTES_MAX + 1)):
            with pytest.raises(InvalidArgument, match="result"):
                inbox.resolve("k", to="committed", result=result)
        inbox.resolve("k", to="again", result="of an attempt that failed")
        assert not act(kind, inbox).done
        assert act(kind, inbox).result is None


@pytest.mark.parametrize("owner", ["a\0b", "\ud800", 5])
def test_an_owner_that_cannot_be_stored_is_refused(kind: AnyPlace, owner: Any) -> None:
    """The error comes when the inbox is made, and not out of the driver with the first effect."""
    with pytest.raises(InvalidArgument, match="owner"):
        kind.inbox(owner=owner)


# Forgetting.


def test_erasure_forgets_all_but_the_key(place: AnyPlace) -> None:
    """What was in the message and what came of it is gone; the effect is still not run again."""
    with place.inbox() as inbox:
        with pytest.raises(RuntimeError), inbox.once("anna@example.com", payload=b"Anna"):
            message = "no route to anna@example.com"
            raise RuntimeError(message)
        act(place, inbox, key="anna@example.com", payload=b"Anna", result="sent to Anna")
        inbox.erase("anna@example.com")
        again = act(place, inbox, key="anna@example.com", payload=b"other")
        known = inbox.look("anna@example.com")
        assert inbox.show("anna@example.com") == []
        with pytest.raises(NotFound):
            inbox.erase("unknown")
    assert again.done
    assert again.result is None
    assert known is not None
    assert (known.erased, known.status, known.last_error) == (True, "COMMITTED", None)
    assert not any("anna" in event.detail for event in known.story)
    assert place.effects() == ["effect"]


def test_nothing_personal_is_left_after_an_erasure(kind: AnyPlace) -> None:
    """Looked for in all that is stored: not in the name, nor in a reason; and it is still refused."""
    with kind.inbox(final=(ValueError,), lease_s=60) as inbox:
        fail(kind, inbox, ValueError("no route to anna"), key="anna-failed")
        fail(kind, inbox, RuntimeError("anna is out"), key="anna-again")
        inbox.resolve("anna-again", to="failed")
        act(kind, inbox, key="anna-done", payload={"to": "anna"}, result="sent to anna")
        with pytest.raises(LeaseLost), inbox.once("anna-pending"):
            kind.expire()
            with pytest.raises(Unavailable, match="come back"):
                inbox.erase("anna-pending")
            inbox.resolve("anna-pending", to="committed", result="anna has it")
        for key in ("anna-failed", "anna-again", "anna-done", "anna-pending"):
            inbox.erase(key)
        assert "anna" not in kind.dump()
        for key in ("anna-failed", "anna-again"):
            with pytest.raises(EffectFailed):
                act(kind, inbox, key=key)
        for key in ("anna-done", "anna-pending"):
            assert act(kind, inbox, key=key).done


def test_each_key_is_kept_as_long_as_it_was_stored_for(kind: AnyPlace) -> None:
    """Retention belongs to the key: another inbox with a shorter one cannot make it forgotten, and nothing that is
    pending goes.
    """
    with kind.inbox(retention_s=3600) as short, kind.inbox() as long:
        act(kind, short, key="short")
        fail(kind, short, RuntimeError(), key="failed")
        act(kind, long, key="long")
        assert short.prune() == 0
        kind.age()
        asked: list[int] = []

        def refused(digests: Any) -> Any:
            asked.append(len(digests))
            return [row.digest for row in digests]

        assert short.prune(refused=refused) == 0
        assert asked == [2]
        assert long.prune() == 2
        assert act(kind, long, key="long").done
        assert not act(kind, long, key="short").done
    with kind.inbox(retention_s=3600, lease_s=60) as inbox, inbox.once("pending"):
        kind.age()
        assert inbox.prune() == 0


# Ids for others.


def test_effect_ids_are_the_same_at_every_attempt_and_for_each_thing_another(kind: AnyPlace) -> None:
    """An outside system that is handed the id can refuse the second of two."""
    ids = []
    with kind.inbox() as inbox:
        for key in ("k", "k", "other"):
            with pytest.raises(RuntimeError), inbox.once(key, topic="t") as effect:
                ids.append((effect.id, effect.id_for("mail"), effect.id_for("sms")))
                raise RuntimeError
    first, second, third = ids
    assert first == second
    assert len({*first, *third}) == 6


def test_a_reason_may_have_any_ends_of_lines_in_it(kind: AnyPlace) -> None:
    """What some take for the end of a line is a part of the reason, and the key can be read and tried again."""
    reason = "a\u2028b\x85c\x1cd\r\ne"
    with kind.inbox() as inbox:
        fail(kind, inbox, ValueError(reason))
        fail(kind, inbox, ValueError(reason))
        [known] = inbox.show("k")
        assert [event.detail for event in known.story if event.what == "failed"] == [f"ValueError: {reason}"] * 2
        assert not act(kind, inbox).done
        inbox.erase("k")
        erased = inbox.look("k")
    assert erased is not None
    assert [event.detail for event in erased.story if event.what == "failed"] == ["", ""]
