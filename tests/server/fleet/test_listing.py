"""``oncelog server list``: who serves a database, as a server says, and as the bucket shows."""

from __future__ import annotations

import pytest

import oncelog
from oncelog import inner
from oncelog.cli.commands.servers.server import _row, servers
from oncelog.server.fleet import members
from oncelog.server.fleet.members import Beat, Card, Members
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.clock import SimulatedClock
from tests.cli.shell import shell
from tests.servers import Serving

pytestmark = pytest.mark.xdist_group("fleet")  # one fleet for all of them, not one in each worker


def test_a_server_lists_the_servers(fleet: list[Serving]) -> None:
    """Through a server the answer is there at once; people see a table."""
    found = shell("server", "list", "--url", f"oncelog://{fleet[1].grpc}", "--json")
    [mine] = [one for one in found.lines if one["grpc"] == fleet[1].grpc]
    assert (mine["name"], mine["state"]) == ("b", "living")
    assert b"incarnation" in shell("server", "list", "--url", f"oncelog://{fleet[1].grpc}").out


def test_a_bucket_shows_who_is_dead_and_who_has_left(bucket_url: str) -> None:
    """Without a server to ask: who does not beat is dead, who said goodbye has left."""
    with oncelog.connect(bucket_url) as db:
        assert servers(db, beat_s=0.05) == []
        home = inner.home(db, members.HOME)
        for name in ("dead", "gone"):
            card = Card(name=name, incarnation=0, grpc="127.0.0.1:1", http="127.0.0.1:2", version="9")
            made = members.join(home, card)
            made.beat(Beat(4))
        made.leave()
        found = servers(db, beat_s=0.05)
    assert [_row(one)[2:5] for one in found] == [("dead", "", "0"), ("left", "", "0")], "nobody knows when they beat"
    assert [(one["name"], one["state"], one["version"]) for one in found] == [
        ("dead", "dead", "9"),
        ("gone", "left", "9"),
    ]


def test_a_living_server_shows_its_logs(memory_bucket: Bucket) -> None:
    """The number of logs comes with the beat."""
    from oncelog.server.fleet.listing import shown

    home = ObjectStorage(memory_bucket).home(members.HOME)
    made = members.join(home, Card(name="a", incarnation=0, grpc="127.0.0.1:1", http="127.0.0.1:2"))
    made.beat(Beat(4))
    clock = SimulatedClock()
    seen = Members(home, clock)
    seen.look()
    clock.advance(1.5)
    [info] = shown(seen, clock)
    assert (info.state, info.logs, info.beat_age_s) == ("living", 4, 1.5)
