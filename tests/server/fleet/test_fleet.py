"""Several servers on one bucket: any of them serves any log, and a log stays where it is held."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.error
import urllib.request
from typing import Any

import grpc
import pytest

import oncelog
from oncelog import inner
from oncelog.errors import NotAllowed, NotFound, Unavailable
from oncelog.log import inner as log_inner
from oncelog.log.open_writer import Term
from oncelog.server.fleet.fleet import placing_key
from oncelog.server.fleet.hop import GRPC_KEY, HTTP_HEADER
from oncelog.wire import messages
from oncelog.wire.methods import METHODS
from tests.server.clients import Wire, WriteSession, error_of, record
from tests.servers import Serving

pytestmark = pytest.mark.xdist_group("fleet")  # one fleet for all of them, not one in each worker


class Patient(Wire):
    """A client that asks again when it was told that nothing was written: servers that are busy take long to reach."""

    def call(self, key: str, request: Any = None, **fields: Any) -> Any:
        """Call until there is an answer."""
        for _ in range(_TRIES):
            try:
                return super().call(key, request, **fields)
            except Unavailable as error:
                if error.outcome != "not written":
                    raise
                _PAUSE.wait(0.2)
        return super().call(key, request, **fields)


_TRIES = 100
_PAUSE = threading.Event()


def patient_session(wire: Wire, log: str, session: bytes | None = None) -> WriteSession:
    """Open a write stream, as soon as the holder can be reached."""
    for _ in range(_TRIES):
        try:
            return WriteSession(wire, log, session)
        except (Unavailable, oncelog.LogBusy):
            _PAUSE.wait(0.2)
    return WriteSession(wire, log, session)


@pytest.fixture
def log(fleet: list[Serving]) -> str:
    """Return a new log of the fleet."""
    name = f"log-{os.urandom(8).hex()}"
    with Patient(fleet[0].grpc) as wire:
        wire.call("Database.Create", name=name, kind="log", create=True)
    return name


def holder(server: Serving, log: str) -> tuple[str, int] | None:
    """Return who holds a log, as the server that was asked reports its epoch and name."""
    with Patient(server.grpc) as wire:
        stream = patient_session(wire, log)
        name, epoch = stream.welcome.server.rpartition(" ")[2], stream.welcome.epoch
        stream.finish()
        return name, epoch


def test_requests_sprayed_over_all_servers_move_nothing(fleet: list[Serving], log: str) -> None:
    """A balancer sends each request to another server: one writer serves them all, and its epoch stays."""
    before = None
    for number in range(12):
        with Patient(fleet[number % 3].grpc) as wire:
            [result] = wire.call("Log.Append", log=log, records=[record(b"v", id=str(number))]).results
            assert (result.ack.position, result.ack.duplicate) == (number, False), result
            [again] = wire.call("Log.Append", log=log, records=[record(b"v", id="0")]).results
            assert (again.ack.position, again.ack.duplicate) == (0, True)
        found = holder(fleet[number % 3], log)
        assert before in (None, found), "the log moved"
        before = found


def test_logs_that_are_written_through_one_server_are_spread(fleet: list[Serving], seaweedfs: Any) -> None:
    """The client looks at a log before it writes to it: the look must not make the server that was asked its holder."""
    holders = set()
    with (
        oncelog.connect(f"oncelog://{fleet[0].grpc}") as db,
        oncelog.connect(fleet[0].url, options=seaweedfs.options) as stored,
    ):
        for _ in range(16):
            name = f"log-{os.urandom(8).hex()}"
            with db.log(name, create=True).writer() as writer:
                writer.append(b"v", id="1")
            holders.add(stored.log(name)._holding().holder)
    assert len(holders) > 1, holders


def test_looking_from_everywhere_moves_nothing(fleet: list[Serving], log: str) -> None:
    """Finding, reading and asking are answered by any server, with what the holder knows."""
    with Patient(fleet[1].grpc) as wire:
        both = [record(b"v", id="x"), record(b"w", producer="p", sequence=7)]
        assert [one.ack.position for one in wire.call("Log.Append", log=log, records=both).results] == [0, 1]
    before = holder(fleet[1], log)
    for server in fleet * 2:
        with Patient(server.grpc) as wire:
            assert wire.call("Log.Find", log=log, id="x").HasField("ack")
            assert not wire.call("Log.Find", log=log, id="y").HasField("ack")
            assert json.loads(wire.call("Log.Producers", log=log).json)["p"][:2] == [7, 1]
            assert json.loads(wire.call("Log.Info", log=log).json)["counters"]["attempts"] == 2
            [entries] = wire.answers("Log.Read", log=log)
            assert [entry.record.value for entry in entries.entries] == [b"v", b"w"]
    assert holder(fleet[0], log) == before


def test_a_session_goes_on_over_another_server(fleet: list[Serving], log: str) -> None:
    """The session lives at the holder: a client that is cut off from one server resumes over the next, without ids."""
    session = os.urandom(16)
    for number, server in enumerate(fleet):
        with Patient(server.grpc) as wire:
            stream = patient_session(wire, log, session)
            held_here = stream.welcome.server.endswith(f" {'abc'[number]}")
            assert stream.welcome.HasField("holder") != held_here, "only who is not there is told where to go"
            assert held_here or stream.welcome.holder in {other.grpc for other in fleet if other is not server}
            assert stream.welcome.resumed == (number > 0)
            assert stream.welcome.last_tag == number
            for tag in range(1, number + 2):  # those before it, again
                stream.send(tag, record(b"frame %d" % tag))
                assert [ack.position for ack in stream.answer()[1]] == [tag - 1]
            stream.cut()


def _http(server: Serving, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Call until the answer is not "later"."""
    for _ in range(_TRIES):
        status, found = _http_once(server, method, path, body, headers)
        if status != 503:
            break
        _PAUSE.wait(0.2)
    return status, found


def _http_once(server: Serving, method: str, path: str, body: bytes | None, headers: Any) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{server.http}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            data = response.read()
            return response.status, json.loads(data) if data else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_http_requests_are_handed_on(fleet: list[Serving], log: str) -> None:
    """The same over HTTP: appends, conflicts, streams of lines, and what the holder knows, at any server."""
    path = f"/v1/logs/{log}/records"
    for number, server in enumerate(fleet):
        status, found = _http(server, "POST", path, b"paid", **{"Idempotency-Key": f'"k{number}"'})
        assert (status, found["position"]) == (201, number)
        status, found = _http(server, "POST", path, b"paid", **{"Idempotency-Key": '"k0"'})
        assert (status, found["duplicate"]) == (200, True)
        status, found = _http(server, "POST", path, b"other", **{"Idempotency-Key": '"k0"'})
        assert (status, found["position"]) == (422, 0)
        status, found = _http(server, "POST", f"/v1/logs/{log}/find", b'{"id": "k0"}')
        assert (status, found["ack"]["position"]) == (200, 0)
    lines = b"".join(b'{"value": "v", "id": "line-%d"}\n' % number for number in range(1000))
    for server in fleet:
        status, found = _http(server, "POST", path, lines, **{"Content-Type": "application/x-ndjson"})
        assert status in (200, 201), found
        assert len(found["results"]) == 1000
    status, found = _http(fleet[2], "GET", f"/v1/logs/{log}")
    assert (status, found["last_position"]) == (200, 1002)
    assert _http(fleet[1], "POST", "/v1/logs/none/records", b"x")[0] == 404


def test_a_client_cannot_say_that_it_is_a_server(fleet: list[Serving], log: str) -> None:
    """A call that claims to be handed on, without proof, is not served: it may be of another fleet, and about a log of
    another database. Only servers may give logs away.
    """
    with Patient(fleet[0].grpc) as wire:
        with pytest.raises(NotAllowed):
            wire.call("Database.Take", log=log)
        method = METHODS["Log.Append"]
        call = wire.channel.unary_unary(method.path, method.encode_request, method.decode_response)
        request = messages.AppendRequest(log=log, records=[record(b"v")])
        with pytest.raises(grpc.RpcError, match="not of this fleet") as refused:
            call(request, metadata=((GRPC_KEY, b"x" * 64),), timeout=120)
        error = error_of(refused.value)
        assert isinstance(error, Unavailable)
        assert error.outcome == "not written"
    headers = {HTTP_HEADER: "00" * 64}
    status, found = _http_once(fleet[0], "POST", f"/v1/logs/{log}/records", b"v", headers)
    assert (status, found["outcome"]) == (421, "not written")


def test_http_requests_follow_a_log_that_has_moved(fleet: list[Serving], log: str, seaweedfs: Any) -> None:
    """A server that handed a request on, and was told that the log is elsewhere now, looks where it is: it handed every
    later request to the same server, for ever.
    """
    path = f"/v1/logs/{log}/records"
    with Patient(fleet[0].grpc) as wire:
        wire.call("Log.Append", log=log, records=[record(b"v", id="0")])
    found = holder(fleet[0], log)
    assert found is not None
    at = "abc".index(found[0])
    asked, next_holder = fleet[(at + 1) % 3], "abc"[(at + 2) % 3]
    assert _http(asked, "POST", path, b"v", **{"Idempotency-Key": '"1"'})[0] == 201
    with oncelog.connect(fleet[0].url, options=seaweedfs.options) as db:
        term = Term(holder=(next_holder, 1), tenure_s=1.0)
        writer = log_inner.hold(db.log(log), term, 0.0, ask=False)  # as the third server would take it
        _http(asked, "POST", path, b"v", **{"Idempotency-Key": '"2"'})  # the holder may notice by it that it is none
        assert _http(asked, "POST", path, b"v", **{"Idempotency-Key": '"2"'})[0] in (200, 201)
        with contextlib.suppress(oncelog.OncelogError):
            writer.close()
    now = holder(asked, log)
    assert now is not None
    assert now[0] == next_holder


def test_a_deleted_log_is_gone_everywhere(fleet: list[Serving], log: str) -> None:
    """The holder lets go and deletes, whichever server is asked; the others do not go on."""
    with Patient(fleet[0].grpc) as wire:
        wire.call("Log.Append", log=log, records=[record(b"v")])
    with Patient(fleet[1].grpc) as wire:
        wire.call("Database.Delete", name=log, kind="log")
    for server in fleet:
        with Patient(server.grpc) as wire, pytest.raises(NotFound):
            wire.call("Log.Append", log=log, records=[record(b"v")])


def test_the_servers_are_listed(fleet: list[Serving]) -> None:
    """Each server shows itself, with its addresses, among those that it has seen."""
    for server in fleet:
        with Patient(server.grpc) as wire:
            found = {one["name"]: one for one in json.loads(wire.call("Database.Servers").json)}
        name = "abc"[fleet.index(server)]
        assert (found[name]["grpc"], found[name]["http"], found[name]["state"]) == (server.grpc, server.http, "living")


def test_the_python_client_takes_several_addresses(fleet: list[Serving], log: str) -> None:
    """An address at which nobody listens is passed over, by writers, readers and everything else."""
    nobody = "127.0.0.1:1"
    with oncelog.connect(f"oncelog://{nobody},{fleet[0].grpc},{fleet[2].grpc}") as db:
        assert log in db.logs()
        with db.log(log).writer() as writer:
            assert writer.append(b"paid", id="1").position == 0
            assert writer.append(b"paid", id="1").duplicate
        assert [entry.value for entry in db.log(log).read()] == [b"paid"]


def test_logs_of_one_queue_are_placed_together() -> None:
    """One server sends and buries for all partitions of a queue."""
    keys = {placing_key(f"queue/shop/emails/{number}", f"{number}") for number in range(4)}
    assert keys == {placing_key("queue/dlq.shop/emails/0", "9")} == {"queue shop/emails"}
    assert placing_key("orders", "id") == "id"


def _position(wire: Wire, log: str, id: str) -> int | None:
    """Return where a record was stored; ``None`` when the server could not store it now."""
    try:
        [result] = wire.call("Log.Append", log=log, records=[record(b"yours", id=id)]).results
    except Unavailable:
        return None
    return int(result.ack.position)


def test_an_embedded_process_is_asked(fleet: list[Serving], log: str, seaweedfs: Any) -> None:
    """A process that is no server lets its log go when a server needs it, and is not robbed."""
    with oncelog.connect(fleet[0].url, options=seaweedfs.options) as db:
        writer = db.log(log).writer()
        assert writer.append(b"mine", id="1").position == 0
        with Patient(fleet[0].grpc) as wire:
            position = next(filter(None, (_position(wire, log, "2") for _ in range(60))))
        assert position == 1
        assert writer._has_ended
        with pytest.raises(oncelog.WriterFenced):
            writer.append(b"late", id="3")


def test_a_call_for_another_server_is_refused(fleet: list[Serving], log: str, seaweedfs: Any) -> None:
    """An address that leads to the wrong server (a port that was given again) does no harm: nothing is written."""
    from oncelog.server.fleet import members
    from oncelog.server.fleet.hop import Hop, seal

    with oncelog.connect(fleet[0].url, options=seaweedfs.options) as db:
        key = inner.home(db, members.HOME).read("secret/key").to_pybytes()
    method = METHODS["Log.Append"]
    with Patient(fleet[0].grpc) as wire:
        call = wire.channel.unary_unary(method.path, method.encode_request, method.decode_response)
        request = messages.AppendRequest(log=log, records=[record(b"v")])
        with pytest.raises(Exception, match="meant") as refused:
            call(request, metadata=((GRPC_KEY, seal(key, Hop(("b", 1)))),), timeout=120)
        error = error_of(refused.value)
        assert isinstance(error, Unavailable)
        assert error.outcome == "not written"
