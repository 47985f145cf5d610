"""The service Database: made, listed and deleted over the wire."""

from __future__ import annotations

import json
import os

import msgspec
import pytest

from oncelog.errors import InvalidArgument, NotFound
from oncelog.settings import LogSettings, ProducerPolicy
from oncelog.wire import messages
from tests.server.clients import Wire, record


def test_a_log_is_made_only_when_asked_and_deleted_while_it_is_held(wire: Wire) -> None:
    """The server lets go of a log that it writes before it deletes it; a log of that name begins at 0 then."""
    name = f"made-{os.urandom(8).hex()}"
    with pytest.raises(NotFound):
        wire.call("Database.Create", name=name, kind="log")
    settings = msgspec.json.encode(LogSettings(on_conflict="original"))
    made = json.loads(wire.call("Database.Create", name=name, kind="log", create=True, settings=settings).json)
    assert made["settings"]["on_conflict"] == "original"
    with pytest.raises(InvalidArgument, match="on_conflict"):
        wire.call("Database.Create", name=name, settings=msgspec.json.encode(LogSettings()))
    wire.call("Log.Append", log=name, records=[record(b"a")])
    assert name in wire.call("Database.Logs").names
    wire.call("Database.Delete", name=name, kind="log")
    assert name not in wire.call("Database.Logs").names
    wire.call("Database.Create", name=name, create=True)
    [result] = wire.call("Log.Append", log=name, records=[record(b"b")]).results
    assert result.ack.position == 0


def test_a_queue_is_deleted_while_it_is_used(wire: Wire) -> None:
    """Its logs are let go first."""
    name = f"queue-{os.urandom(8).hex()}"
    wire.call("Database.Create", name=name, kind="queue", create=True)
    wire.call("Queue.Send", queue=name, messages=[messages.Message(value=b"x")])
    assert name in wire.call("Database.Queues").names
    wire.call("Database.Delete", name=name, kind="queue")
    assert name not in wire.call("Database.Queues").names
    with pytest.raises(NotFound):
        wire.call("Queue.Stats", queue=name)


def test_the_policy_of_a_namespace_is_stored(wire: Wire) -> None:
    """What is stored is read again; without a policy nothing changes."""
    wanted = msgspec.json.encode(ProducerPolicy(max_producers=7))
    wire.call("Database.Policy", namespace="shop", policy=wanted)
    assert json.loads(wire.call("Database.Policy", namespace="shop").json)["max_producers"] == 7


def test_the_server_describes_itself(wire: Wire) -> None:
    """Name, version and protocol are for clients; a kind that does not exist is refused."""
    described = json.loads(wire.call("Database.Describe").json)
    assert described["protocol"] == 1
    for call in ("Database.Create", "Database.Delete"):
        with pytest.raises(InvalidArgument):
            wire.call(call, name="x", kind="table")
