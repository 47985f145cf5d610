"""What happens to a client from outside: clocks that jump, servers of other versions, forks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from oncelog import InvalidArgument, Record, Unavailable
from oncelog.client.address import parse
from oncelog.client.channel import Channel
from oncelog.client.database import RemoteDatabase
from oncelog.clock import SystemClock
from oncelog.connect import Database
from oncelog.wire import messages
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 120.0


class JumpingClock(SystemClock):
    """A clock whose wall time is a year ahead, then a year back, and so on: somebody sets it at every look."""

    _sign = 1

    def now_us(self) -> int:
        """Return a wall time that is wrong, and never the same way twice in a row."""
        self._sign = -self._sign
        return super().now_us() + self._sign * 365 * 86_400 * 1_000_000


def test_a_clock_that_jumps_moves_no_deadline(remote: Database, shared_server: Serving) -> None:
    """Wall time is not what a client waits by: nothing is given up early, a silent server is given up in time, leases
    and tails go on, and each id is stored once.
    """
    proxy = Proxy(shared_server.grpc, 1, 1 << 30)
    queue = remote.queue("emails", create=True)
    log = remote.log("orders", create=True)
    try:
        with (
            RemoteDatabase(Channel(parse(f"oncelog://{proxy.address}", {}), JumpingClock())) as db,
            db.log("orders").writer() as writer,
            db.log("orders").tail(0) as tail,
        ):
            acks = [writer.append(b"%d" % (n % 5), id=str(n % 5), timeout_s=LONG_S) for n in range(10)]
            assert [ack.duplicate for ack in acks] == [False] * 5 + [True] * 5
            assert [entry.value for _ in range(5) if (entry := tail.poll(LONG_S))] == [b"%d" % n for n in range(5)]
            db.queue("emails").send(b"x", id="x")
            with db.queue("emails").consume() as consumer:
                delivery = next(iter(consumer))
                delivery.extend(60)
                delivery.ack()
            assert list(queue.peek()) == []
            proxy.swallow()
            with pytest.raises(Unavailable):
                writer.append(b"late", id="late", timeout_s=0.1)
            proxy.restore()
            writer.append(b"late", id="late", timeout_s=LONG_S)
    finally:
        proxy.close()
    assert Counter(entry.value for entry in log.read()) == Counter([*(b"%d" % n for n in range(5)), b"late"])


@pytest.mark.parametrize("version", [0, messages.PROTOCOL + 1], ids=["older", "newer"])
def test_a_client_of_another_version_is_refused_by_name(
    remote: Database, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns at once which version the server speaks, also when it connects again, and nothing of it is written."""
    log = remote.log("orders", create=True)
    with log.writer() as writer, monkeypatch.context() as other:
        writer.append(b"before", id="before")
        other.setattr(messages, "PROTOCOL", version)
        with pytest.raises(InvalidArgument, match=f"speaks version 1 of the protocol, not {version}"):
            log.writer()
    with log.writer() as writer:
        writer.append_many([Record(b"after", id="after")])
    assert [entry.value for entry in log.read()] == [b"before", b"after"]


FORKING = """
import os, sys, oncelog

url, role = sys.argv[1], "parent"
db = oncelog.connect(url)
log = db.log("orders")
writer, tail = log.writer(), log.tail(0)
writer.append(b"first", id="first")
assert tail.poll(60).value == b"first"
pending = [writer.submit(b"both %d" % n, id=f"both {n}") for n in range(200)]
child = os.fork()
if child == 0:
    role, db = "child", oncelog.connect(url)
    writer = db.log("orders").writer()
    pending = [writer.submit(b"both %d" % n, id=f"both {n}") for n in range(200)]
for number in range(100):
    writer.append(f"{role} {number}".encode(), id=f"{role} {number}")
for one in pending:
    one.result(60)
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.soak
def test_both_sides_of_a_fork_write(remote: Database, shared_server: Serving) -> None:
    """A fork in the midst of writing: the child opens handles of its own, the parent goes on, and each id of both is
    stored once, also those that both have sent.
    """
    log = remote.log("orders", create=True)
    command = [sys.executable, "-c", FORKING, f"oncelog://{shared_server.grpc}"]
    for _ in range(5):  # gRPC's threads are somewhere else each time
        subprocess.run(command, check=True, timeout=300)
    roles = [f"{role} {n}".encode() for role in ("parent", "child") for n in range(100)]
    expected = [b"first", *(b"both %d" % n for n in range(200)), *roles]
    assert Counter(entry.value for entry in log.read()) == Counter(expected)
