"""A fleet over mutual TLS, on a quorum, with queues in PostgreSQL, and with a holder that loses its bucket."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import oncelog
from oncelog import inner
from oncelog.client.channel import Channel
from oncelog.client.database import servers as servers_of
from oncelog.clock import SYSTEM
from oncelog.errors import NotFound, OncelogError, Unavailable
from oncelog.format import frame
from oncelog.log.stored import secrets as log_secrets
from oncelog.server.security import token_object, tokens
from tests.server import certificates
from tests.server.clients import Wire, record
from tests.server.fleet.conftest import started
from tests.server.fleet.test_fleet import Patient, holder, patient_session
from tests.server.fleet.test_fleet_faults import BEAT_S, Writers, check
from tests.server.proxy import Proxy
from tests.servers import Serving

if TYPE_CHECKING:
    from benchmarks.seaweedfs import SeaweedFS
    from oncelog.storage.bucket.bucket import Bucket

_PAUSE = threading.Event()


class _Secure(Patient):
    """A client with a certificate."""

    def __init__(self, address: str, folder: Path, name: str) -> None:
        self.address = address
        files = [(folder / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem")]
        self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))


@pytest.mark.xdist_group("fleet")
def test_calls_are_handed_on_over_mutual_tls(bucket_url: str, tmp_path: Path) -> None:
    """The holder judges the caller by the names in the caller's certificate, whichever server was called: not by those
    of the server in between, which may do anything.
    """
    names = {"server": "DNS:localhost,IP:127.0.0.1", "writer": "URI:spiffe://shop/writer", "other": "DNS:other.example"}
    folder = certificates.make(tmp_path, names)
    config = tmp_path / "serve.toml"
    config.write_text('[mtls]\n"spiffe://shop/writer" = ["look,append,admin:shop/*"]\n')
    files = {"cert": "server.pem", "key": "server.key", "client-ca": "ca.pem"}
    tls = [f"--tls-{option}={folder / file}" for option, file in files.items()]
    environment = {"ONCELOG_SERVE_BEAT_S": "10", "ONCELOG_SERVE_TLS_FLEET_CA": str(folder / "ca.pem")}
    servers = [Serving(bucket_url, ("--name", name, *tls, "--config", str(config)), environment) for name in "ab"]
    try:
        with contextlib.ExitStack() as ending:
            wires = [ending.enter_context(_Secure(one.grpc, folder, "writer")) for one in servers]
            wires[0].call("Database.Create", name="shop/orders", kind="log", create=True)
            for number, wire in enumerate(wires * 2):
                [result] = wire.call("Log.Append", log="shop/orders", records=[record(b"v", id=str(number))]).results
                assert (result.ack.position, result.ack.duplicate) == (number, False), result
            found = {holder_over(wire) for wire in wires}
            assert len(found) == 1, "the log moved"
            for one in servers:
                with _Secure(one.grpc, folder, "other") as stranger, pytest.raises(OncelogError) as refused:
                    stranger.call("Log.Append", log="shop/orders", records=[record(b"v")])
                assert not isinstance(refused.value, Unavailable), refused.value
            for wire in wires:
                with pytest.raises(NotFound):
                    wire.call("Log.Append", log="other", records=[record(b"v")])
    finally:
        for one in servers:
            one.end()


@pytest.mark.xdist_group("fleet")
def test_servers_reach_each_other_with_renewed_certificates(bucket_url: str, tmp_path: Path) -> None:
    """All certificates and their authority are replaced, and the connection between the servers breaks: calls are
    handed on over gRPC and HTTP, as before. The servers believed the earlier authority alone until they were restarted.
    """
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        certificates.make(tmp_path / name, {"server": "DNS:localhost,IP:127.0.0.1"})
    files = [tmp_path / file for file in ("server.pem", "server.key", "ca.pem")]

    def install(name: str) -> None:
        for file in files:
            shutil.copyfile(tmp_path / name / file.name, file)

    install("old")
    tls = (f"--tls-cert={files[0]}", f"--tls-key={files[1]}")
    environment = {"ONCELOG_SERVE_BEAT_S": "10", "ONCELOG_SERVE_TLS_FLEET_CA": str(files[2])}
    proxy = Proxy("127.0.0.1:1", seed=1, bytes_max=1 << 40)
    proxy.peaceful = True
    servers = [Serving(bucket_url, ("--name", "a", "--advertise", proxy.address, *tls), environment)]
    proxy.lead_to(servers[0].grpc)
    servers.append(Serving(bucket_url, ("--name", "b", *tls), environment))
    try:
        url = f"oncelog+tls://{servers[0].grpc}"
        with oncelog.connect(url, options={"tls_ca": str(files[2])}) as db:
            log = _held_in(db, bucket_url, "a")
        assert _appended(servers[1], files[2], log, "1") == 1
        install("new")
        for server in servers:
            server.process.send_signal(signal.SIGHUP)
            _until(lambda: "were read again" in server.errors())  # noqa: B023 (called at once)
        proxy.restore()
        assert _appended(servers[1], files[2], log, "2") == 2
        context = ssl.create_default_context(cafile=str(files[2]))
        path = f"https://{servers[1].http}/v1/logs/{log}/records"
        with urllib.request.urlopen(urllib.request.Request(path, b"v"), timeout=120, context=context) as answer:
            assert json.loads(answer.read())["position"] == 3
        with oncelog.connect(bucket_url) as db:
            assert db.log(log)._holding().holder == ("a", 1), "the log moved"
    finally:
        for server in servers:
            server.end()
        proxy.close()


def _held_in(db: oncelog.Database, url: str, name: str) -> str:
    """Return a new log with one record that the server of this name holds."""
    with oncelog.connect(url) as stored:
        for number in range(50):
            log = f"log-{number}"
            with db.log(log, create=True).writer() as writer:
                writer.append(b"v", id="0")
            if stored.log(log)._holding().holder == (name, 1):
                return log
    pytest.fail("the server holds none of fifty logs")


def _appended(server: Serving, ca: Path, log: str, id: str) -> int:
    """Append a record through a server by one call; return its position."""
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    with Patient(server.grpc) as wire:
        wire.channel.close()
        wire.channel = grpc.secure_channel(server.grpc, credentials)
        return int(wire.call("Log.Append", log=log, records=[record(b"v", id=id)]).results[0].ack.position)


@pytest.mark.xdist_group("fleet")
def test_what_servers_share_and_callers_show_is_seen_nowhere(
    bucket: Bucket, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are handed on with the caller's token and a proof made with the fleet's key. Neither of them, nor a log's
    secret, is in an answer, an error, the metrics, a line of a server's log, or an object of the bucket but its own.
    """
    monkeypatch.setattr(Channel, "pause_s", lambda *_: math.inf)  # a client tries for 30 s: one attempt will do here
    with oncelog.connect(bucket_url) as db:
        place = token_object.TokenObject(inner.home(db, token_object.HOME))
        right = tokens.create(place, "writer", ["look,read,append,admin:*"], SYSTEM)
    wrong = f"once_{'Marked' * 7}A"
    servers = started(bucket_url, "ab", ONCELOG_SERVE_BEAT_S="10")
    try:
        told = [_told(server, token) for token in (right, wrong) for server in servers]
        assert "orders-0" in told[1]
        assert "NotAuthenticated" in told[2]
        servers[0].kill()
        told.append(_told(servers[1], right, tries=1))
        told += [server.errors() for server in servers]
    finally:
        for server in servers:
            server.end()
    objects = {path: bucket.get(path).to_pybytes() for path, _ in bucket.below("")}
    assert any("/beats/" in path for path in objects)
    kept = {path: data for path, data in objects.items() if "/secret/" in path}
    key = next(data for path, data in kept.items() if path.endswith("/secret/key"))
    of_logs = [secrets_of(data) for data in kept.values() if data[:4] == log_secrets.KIND]
    assert len(of_logs) >= LOGS
    marked = [right.encode(), wrong.encode(), right[5:].encode(), b"oncelog-hop"]
    for secret in (key, *of_logs):
        marked += [secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="), repr(secret).encode()]
    shown = {path: data for path, data in objects.items() if path not in kept}
    shown |= {f"what was told, {number}": text.encode() for number, text in enumerate(told)}
    assert [name for name, data in shown.items() for secret in marked if secret in data] == []


LOGS = 4
"""So many logs are spread over both servers: some of the calls are handed on."""


def secrets_of(data: bytes) -> bytes:
    """Return the secret in an object."""
    return bytes(frame.unwrap(log_secrets.KIND, log_secrets.VERSION, data, ""))


def _told(server: Serving, token: str, tries: int = 50) -> str:
    """Use a server over HTTP and gRPC; return all that it answers, errors too."""
    said = []
    for number in range(LOGS):
        path = f"/v1/logs/orders-{number}"
        calls: list[tuple[str, str, bytes | None]] = [("POST", "/v1/logs", b'{"name": "orders-%d"}' % number)]
        calls += [("POST", f"{path}/records?timeout_s={tries}", b"paid"), ("POST", f"{path}/find", b'{"id": "x"}')]
        calls += [("GET", path, None), ("GET", f"{path}/records", None)]
        said += [_said(server, token, call, tries) for call in calls]
    said += [_said(server, token, ("GET", path, None)) for path in ("/metrics", "/v1/logs", "/openapi.json", "/readyz")]
    with oncelog.connect(f"oncelog://{server.grpc}", options={"token": token}) as db:
        asks: list[Callable[[], str]] = [lambda: repr(db.log("orders-0").info()), lambda: repr(servers_of(db))]
        for ask in asks:
            try:
                said.append(ask())
            except OncelogError as error:
                said.append("".join(traceback.format_exception(error)))
    return "\n".join(said)


def _said(server: Serving, token: str, call: tuple[str, str, bytes | None], tries: int = 1) -> str:
    """Return the head and the body of an answer, of one that is not "later" if there is such a one."""
    method, path, body = call
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": '"x"'}
    request = urllib.request.Request(f"http://{server.http}{path}", body, headers, method=method)
    said = ""
    for _ in range(tries):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return f"{answer.headers}{answer.read().decode()}"
        except urllib.error.HTTPError as error:
            said = f"{error.headers}{error.read().decode()}"
            if error.code != 503:
                break
        _PAUSE.wait(0.2)
    return said


def holder_over(wire: Wire) -> str:
    """Return the name of the server that answers for the log."""
    stream = patient_session(wire, "shop/orders")
    name: str = stream.welcome.server.rpartition(" ")[2]
    stream.finish()
    return name


def _ready(server: Serving) -> bool:
    try:
        with urllib.request.urlopen(f"http://{server.http}/readyz", timeout=60) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


def _until(wanted: Any) -> None:
    for _ in range(1200):
        if wanted():
            return
        _PAUSE.wait(0.1)
    pytest.fail("it did not happen within two minutes")


@pytest.mark.soak
def test_a_holder_that_loses_its_bucket_gives_way(bucket_url: str, seaweedfs: SeaweedFS) -> None:
    """The bucket is gone for the holder alone, which every client and server still reaches: it refuses, the clients go
    on at the others, and what it had taken and not stored is not lost. When the bucket is back, it serves again.
    """
    proxy = Proxy(seaweedfs.endpoint.removeprefix("http://"), seed=1, bytes_max=1 << 40)
    proxy.peaceful = True
    environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}
    cut = Serving(bucket_url, ("--name", "a"), environment | {"AWS_ENDPOINT_URL": f"http://{proxy.address}"})
    servers = [cut, *started(bucket_url, "bc", **environment)]
    try:
        url = "oncelog://" + ",".join(server.grpc for server in servers)
        log = _held_by(cut, url, "a")
        writers = Writers(url, [log], 4)
        writers.wait_for(5)
        proxy.swallow()
        _until(lambda: not _ready(cut))
        writers.wait_for(20)
        with Patient(servers[1].grpc) as wire, Wire(cut.grpc) as lost:
            assert wire.call("Log.Append", log=log, records=[record(b"v", id="direct")]).results[0].ack.position > 0
            with pytest.raises(Unavailable) as refused:
                lost.call("Log.Append", log=log, records=[record(b"w", id="refused")])
            assert refused.value.outcome == "not written"
            writers.acks[log]["direct"] = wire.call("Log.Find", log=log, id="direct").ack.position
        proxy.restore()
        _until(lambda: _ready(cut))
        writers.wait_for(5)
        writers.stop()
        assert check(bucket_url, writers) == writers.count
    finally:
        for server in servers:
            server.end()
        proxy.close()


def _held_by(server: Serving, url: str, name: str) -> str:
    """Return a new log that this server holds."""
    with oncelog.connect(url) as db:
        for number in range(50):
            log = f"log-{number}"
            db.log(log, create=True)
            found = holder(server, log)
            if found is not None and found[0] == name:
                return log
    pytest.fail("the server holds none of fifty logs")


@pytest.mark.soak
def test_a_fleet_on_a_quorum_of_stores(bucket_url: str) -> None:
    """Three nodes and a store hold the log; its holder is killed, twice: 0 lost, 0 doubled."""
    nodes = [f"--node=n{number}={bucket_url}-node-{number}" for number in range(3)]
    command = [sys.executable, "-m", "oncelog.cli", "quorum", "create", f"{bucket_url}-store", *nodes]
    subprocess.run(command, check=True, capture_output=True)
    url = f"quorum:{bucket_url}-store"
    servers = dict(zip("abc", started(url, "abc", ONCELOG_SERVE_BEAT_S=str(BEAT_S)), strict=True))
    try:
        addresses = "oncelog://" + ",".join(server.grpc for server in servers.values())
        with oncelog.connect(addresses) as db:
            db.log("orders", create=True)
        writers = Writers(addresses, ["orders"], 3)
        for _ in range(2):
            writers.wait_for(10)
            with oncelog.connect(url) as db:
                name, _ = db.log("orders")._holding().holder or ("a", 0)
            servers[name].kill()
            writers.wait_for(10)
            servers[name].end()
            del servers[name]
        writers.stop()
        assert check(url, writers) == writers.count
    finally:
        for server in servers.values():
            server.end()


@pytest.mark.soak
def test_queues_of_a_fleet_survive_a_holder_that_is_killed(
    bucket_url: str, postgres_server: str, postgres_schema: str
) -> None:
    """Senders and consumers at three servers, the state in PostgreSQL; servers are killed: every message is handled,
    and none of them is acknowledged twice.
    """
    state = f"{postgres_server}{'&' if '?' in postgres_server else '?'}options=-csearch_path%3D{postgres_schema}"
    flags = {name: ("--name", name, "--queue-state", state) for name in "abc"}
    environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}
    servers = {name: Serving(bucket_url, flags[name], environment) for name in "abc"}
    try:
        url = "oncelog://" + ",".join(server.grpc for server in servers.values())
        with oncelog.connect(url) as db:
            db.queue("emails", create=True)
        working = _Working(url)
        for name in "ab":
            working.wait_for(20)
            servers[name].process.send_signal(signal.SIGKILL)
            servers[name].process.wait()
        working.wait_for(20)
        working.stop()
        assert working.sent
        assert set(working.acked) | working.doubtful >= set(working.sent), "lost"
        assert set(working.acked) <= set(working.sent), "of nobody"
        assert max(Counter(working.acked).values()) == 1, "acknowledged twice"
    finally:
        for server in servers.values():
            server.end()


def test_a_client_that_has_left_any_server_of_a_fleet_gets_no_message(
    bucket_url: str, postgres_server: str, postgres_schema: str
) -> None:
    """A server that hands a poll on ends it when its client leaves: the holder went on, and took the next message from
    those who wait, until its lease was over.
    """
    state = f"{postgres_server}{'&' if '?' in postgres_server else '?'}options=-csearch_path%3D{postgres_schema}"
    environment = {"ONCELOG_SERVE_BEAT_S": str(BEAT_S)}
    servers = [Serving(bucket_url, ("--name", name, "--queue-state", state), environment) for name in "ab"]
    try:
        with oncelog.connect("oncelog://" + ",".join(server.grpc for server in servers)) as db:
            queue = db.queue("emails", create=True)
            queue.send(b"first")  # the queue has a holder now
            for server, group in zip(servers, ("one", "two"), strict=True):
                host, _, port = server.http.rpartition(":")
                body = json.dumps({"group": group, "start": "latest", "timeout_s": 30, "ack_timeout_s": 600}).encode()
                head = f"POST /v1/queues/emails/receive HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
                with socket.create_connection((host, int(port))) as leaving:
                    leaving.sendall(head.encode() + b"\r\n\r\n" + body)
                    while group not in queue.groups():  # until the poll has begun
                        pass
            queue.send(b"second")
            for group in ("one", "two"):
                with queue.consume(group) as consumer:
                    [found] = consumer.receive(timeout_s=25)
                    assert (found.value, found.attempts) == (b"second", 1)
                    found.ack()
    finally:
        for server in servers:
            server.end()


class _Working:
    """One thread that sends, and two that handle."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent: list[str] = []
        self.acked: list[str] = []
        self.doubtful: set[str] = set()
        """Nobody knows whether they were acknowledged; if they were not, they come again."""
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._send, self._handle)]
        self._threads.append(threading.Thread(target=self._guarded, args=(self._handle,)))
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            with oncelog.connect(self._url) as db:
                work(db)
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            self.errors.append(error)
        with self._changed:
            self._changed.notify_all()

    def _send(self, db: oncelog.Database) -> None:
        number = 0
        while not self._over.is_set():
            id = f"{os.getpid()}-{number}"
            while True:
                try:
                    db.queue("emails").send(id.encode(), id=id, timeout_s=5)
                    break
                except (Unavailable, oncelog.LogBusy, oncelog.WriterFenced):
                    _PAUSE.wait(0.1)
            self.sent.append(id)
            number += 1
            _PAUSE.wait(0.02)

    def _handle(self, db: oncelog.Database) -> None:
        while not self._is_over():
            with contextlib.suppress(OncelogError), db.queue("emails").consume("workers", ack_timeout_s=5) as consumer:
                while not self._is_over():
                    for delivery in consumer.receive(10, timeout_s=1):
                        self._settle(delivery)

    def _is_over(self) -> bool:
        return self._over.is_set() and set(self.acked) | self.doubtful >= set(self.sent)

    def _settle(self, delivery: Any) -> None:
        value = delivery.value.decode()
        try:
            delivery.ack()
        except oncelog.LeaseLost:
            return  # it comes again, or another has it
        except Unavailable as error:
            if error.outcome == "unknown":
                self.doubtful.add(value)
            raise
        self._count(value)

    def _count(self, value: str) -> None:
        with self._changed:
            self.acked.append(value)
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.acked) + more
        with self._changed:
            assert self._changed.wait_for(lambda: self.errors or len(self.acked) >= wanted, 300), "no progress"
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """Send no more, and handle what was sent."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
