"""Names, incarnations and beats: who is there, who is dead, and who has a name."""

from __future__ import annotations

import pytest

from oncelog.clock import SYSTEM
from oncelog.errors import CorruptionError
from oncelog.server.fleet import members
from oncelog.server.fleet.members import Beat, Card, Members, join
from oncelog.storage.base import LogHome
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.clock import SimulatedClock


@pytest.fixture
def home(memory_bucket: Bucket) -> LogHome:
    """Return the home that servers share."""
    return ObjectStorage(memory_bucket).home(members.HOME)


def card(name: str, nonce: str = "") -> Card:
    """Return the card of a server."""
    return Card(name=name, incarnation=0, grpc="127.0.0.1:1", http="127.0.0.1:2", nonce=nonce)


def test_a_server_without_a_new_beat_is_dead_and_lives_again_with_one(home: LogHome) -> None:
    """Beats are compared by number and by the looker's own clock: the wall clock does not count."""
    clock = SimulatedClock()
    seen = Members(home, clock)
    server = join(home, card("a:7676"))
    server.beat(Beat(logs=3))
    seen.look()
    [member] = seen.living()
    assert (member.card.name, member.card.incarnation, seen.beat_of(member)) == ("a:7676", 1, Beat(3))
    assert seen.find(("a:7676", 1)) == member
    clock.advance(seen.dead_s - 1)
    seen.look()
    assert seen.living(), "nothing new for less than the limit"
    clock.advance(1)
    seen.look()
    assert not seen.living()
    assert seen.find(("a:7676", 1)) is None
    server.beat(Beat())
    seen.look()
    assert seen.living()


def test_a_server_that_left_is_dead_at_once(home: LogHome) -> None:
    """Nobody waits for the beats of a server that has said goodbye."""
    seen = Members(home, SimulatedClock())
    server = join(home, card("a"))
    seen.look()
    assert seen.living()
    server.leave()
    seen.look()
    assert not seen.living()
    assert [member.left for member in seen.all()] == [True]


def test_a_name_that_is_started_again_is_another_incarnation(home: LogHome) -> None:
    """What the first incarnation holds is held by a dead one, and its objects are removed."""
    seen = Members(home, SimulatedClock())
    first = join(home, card("a"))
    first.beat(Beat())
    second = join(home, card("a"))
    seen.look()
    assert (first.card.incarnation, second.card.incarnation) == (1, 2)
    assert seen.find(("a", 1)) is None
    assert seen.find(("a", 2)) is not None
    assert seen.newest_incarnation("a") == 2
    assert [key for key in home.list("") if "/00000000000000000001/" in key] == []
    first.beat(Beat())  # it slept, and does not know yet
    seen.look()
    assert seen.find(("a", 1)) is None


def test_of_two_that_join_at_once_both_have_a_number_of_their_own(home: LogHome) -> None:
    """The create of the card decides: a second one at the same number goes on to the next."""

    class Slow:
        """A home that shows the second taker what was there before the first one came."""

        def __init__(self) -> None:
            self.stale = True

        def __getattr__(self, name: str) -> object:
            return getattr(home, name)

        def list(self, prefix: str) -> list[str]:
            found = [] if self.stale else home.list(prefix)
            self.stale = False
            return found

    first = join(home, card("a", "1"))
    second = join(Slow(), card("a", "2"))  # type: ignore[arg-type]
    assert (first.card.incarnation, second.card.incarnation) == (1, 2)


def test_old_beats_are_removed(home: LogHome) -> None:
    """A server that lives for years leaves no more objects than one of a minute."""
    server = join(home, card("a"))
    for _ in range(20):
        server.beat(Beat())
    assert len(home.list("")) <= 4


def test_a_damaged_card_is_a_dead_server(home: LogHome) -> None:
    """Bytes that are no card do not stop the others from being seen."""
    join(home, card("a")).beat(Beat())
    home.create("b/00000000000000000001/card", [b"garbage"])
    home.create("junk", [b"x"])
    seen = Members(home, SimulatedClock())
    seen.look()
    assert [member.card.name for member in seen.living()] == ["a"]


def test_the_key_is_made_once_and_checked(home: LogHome) -> None:
    """All servers have the same secret; a damaged one is said so, and not used."""
    key = members.shared_key(home, SYSTEM)
    assert members.shared_key(home, SYSTEM) == key
    assert len(key) == 32
    assert home.list("") == ["secret/key"], (
        "the policy of a bucket keeps readers from this prefix: the key opens all logs"
    )
    home.delete("secret/key")
    home.create("secret/key", [b"short"])
    with pytest.raises(CorruptionError, match="key"):
        members.shared_key(home, SYSTEM)


def test_the_key_of_an_earlier_version_is_shared(home: LogHome) -> None:
    """Servers of both versions serve a database while it is upgraded."""
    home.create("key", [b"k" * 32])
    assert members.shared_key(home, SYSTEM) == b"k" * 32
    assert home.list("") == ["key"]


def test_a_server_that_was_never_seen_is_not_a_dead_one(home: LogHome) -> None:
    """A holder that joined since the last look is looked for; one whose name was started again is known to be gone."""
    seen = Members(home, SimulatedClock())
    seen.look()
    joined = join(home, card("a"))
    assert not seen.knows(joined.card.holder)
    seen.look()
    assert seen.knows(("a", 1))
    assert not seen.knows(("a", 2))
    join(home, card("a"))
    seen.look()
    assert seen.knows(("a", 1))
    assert seen.find(("a", 1)) is None
