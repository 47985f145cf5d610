"""What was acknowledged is there, and nothing twice: connections cut, servers killed, stopped and suspended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
import pytest

import oncelog
from oncelog import (
    Ack,
    CaughtUp,
    Closed,
    LogBusy,
    NotFound,
    OncelogError,
    Record,
    StreamEvent,
    Unavailable,
    WriterFenced,
)
from oncelog.concurrency.pending import Pending
from oncelog.connect import Database
from oncelog.log.log import Log
from tests.server.proxy import Proxy
from tests.servers import Serving

LONG_S = 120.0
Serve = Callable[..., Serving]


@pytest.fixture(params=range(1, 21) if os.environ.get("ONCELOG_SOAK") == "1" else [1])
def cutting(request: pytest.FixtureRequest, shared_server: Serving) -> Iterator[Proxy]:
    """Yield a proxy that cuts every connection after some thousand bytes, in the midst of a message."""
    proxy = Proxy(shared_server.grpc, request.param, 30_000)
    yield proxy
    proxy.close()


def values(log: Log) -> list[bytes]:
    """Return what is stored."""
    return [entry.value for entry in log.read()]


def outcomes(pendings: list[Pending[Ack]]) -> Counter[str]:
    """Return how submissions ended: acknowledged, or by which outcome of which error."""
    wait(pendings, LONG_S)
    return Counter(
        "acked" if one.exception(0) is None else str(getattr(one.exception(0), "outcome", "?")) for one in pendings
    )


def test_cut_connections_lose_and_double_nothing(remote: Database, cutting: Proxy) -> None:
    """With ids and without, by record, batch and table: the server knows a frame by its number, or the log an id."""
    remote.log("orders", create=True)
    with oncelog.connect(f"oncelog://{cutting.address}") as db:
        log = db.log("orders")
        with log.writer(wait_s=LONG_S) as writer:
            plain = [writer.submit(b"plain-%d" % n, timeout_s=LONG_S) for n in range(200)]
            named = [writer.submit(b"named-%d" % n, id=str(n), timeout_s=LONG_S) for n in range(200)]
            for n in range(20):
                writer.append_batch([Record(b"batch-%d" % n), Record(b"batch-%d'" % n)], timeout_s=LONG_S)
                writer.append_arrow(pa.table({"value": [b"row-%d" % n] * 50}), timeout_s=LONG_S)
            assert outcomes([*plain, *named]) == {"acked": 400}
        cutting.peaceful = True
        assert cutting.connections > 5, "the proxy has cut nothing"
    found = Counter(values(remote.log("orders")))
    assert {value: count for value, count in found.items() if count > 1} == {b"row-%d" % n: 50 for n in range(20)}
    assert len(found) == 200 + 200 + 40 + 20
    assert [value for value in values(remote.log("orders")) if value.startswith(b"plain")] == [
        b"plain-%d" % n for n in range(200)
    ], "nothing overtakes"


def test_readers_and_tails_go_on_behind_their_last_position(remote: Database, cutting: Proxy) -> None:
    """A cut connection is not seen by who reads: every record once, in order."""
    with remote.log("orders", create=True).writer() as writer:
        writer.append_many([Record(b"%0100d" % n) for n in range(1000)])
    cutting.bytes_max = 300_000  # all of it comes in one message
    with oncelog.connect(f"oncelog://{cutting.address}") as db:
        log = db.log("orders")
        for _ in range(5):
            assert [entry.position for entry in log.read()] == list(range(1000))
            assert sum(batch.num_rows for batch in log.read_arrow(10)) == 990
            with log.tail("earliest") as tail:
                assert [next(tail).position for _ in range(1000)] == list(range(1000))
    assert cutting.connections > 5, "the proxy has cut nothing"


def test_cut_connections_settle_every_delivery_once(remote: Database, cutting: Proxy) -> None:
    """Messages with ids are in the queue once, and each is acknowledged or comes again."""
    remote.queue("emails", create=True)
    done: Counter[bytes] = Counter()
    with oncelog.connect(f"oncelog://{cutting.address}") as db:
        queue = db.queue("emails")
        for n in range(60):
            queue.send(b"%0200d" % n, id=str(n), timeout_s=LONG_S)
        with queue.consume("mailer", prefetch=4, ack_timeout_s=2) as deliveries:
            while len(done) < 60:
                for delivery in deliveries.receive(timeout_s=1):
                    with contextlib.suppress(Unavailable, oncelog.LeaseLost):  # then it comes again, or is settled
                        delivery.ack()
                    done[delivery.value] += 1
        cutting.peaceful = True
    assert set(done) == {b"%0200d" % n for n in range(60)}
    assert remote.queue("emails").stats().ends == [60]


def test_a_killed_server_leaves_the_unknown_unknown(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Killed in the midst of submissions and begun again at the same address: with ids all are acknowledged in the end.

    Without ids nothing is sent again by itself: stored is what was acknowledged, and some of what is unknown. The log
    of the process says that the connection was lost.
    """
    caplog.set_level("INFO", "oncelog.client")
    server = serve()
    with oncelog.connect(f"oncelog://{server.grpc}") as db:
        log = db.log("orders", create=True)
        with log.writer() as named, log.writer() as plain:
            first = [named.submit(b"named-%d" % n, id=str(n), timeout_s=LONG_S) for n in range(2000)]
            other = [plain.submit(b"plain-%d" % n, timeout_s=LONG_S) for n in range(2000)]
            first[10].result(LONG_S)
            server.kill()
            again = serve(server.url, "--grpc", server.grpc)
            first += [named.submit(b"named-%d" % n, id=str(n), timeout_s=LONG_S) for n in range(2000, 2100)]
            assert outcomes(first) == {"acked": 2100}
            told = outcomes(other)
        assert "the stream of a writer of 'orders' ended" in caplog.text
        assert set(told) <= {"acked", "unknown"}
        found = Counter(values(log))
        assert max(found.values()) == 1
        assert sum(value.startswith(b"named") for value in found) == 2100
        acked = {b"plain-%d" % n for n, one in enumerate(other) if one.exception(0) is None}
        stored = {value for value in found if value.startswith(b"plain")}
        assert acked <= stored
        assert len(stored) <= told["acked"] + told["unknown"]
        places = [one.result(0).position for one in first]
        assert len(set(places)) == 2100
    assert again.stop() == 0


def test_a_producer_that_was_taken_leaves_neither_thread_nor_stream(remote: Database) -> None:
    """The stream of such a producer ends when its last frame has an answer: nobody would end it later."""
    log = remote.log("orders", create=True)
    with log.writer() as writer, log.writer() as other:
        mine = writer.as_producer("importer", takeover="force")
        mine.append(b"a", sequence=1)
        session = mine._writer._sending.session  # type: ignore[attr-defined]
        thread = session._thread
        other.as_producer("importer", takeover="force").append(b"b", sequence=2)
        with pytest.raises(WriterFenced):
            mine.append(b"c", sequence=3)
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_a_drained_server_is_not_noticed(serve: Serve) -> None:
    """SIGTERM lets what was received be answered; the rest goes to the next server there, also without ids."""
    server = serve()
    with oncelog.connect(f"oncelog://{server.grpc}") as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            pendings = [writer.submit(b"%d" % n, timeout_s=LONG_S) for n in range(3000)]
            pendings[5].result(LONG_S)
            assert server.stop() == 0
            again = serve(server.url, "--grpc", server.grpc)
            assert outcomes(pendings) == {"acked": 3000}
        assert values(log) == [b"%d" % n for n in range(3000)]
    assert again.stop() == 0


def test_a_suspended_server_is_a_time_limit(serve: Serve) -> None:
    """A server stands still: the caller learns in time that the outcome is unknown, and a retry finds the one."""
    server = serve()
    with oncelog.connect(f"oncelog://{server.grpc}") as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"before")
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable) as late:
            writer.append(b"paid", id="order-42", timeout_s=0.2)
        assert late.value.outcome == "unknown"
        server.process.send_signal(signal.SIGCONT)
        ack = writer.append(b"paid", id="order-42", timeout_s=LONG_S)
        assert ack.position == 1
        assert writer.append(b"paid", id="order-42").duplicate


def test_no_server_is_not_written() -> None:
    """Where nobody listens nothing was sent: that is known, and said within the time."""
    with oncelog.connect("oncelog://127.0.0.1:1") as db, pytest.raises(Unavailable) as away:
        db._channel.again(lambda left_s: db._channel.once("Database.Logs", _empty(), left_s), 0.2, write=True)  # type: ignore[attr-defined]
    assert away.value.outcome == "not written"


def _empty() -> object:
    from oncelog.wire import messages

    return messages.Empty()


CLIENT = """
import sys, oncelog
with oncelog.connect(sys.argv[1]) as db, db.log("orders").writer() as writer:
    pendings = [writer.submit(b"%d" % n, id=str(n)) for n in range(5000)]
    pendings[100].result(60)
    print("begun", flush=True)
    for pending in pendings:
        pending.result(60)
    print("done", flush=True)
"""


def test_a_killed_client_can_be_run_again(remote: Database, shared_server: Serving) -> None:
    """A loader that dies half way and is run again: every id once, whatever had arrived."""
    log = remote.log("orders", create=True)
    command = [sys.executable, "-c", CLIENT, f"oncelog://{shared_server.grpc}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"begun\n"
        first.kill()
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"begun\ndone\n"
    assert Counter(values(log)) == Counter(b"%d" % n for n in range(5000))


AWAY_S = [0.3, pytest.param(90.0, marks=pytest.mark.soak)]
"""A moment; and longer than keepalives, time limits and what a server remembers of a session."""


@pytest.mark.parametrize("away_s", AWAY_S)
def test_a_suspended_client_goes_on(remote: Database, shared_server: Serving, away_s: float) -> None:
    """A client that stood still, for longer than everybody's patience, stores what it had in hand: every id once."""
    log = remote.log("orders", create=True)
    command = [sys.executable, "-c", CLIENT, f"oncelog://{shared_server.grpc}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        client.send_signal(signal.SIGSTOP)
        threading.Event().wait(away_s)
        client.send_signal(signal.SIGCONT)
        code = client.wait()
        assert (code, client.stdout.read()) == (0, b"done\n") or away_s > 60, "its own time limit may be over"
    again = subprocess.run(command, capture_output=True, check=True)
    assert again.stdout == b"begun\ndone\n"
    assert Counter(values(log)) == Counter(b"%d" % n for n in range(5000))


@pytest.mark.parametrize("away_s", AWAY_S)
def test_a_network_that_was_gone_loses_and_doubles_nothing(
    remote: Database, shared_server: Serving, away_s: float
) -> None:
    """Bytes vanish, and no connection is seen to end. Callers learn in time that the outcome is unknown; what they send
    again is stored once, and what has no id at most once; a tail misses nothing.
    """
    log = remote.log("orders", create=True)
    proxy = Proxy(shared_server.grpc, 1, 1 << 30)
    try:
        with (
            oncelog.connect(f"oncelog://{proxy.address}") as db,
            db.log("orders").writer() as writer,
            db.log("orders").tail(0) as tail,
        ):
            writer.append(b"before", id="before")
            proxy.swallow()
            with pytest.raises(Unavailable) as named:
                writer.append(b"named", id="named", timeout_s=away_s)
            with pytest.raises(Unavailable) as plain:
                writer.append(b"plain", timeout_s=0.1)
            assert named.value.outcome == "unknown"
            lost = plain.value.outcome == "not written"  # known when the connection was seen to be dead before
            proxy.restore()
            first = writer.append(b"named", id="named", timeout_s=LONG_S)
            assert writer.append(b"named", id="named", timeout_s=LONG_S).position == first.position
            writer.append(b"after", id="after", timeout_s=LONG_S)
            seen: list[bytes] = []
            while b"after" not in seen:
                entry = tail.poll(LONG_S)
                assert entry is not None
                seen.append(entry.value)
    finally:
        proxy.close()
    stored = values(log)
    assert seen == stored
    assert Counter(stored) - Counter([b"plain"]) == Counter([b"before", b"named", b"after"])
    assert not (lost and b"plain" in stored)


def test_a_handle_does_not_survive_a_fork(remote: Database) -> None:
    """In a child the handles of its parent are closed; in the parent they go on."""
    log = remote.log("orders", create=True)
    with log.writer() as writer, log.tail(0) as tail:
        writer.append(b"before")
        child = os.fork()
        if child == 0:
            closed = 0
            for use in (remote.logs, log.read, lambda: writer.append(b"x"), lambda: writer.submit(b"x"), tail.poll):
                try:
                    use()
                except Closed:
                    closed += 1
                except BaseException:  # noqa: BLE001
                    os._exit(99)
            os._exit(closed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        writer.append(b"after")
    assert values(log) == [b"before", b"after"]


def test_256_threads_and_256_tasks_share_a_client(remote: Database) -> None:
    """Each id is stored once, however many ask for it at once, and all get its position."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        go = threading.Barrier(256)

        def attempt(number: int) -> Ack:
            go.wait()
            return writer.append(b"x", id=str(number % 64), timeout_s=LONG_S)

        with ThreadPoolExecutor(256) as pool:
            acks = list(pool.map(attempt, range(256)))

        async def tasks() -> list[Ack]:
            return await asyncio.gather(*(writer.submit(b"x", id=str(number % 64)) for number in range(256)))

        acks += asyncio.run(tasks())
    assert len(values(log)) == 64
    for number in range(64):
        assert len({ack.position for ack in acks[number::64]}) == 1
    assert sum(not ack.duplicate for ack in acks) == 64


def test_a_producer_counts_on_the_client_and_belongs_to_one_session(remote: Database) -> None:
    """Sequences go on behind the last; a second session is refused, or takes the name, and the first is fenced."""
    log = remote.log("orders", create=True)
    with log.writer(producer="importer") as writer:
        assert [writer.append(b"%d" % n).position for n in range(3)] == [0, 1, 2]
        assert writer.submit(b"3").result(LONG_S).position == 3
        assert (writer.producer, writer.last_sequence) == ("importer", 3)
        with pytest.raises(LogBusy):
            log.writer(producer="importer", wait_s=0)
        with log.writer(producer="importer", takeover="force") as taken:
            assert taken.append(b"4").position == 4
            assert taken.last_sequence == 4
            with pytest.raises(WriterFenced):
                writer.append(b"lost", timeout_s=5)
    assert values(log) == [b"0", b"1", b"2", b"3", b"4"]


def test_large_values_come_in_parts(remote: Database) -> None:
    """A value of 16 MiB, and a batch of several, are larger than a message may be."""
    log = remote.log("orders", create=True)
    with log.writer() as writer:
        large = bytes(16 << 20)
        assert writer.append(large, id="large", timeout_s=LONG_S).position == 0
        assert writer.append(large, id="large", timeout_s=LONG_S).duplicate
        acks = writer.append_batch([Record(bytes(6 << 20)), Record(bytes(6 << 20))], timeout_s=LONG_S)
        assert [ack.position for ack in acks] == [1, 2]
    assert [len(value) for value in values(log)] == [16 << 20, 6 << 20, 6 << 20]


def test_a_deleted_log_is_said_to_be(remote: Database) -> None:
    """A session of a log that was deleted fails with the server's own word, and closing it does not wait for ever."""
    log = remote.log("orders", create=True)
    writer = log.writer()
    writer.append(b"x")
    remote.delete("orders")
    with pytest.raises(OncelogError):
        writer.append(b"y", timeout_s=5)
    remote.log("orders", create=True)
    with pytest.raises(NotFound, match="deleted"):  # another log of the name is not this writer's
        writer.append(b"z", id="z", timeout_s=LONG_S)
    writer.close(timeout_s=5)
    assert values(remote.log("orders")) == []


def test_subscriptions_end_with_their_log(remote: Database) -> None:
    """They raise that the log was deleted, and do not go on with another one of its name."""
    streams = remote.streams("orders", create=True)
    streams.append("s", Record(b"old"))
    subscriptions = [streams.subscribe("s"), streams.subscribe_all()]
    for subscription in subscriptions:
        assert isinstance(subscription.poll(LONG_S), StreamEvent)
        assert isinstance(subscription.poll(LONG_S), CaughtUp)
    remote.delete("orders")
    remote.streams("orders", create=True).append("s", [Record(b"other"), Record(b"new")])
    for subscription in subscriptions:
        with pytest.raises(NotFound, match="deleted"):
            subscription.poll(LONG_S)


def test_tasks_use_a_server_as_they_use_a_disk(remote: Database, tmp_path: Path) -> None:
    """One program with ``await``, ``async with`` and ``async for``, against both."""
    from tests.client.program import program

    with oncelog.connect(tmp_path) as embedded:
        assert asyncio.run(program(embedded)) == asyncio.run(program(remote))


def test_a_producer_that_was_closed_is_opened_again_at_once(shared_server: Serving, remote: Database) -> None:
    """A loader that is started again in the same minute was refused: the server took the end for a broken stream.

    In the same process, and from another one, which asks once and does not wait.
    """
    log = remote.log("orders", create=True)
    for first in range(0, 30, 10):
        with log.writer(producer="loader", wait_s=0.0) as writer:
            assert writer.last_sequence == (first - 1 if first else None)
            writer.append_many([Record(b"%d" % number, sequence=number) for number in range(first, first + 10)])
    with log.writer(producer="other") as writer, writer.as_producer("loader") as producer:
        assert producer.append(b"30", sequence=30).position == 30
    again = oncelog.connect(f"oncelog://{shared_server.grpc}")
    with again, again.log("orders").writer(producer="loader", wait_s=0.0) as last:
        assert last.last_sequence == 30
        assert last.append(b"30", sequence=30).duplicate
    assert values(log) == [b"%d" % number for number in range(31)]


def test_a_producer_that_is_closed_while_its_server_hangs_ends_in_time(serve: Serve) -> None:
    """A server that does not answer keeps nobody from closing: it is asked to let the producer go, and not for long."""
    server = serve()
    with oncelog.connect(f"oncelog://{server.grpc}") as database:
        writer = database.log("orders", create=True).writer(producer="loader")
        writer.append(b"a")
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(writer.close).result(LONG_S)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        with database.log("orders").writer(producer="loader", takeover="force") as writer:
            assert writer.last_sequence == 0
