"""Who may do what at a real server: every route and method, by every verb; and no secret anywhere."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from oncelog.server.http.routes import ROUTES, Route
from oncelog.server.security import tokens, verbs
from oncelog.server.security.scopes import VERBS
from oncelog.wire import frames, messages
from oncelog.wire.frames import Kind, Raw
from oncelog.wire.methods import METHODS
from tests.server.http.conftest import Guarded

JUDGED = [route for route in ROUTES if route.verb is not None and route.kind != "server"]
_ANY = {"if-match": "*"}
_BODIES: dict[str, dict[str, Any]] = {
    "find": {"id": "x", "stream": "s"},
    "truncate": {"before": 0}, "ack": {"leases": []}, "nack": {"leases": [], "reason": "r"},
    "extend": {"leases": [], "seconds": 1}, "discard": {"positions": []}, "redrive": {"positions": []},
}  # fmt: skip


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Yield a server with a log of streams ``t/x``, a queue ``t/x``, and one token a verb on ``t/*``.

    It is no other's: so many logins fail here that the next one from this address is answered 429.
    """
    guarded = Guarded(tmp_path_factory.mktemp("subjects"))
    with guarded.client(guarded.operator) as client:
        assert client.post("/v1/logs", json={"name": "t/x", "streams": True}).status_code == 201
        assert client.post("/v1/queues", json={"name": "t/x"}).status_code == 201
        assert client.post("/v1/streams/t%2Fx/s", content=b"first").status_code == 201
        assert client.post("/v1/queues/t%2Fx/receive").status_code == 200
        # Settings that change close the segment, which can be sealed then: there is a file to download.
        assert client.patch("/v1/logs/t%2Fx/settings", json={"retention_s": 1e9}, headers=_ANY).status_code == 200
        assert client.post("/v1/logs/t%2Fx/seal").status_code == 200
        assert client.get("/v1/logs/t%2Fx/files").json() != []
    yield guarded
    guarded.server.end()


@pytest.fixture(scope="module")
def by_verb(subjects: Guarded) -> dict[str, str]:
    """Return a token for each verb on ``t/*``, and one that has all of them elsewhere."""
    found = {verb: subjects.token(f"only-{verb}", f"{verb}:t/*") for verb in VERBS}
    return found | {"elsewhere": subjects.token("elsewhere", "look,read,append,consume,admin:other/*")}


@pytest.fixture(scope="module")
def clients(subjects: Guarded, by_verb: dict[str, str]) -> Iterator[dict[str | None, httpx.Client]]:
    """Yield a client for each token, for one that nobody has, and for none."""
    with contextlib.ExitStack() as ending:
        wanted = [*by_verb.values(), "once_" + "x" * 43, None]
        yield {token: ending.enter_context(subjects.client(token)) for token in wanted}


@pytest.fixture(scope="module")
def channel(subjects: Guarded) -> Iterator[Any]:
    """Yield a gRPC channel to the server."""
    with grpc.insecure_channel(subjects.server.grpc) as made:
        yield made


def _call(client: httpx.Client, route: Route) -> httpx.Response:
    """Call a route about ``t/x``."""
    path = route.template.text
    for name, value in (("log", "t%2Fx"), ("queue", "t%2Fx"), ("stream", "s"), ("position", "0"), ("first", "0")):
        path = path.replace(f"{{{name}}}", value)
    last = path.rpartition("/")[2]
    body = {"name": "t/x"} if route.subject == "body" else _BODIES.get(last)
    if route.method == "DELETE":
        path = path.replace("t%2Fx", "t%2Fnone")
    if last in ("tail", "subscribe", "events"):
        with client.stream(route.method, path) as response:
            return response
    content = b"v" if last in ("records", "messages", "s") and route.method == "POST" else None
    return client.request(route.method, path, json=body, content=content)


def _granted(verb: str, needed: str) -> bool:
    return verb == needed or (verb, needed) == ("read", "look")


@pytest.mark.parametrize("route", JUDGED, ids=lambda route: f"{route.method} {route.template.text}")
def test_every_route_by_every_verb(
    clients: dict[str | None, httpx.Client], by_verb: dict[str, str], route: Route
) -> None:
    """403 with another verb, 404 with another namespace, 401 without a token; with the verb neither."""
    assert route.verb is not None
    for verb in VERBS:
        status = _call(clients[by_verb[verb]], route).status_code
        if _granted(verb, route.verb):
            assert status not in (401, 403), (verb, status)
            assert status != 404 or route.method == "DELETE", (verb, status)
        else:
            assert status == 403, (verb, status)
    assert _call(clients[by_verb["elsewhere"]], route).status_code == 404
    for unknown in (None, "once_" + "x" * 43):
        assert _call(clients[unknown], route).status_code in (401, 429)


def test_a_hidden_name_and_a_missing_one_look_the_same(subjects: Guarded, by_verb: dict[str, str]) -> None:
    """Byte for byte: a tenant cannot learn which names another one has."""
    with subjects.client(by_verb["elsewhere"]) as client:
        for path in ("/v1/logs/{}", "/v1/logs/{}/records", "/v1/queues/{}/stats", "/v1/streams/{}/s"):
            hidden, missing = client.get(path.format("t%2Fx")), client.get(path.format("t%2Fz"))
            assert (hidden.status_code, hidden.text) == (404, missing.text.replace("t/z", "t/x"))
        for path in ("/v1/logs/{}/records", "/v1/queues/{}/messages", "/v1/streams/{}/s"):
            hidden, missing = (client.post(path.format(name), content=b"v") for name in ("t%2Fx", "t%2Fz"))
            assert (hidden.status_code, hidden.text) == (404, missing.text.replace("t/z", "t/x"))
    with subjects.client(subjects.token("same-place", "look,read,append,consume,admin:other/*", "read:t/z")) as client:
        hidden, missing = client.get("/v1/logs/t%2Fx"), client.get("/v1/logs/t%2Fz")
        assert (hidden.status_code, hidden.text) == (404, missing.text.replace("t/z", "t/x"))


def test_lists_show_what_may_be_looked_at(subjects: Guarded, by_verb: dict[str, str]) -> None:
    """Neither other tenants' names nor the server's own logs."""
    with subjects.client(by_verb["look"]) as client:
        assert client.get("/v1/logs").json()["names"] == ["queue/t/x/0", "t/x"]
        assert client.get("/v1/queues").json()["names"] == ["t/x"]
    with subjects.client(by_verb["elsewhere"]) as client:
        assert client.get("/v1/logs").json()["names"] == []
    with subjects.client(subjects.operator) as client:
        assert "_audit" in client.get("/v1/logs").json()["names"]


# gRPC.

_REQUESTS: dict[str, Any] = {
    "Log.Configure": messages.ConfigureRequest(name="t/x", settings=b"{"),
    "Queue.Configure": messages.ConfigureRequest(name="t/x", settings=b"{"),
    "Database.Create": messages.CreateRequest(name="t/x", kind="log", create=True),
    "Database.Delete": messages.DeleteRequest(name="t/none", kind="log"),
    "Database.Take": messages.LogRequest(log="t/x"),
    "Database.Watch": messages.WatchRequest(log="t/x"),
    "Log.Write": messages.WriteRequest(hello=messages.Hello(version=1, session=b"s" * 16, log="t/x")),
    "Queue.Consume": messages.ConsumeRequest(open=messages.OpenConsumer(queue="t/x", session=b"s" * 16)),
}


def _requests(method: str) -> Iterator[Any]:
    if method in _REQUESTS:
        yield _REQUESTS[method]
        return
    kind = verbs.METHODS[method]
    service, name = method.split(".")
    described = messages.FILE.services_by_name[service].methods_by_name[name].input_type.name
    yield messages.CLASSES[described](**{kind.field: "t/x"})


def _code(channel: Any, method: str, token: str | None) -> str:
    """Call a gRPC method about ``t/x``; return the name of the code of its answer, or of its first one."""
    found = METHODS[method]
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    shape = f"{'stream' if found.client_streams else 'unary'}_{'stream' if found.server_streams else 'unary'}"
    call = getattr(channel, shape)(found.path, found.encode_request, found.decode_response)
    request = _requests(method) if found.client_streams else next(_requests(method))
    try:
        answer = call(request, timeout=30, metadata=metadata)
        if found.server_streams:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


RAW = {"Log.WriteArrow", "Log.Stage", "Log.ReadArrow", "Log.Follow"}
"""Methods whose messages are no protobuf; their first request is judged as that of their twin."""


def _follow_error(channel: Any, sent: Raw, token: str) -> str:
    """Follow a log by a stream that may follow others, too; return the kind of the error that ends this tail."""
    call = channel.stream_stream(METHODS["Log.Follow"].path)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    requests.put(frames.pack(sent))
    answers = call(iter(requests.get, None), timeout=30, metadata=[("authorization", f"Bearer {token}")])
    answer = next(raw for raw in map(frames.unpack, answers) if raw.tag)  # 0 says that the stream is alive
    requests.put(None)
    answers.cancel()
    assert (answer.kind, answer.tag) == (Kind.ERROR, sent.tag)
    return str(messages.Error.FromString(bytes(answer.body)).kind)


@pytest.mark.parametrize(
    ("kind", "request_class"), [(Kind.FOLLOW, messages.ReadRequest), (Kind.SUBSCRIBE, messages.SubscribeRequest)]
)
def test_each_tail_of_a_stream_is_judged_by_itself(
    channel: Any, by_verb: dict[str, str], kind: Kind, request_class: Any
) -> None:
    """A stream is open for many logs: the right to read is asked for each. Here the log is another one of its name, so
    a caller who may read it is told that.
    """
    sent = Raw(kind, request_class(log="t/x", log_id="another").SerializeToString(), 7)
    for verb in VERBS:
        expected = "NotFound" if _granted(verb, "read") else "NotAllowed"
        assert _follow_error(channel, sent, by_verb[verb]) == expected, verb
    assert _follow_error(channel, sent, by_verb["elsewhere"]) == "NotFound"


@pytest.mark.parametrize("method", sorted(set(verbs.METHODS) - verbs.LISTING - RAW - {"Database.Policy"}))
def test_every_grpc_method_by_every_verb(channel: Any, by_verb: dict[str, str], method: str) -> None:
    """PERMISSION_DENIED, NOT_FOUND and UNAUTHENTICATED where HTTP says 403, 404 and 401."""
    needed = verbs.METHODS[method].verb
    for verb in VERBS:
        code = _code(channel, method, by_verb[verb])
        if _granted(verb, needed):
            assert code not in ("PERMISSION_DENIED", "UNAUTHENTICATED"), (verb, code)
        else:
            assert code == "PERMISSION_DENIED", (verb, code)
    assert _code(channel, method, by_verb["elsewhere"]) == "NOT_FOUND"
    assert _code(channel, method, None) in ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("method", sorted(verbs.SERVERS))
def test_what_servers_call_of_each_other_needs_more_than_a_token(channel: Any, subjects: Guarded, method: str) -> None:
    """An operator's token allows everything, and not this."""
    assert _code(channel, method, subjects.operator) == "PERMISSION_DENIED"
    assert _code(channel, method, None) == "PERMISSION_DENIED"


# Audit.


def test_an_admin_verb_is_in_the_audit_log_before_it_is_done(subjects: Guarded, channel: Any) -> None:
    """Over both faces: who, from where, what, to what; also when it then failed. Nobody can write there."""
    with subjects.client(subjects.operator) as client:
        client.post("/v1/logs", json={"name": "audited", "settings": {"on_conflict": "original"}})
        client.post("/v1/logs/audited/truncate", json={"before": 99})
        _code(channel, "Log.Truncate", subjects.operator)
        lines = client.get("/v1/logs/_audit/records?limit=1000", headers={"accept": "application/x-ndjson"}).text
        acts = [json.loads(json.loads(line)["value"]) for line in lines.splitlines()]
        made = next(act for act in acts if act["name"] == "audited" and act["act"] == "logs_create")
        assert (made["who"], made["by"]) == ("operator", "token")
        assert made["peer"].startswith("127.0.0.1:")
        assert made["details"] == {"settings": {"on_conflict": "original"}}
        truncated = [act for act in acts if act["act"] == "logs_truncate" and act["name"] == "audited"]
        assert [(act["details"], "failed" in act) for act in truncated] == [
            ({"before": 99}, False),
            ({"before": 99}, True),
        ]
        assert any(act["act"] == "Log.Truncate" and act["name"] == "t/x" for act in acts)
        for method, path in (("POST", "/v1/logs/_audit/records"), ("DELETE", "/v1/logs/_audit")):
            assert client.request(method, path).status_code == 403
    with subjects.client(subjects.token("reader-of-all", "read,append:*")) as client:
        assert client.get("/v1/logs/_audit/records").status_code == 404


# Secrets.


def test_no_secret_is_in_logs_metrics_errors_or_the_audit(subjects: Guarded) -> None:
    """A token that is used well, badly, and in the wrong place is shown nowhere."""
    secret = subjects.token("careful", "admin,read:secretive")
    wrong = "once_" + "w" * 43
    shown: list[str] = []
    with subjects.client(secret) as client:
        shown.append(client.post("/v1/logs", json={"name": "secretive"}).text)
        shown.append(client.get("/v1/logs/secretive").text)
        shown.append(client.get("/v1/logs/none").text)
        misplaced = client.get("/v1/logs/secretive/records", params={"token": secret})
        assert misplaced.status_code == 400
        shown.append(misplaced.text)
    with subjects.client(wrong) as client:
        shown.append(client.get("/v1/logs/secretive").text)
    with subjects.client(subjects.operator) as client:
        shown.append(client.get("/metrics").text)
        shown.append(client.get("/v1/logs/_audit/records?limit=1000").text)
    shown.append(subjects.server.errors())
    shown.append(subjects.path.read_text())
    for text in shown:
        for token in (secret, wrong, subjects.operator):
            assert token not in text
            assert token.removeprefix("once_") not in text
    for text in shown[:-1]:
        assert tokens.digest(secret) not in text


def test_a_revoked_token_ends_at_once_and_so_do_its_streams(guarded: Guarded) -> None:
    """The next call is refused; a gRPC stream ends with its next message."""
    secret = guarded.token("short-lived", "read,append:t/x")
    with guarded.client(guarded.operator) as client:
        assert client.post("/v1/logs", json={"name": "t/x", "streams": True}).status_code == 201
        assert client.post("/v1/streams/t%2Fx/s", content=b"first").status_code == 201
    with guarded.client(secret) as client:
        assert client.get("/v1/logs/t%2Fx/records").status_code == 200
        method = METHODS["Log.Read"]
        with grpc.insecure_channel(guarded.server.grpc) as channel:
            call = channel.unary_stream(method.path, method.encode_request, method.decode_response)
            request = messages.ReadRequest(log="t/x", start=messages.Start(word="earliest"), follow=True)
            following = call(request, timeout=60, metadata=[("authorization", f"Bearer {secret}")])
            next(following)  # it was admitted
            tokens.revoke(guarded.path, "short-lived")
            assert client.get("/v1/logs/t%2Fx/records").status_code == 401
            with guarded.client(guarded.operator) as operator, pytest.raises(grpc.RpcError) as ended:
                _append_until_it_ends(operator, following)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


def _append_until_it_ends(operator: httpx.Client, following: Iterator[Any]) -> None:
    while True:
        operator.post("/v1/streams/t%2Fx/s", content=b"more")
        next(following)


def test_metrics_off_loopback_are_not_for_everybody(subjects: Guarded) -> None:
    """On loopback Prometheus needs no token; names of logs are labels, so elsewhere it does."""
    with subjects.client(subjects.operator) as operator:
        assert operator.get("/v1/logs/t%2Fx").status_code == 200
    method = METHODS["Log.Info"]
    with grpc.insecure_channel(subjects.server.grpc) as channel:
        call = channel.unary_unary(method.path, method.encode_request, method.decode_response)
        call(messages.LogRequest(log="t/x"), timeout=60, metadata=[("authorization", f"Bearer {subjects.operator}")])
    with subjects.client(None) as client:
        found = client.get("/metrics")
        for header in ("x-forwarded-for", "x-real-ip", "forwarded", "via"):
            passed_on = client.get("/metrics", headers={header: "192.0.2.1"})
            assert passed_on.status_code in (401, 429), "a proxy on this machine passes on what comes from anywhere"
    assert found.status_code == 200
    assert 'oncelog_rpc_seconds_count{call="GET /v1/logs/{log}"' in found.text
    assert 'face="grpc"' in found.text


@pytest.mark.parametrize("body", [b"token=" + b"x" * 100_000, b"\xff", b"--x\r\n"])
def test_a_login_that_is_no_form_is_told_so(subjects: Guarded, body: bytes) -> None:
    """The page is for everybody: what anybody posts is no error of the server, and no traceback in its log."""
    base = f"http://{subjects.server.http}"
    with httpx.Client(base_url=base, timeout=60) as client:
        found = client.post("/console/login", content=body, headers={"origin": base})
    assert found.status_code == 400
    assert "form" in found.text
    assert "Traceback" not in subjects.server.errors()
