"""Servers of a fleet that are killed, paused, cut off and drained while clients write and retry: 0 lost, 0 doubled."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oncelog
from oncelog.errors import LogBusy, OncelogError, Unavailable, WriterFenced
from tests.server.clients import Wire
from tests.server.fleet.conftest import started
from tests.server.proxy import Proxy
from tests.servers import Serving

BEAT_S = 0.5
DEAD_S = 4 * BEAT_S


class Harmed:
    """A fleet, and what is done to it. Each server keeps its name and address when it is started again."""

    def __init__(self, url: str, names: str = "abc") -> None:
        """Start the servers."""
        self.url = url
        self.environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}
        self.servers = dict(zip(names, started(url, names, **self.environment), strict=True))
        self.pause = threading.Event()

    @property
    def addresses(self) -> str:
        """The URL of a client of all servers."""
        return "oncelog://" + ",".join(server.grpc for server in self.servers.values())

    def holder(self, log: str) -> str:
        """Return the name of the server that holds a log, as its manifest says; any one if it says none."""
        with oncelog.connect(self.url) as db:
            holder = db.log(log)._holding().holder
            return holder[0] if holder is not None else next(iter(self.servers))

    def kill(self, name: str) -> None:
        """End a server at once, and start it again under its name and at its address."""
        server = self.servers[name]
        server.kill()
        flags = ("--name", name, "--grpc", server.grpc, "--http", server.http)
        server.end()
        self.servers[name] = Serving(self.url, flags, self.environment)

    def stop_and_continue(self, name: str) -> None:
        """Pause a server for longer than the others wait for it."""
        with self.paused(name):
            self.pause.wait(2.5 * DEAD_S)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Pause a server."""
        process = self.servers[name].process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def drain(self, name: str) -> None:
        """Have a server leave in order, and start it again."""
        server = self.servers[name]
        assert server.stop() == 0, server.errors()
        flags = ("--name", name, "--grpc", server.grpc, "--http", server.http)
        server.end()
        self.servers[name] = Serving(self.url, flags, self.environment)

    def end(self) -> None:
        """End all servers."""
        for server in self.servers.values():
            server.end()


@pytest.fixture
def harmed(bucket_url: str) -> Iterator[Harmed]:
    """Yield a fleet on an empty bucket."""
    fleet = Harmed(bucket_url)
    yield fleet
    fleet.end()


class Writers:
    """Clients that append until they are stopped, and retry under the same id until there is an ack."""

    def __init__(self, url: str, logs: list[str], count: int, *, one_address: bool = False) -> None:
        """Begin. With ``one_address`` each client knows one server alone, and never goes to another."""
        self.acks: dict[str, dict[str, int]] = {log: {} for log in logs}
        self.errors: list[BaseException] = []
        self.retries: Counter[str] = Counter()
        self._acked = threading.Condition()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(_turned(url, number, one_address), logs[number % len(logs)], number)
            )
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, url: str, log: str, number: int) -> None:
        try:
            with oncelog.connect(url) as db:
                self._write(db, log, number)
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            self.errors.append(error)
            with self._acked:
                self._acked.notify_all()

    def _write(self, db: oncelog.Database, log: str, number: int) -> None:
        writer: Any = None
        count = 0
        is_open = False
        while is_open or not self._over.is_set():  # an id that was begun is acknowledged in the end
            id = f"{number}-{count}"
            is_open = True
            try:
                writer = writer or db.log(log).writer(wait_s=60)
                ack = writer.append(f"value {id}".encode(), id=id, timeout_s=5)
            except (Unavailable, WriterFenced, LogBusy) as error:
                self.retries[type(error).__name__] += 1
                continue
            is_open = False
            self.acks[log][id] = ack.position
            count += 1
            with self._acked:
                self._acked.notify_all()
        with contextlib.suppress(OncelogError):  # every append has its ack already
            writer.close(timeout_s=60)

    @property
    def count(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acks.values()))

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged, of each log."""
        wanted = {log: len(acks) + more for log, acks in self.acks.items()}

        def are_there() -> bool:
            return bool(self.errors) or all(len(self.acks[log]) >= count for log, count in wanted.items())

        with self._acked:
            assert self._acked.wait_for(are_there, 300), "the clients make no progress"
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """End, when what is under way is acknowledged."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


def _turned(url: str, number: int, one_address: bool) -> str:  # noqa: FBT001
    """Return the URL of several servers with another one first: clients begin at different servers."""
    addresses = url.removeprefix("oncelog://").split(",")
    at = number % len(addresses)
    return "oncelog://" + ",".join((addresses[at:] + addresses[:at])[: 1 if one_address else None])


def check(url: str, writers: Writers) -> int:
    """Compare what is stored with what was acknowledged; return how many records there are."""
    total = 0
    with oncelog.connect(url) as db:
        for log, acks in writers.acks.items():
            entries = list(db.log(log).read())
            at = {entry.id: entry.position for entry in entries}
            assert max(Counter(entry.id for entry in entries).values(), default=0) <= 1, "doubled"
            assert {id: at.get(id) for id in acks} == acks, "lost, or an ack was not true"
            assert set(at) == set(acks), "stored, and never acknowledged"
            total += len(entries)
            assert db.log(log).verify().ok
    return total


@pytest.mark.soak
def test_holders_that_are_killed_paused_and_drained_lose_and_double_nothing(harmed: Harmed) -> None:
    """The first holder dies, the next sleeps until it was replaced, the next leaves in order: each id is stored once,
    where its ack says, and the clients need to know nothing of it.
    """
    with oncelog.connect(harmed.addresses) as db:
        db.log("orders", create=True)
    writers = Writers(harmed.addresses, ["orders"], 3)
    writers.wait_for(5)
    killed = harmed.holder("orders")
    harmed.servers[killed].kill()
    writers.wait_for(5)
    paused = harmed.holder("orders")
    assert paused != killed
    with harmed.paused(paused):
        writers.wait_for(5)
    with Wire(harmed.servers[paused].grpc) as wire:  # it slept, and does not know yet that it lost the log
        for id in list(writers.acks["orders"]):
            assert wire.call("Log.Find", log="orders", id=id).HasField("ack"), "a no from memory"
    drained = harmed.holder("orders")
    assert harmed.servers[drained].stop() == 0, harmed.servers[drained].errors()
    writers.wait_for(5)
    writers.stop()
    assert check(harmed.url, writers) == writers.count


@pytest.mark.soak
def test_a_fleet_is_harmed_for_minutes(harmed: Harmed) -> None:
    """Minutes of harm: servers are killed, paused and drained at random while many clients write to many logs."""
    chance = random.Random(22)
    logs = [f"log-{number}" for number in range(4)]
    with oncelog.connect(harmed.addresses) as db:
        for log in logs:
            db.log(log, create=True)
    writers = Writers(harmed.addresses, logs, 8)
    harms: list[Callable[[str], None]] = [harmed.kill, harmed.stop_and_continue, harmed.drain]
    done: Counter[str] = Counter()
    for _ in range(24):
        writers.wait_for(5)
        harm = chance.choice(harms)
        harm(harmed.holder(chance.choice(logs)))
        done[harm.__name__] += 1
    writers.wait_for(5)
    writers.stop()
    total = check(harmed.url, writers)
    print(f"{dict(done)}, {total} records of {writers.count} acks, retries {dict(writers.retries)}")  # noqa: T201
    assert total == writers.count


@pytest.mark.soak
def test_servers_that_are_cut_off_from_each_other(bucket_url: str) -> None:
    """Servers reach each other over a network that cuts and halves, clients reach all: 0 lost, 0 doubled."""
    listeners = {name: Proxy("127.0.0.1:1", seed=number, bytes_max=8_000) for number, name in enumerate("abc")}
    flags = {name: ("--name", name, "--advertise", proxy.address) for name, proxy in listeners.items()}
    servers = {name: Serving(bucket_url, flags[name], {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}) for name in "abc"}
    for name, proxy in listeners.items():
        proxy.lead_to(servers[name].grpc)
    try:
        url = "oncelog://" + ",".join(server.grpc for server in servers.values())
        with oncelog.connect(url) as db:
            for log in ("x", "y"):
                db.log(log, create=True)
        writers = Writers(url, ["x", "y"], 6, one_address=True)
        writers.wait_for(300)
        writers.stop()
        total = check(bucket_url, writers)
        cuts = sum(proxy.connections for proxy in listeners.values())
        assert cuts > 6, "the proxies cut nothing: this test tests nothing"
        print(f"{total} records of {writers.count} acks, {cuts} connections, retries {dict(writers.retries)}")  # noqa: T201
        assert total == writers.count
    finally:
        for server in servers.values():
            server.end()
        for proxy in listeners.values():
            proxy.close()


@pytest.mark.soak
def test_an_address_that_leads_to_the_server_of_another_database(bucket_url: str) -> None:
    """A server advertises the address of a server of another fleet, which has a log of the same name: nothing is stored
    there. The log is asked for through the bucket, and the records get to their own log.
    """
    environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}
    other = Serving(f"{bucket_url}-other", ("--name", "other"), environment)
    wrong = Serving(bucket_url, ("--name", "wrong", "--advertise", other.grpc), environment)
    right = Serving(bucket_url, ("--name", "right"), environment)
    try:
        for url in (bucket_url, other.url):
            with oncelog.connect(url) as db:
                db.log("orders", create=True)
        with oncelog.connect(f"oncelog://{wrong.grpc}") as db, db.log("orders").writer() as writer:
            writer.append(b"first", id="first")
        writers = Writers(f"oncelog://{right.grpc}", ["orders"], 1)
        writers.acks["orders"]["first"] = 0
        writers.wait_for(5)
        writers.stop()
        assert check(bucket_url, writers) == writers.count
        with oncelog.connect(other.url) as db:
            assert list(db.log("orders").read()) == []
        assert "the server 'wrong' lives, and cannot be reached" in right.errors()
    finally:
        for server in (other, wrong, right):
            server.end()


@pytest.mark.soak
def test_a_network_between_servers_that_drops_everything(bucket_url: str) -> None:
    """The connection to the holder is dead, and nobody is told: calls that are handed on over it end, and the log is
    asked for through the bucket. They waited as long as TCP sends again, about a quarter of an hour.
    """
    environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S), "ONCELOG_SERVE_SEAT_IDLE_S": "1000"}
    proxy = Proxy("127.0.0.1:1", seed=1, bytes_max=1 << 40)
    proxy.peaceful = True
    lost = Serving(bucket_url, ("--name", "lost", "--advertise", proxy.address), environment)
    proxy.lead_to(lost.grpc)
    with oncelog.connect(f"oncelog://{lost.grpc}") as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"first", id="first")
    other = Serving(bucket_url, ("--name", "other"), environment)
    try:
        writers = Writers(f"oncelog://{other.grpc}", ["orders"], 1)
        writers.acks["orders"]["first"] = 0
        writers.wait_for(5)
        proxy.swallow()
        writers.wait_for(5)
        writers.stop()
        assert check(bucket_url, writers) == writers.count
    finally:
        for server in (lost, other):
            server.end()
        proxy.close()
