"""The OpenAPI document: valid, complete, and true."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator

from oncelog.server.http import openapi
from oncelog.server.http.routes import ROUTES


def test_a_validator_accepts_it() -> None:
    """Generators of clients refuse a document that is not valid."""
    document = json.loads(openapi.document_bytes())
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_every_route_is_in_it() -> None:
    """It is made from the table that requests are matched with; each operation has a name of its own."""
    document = openapi.document()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(route.method, route.template.text) for route in ROUTES}
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_every_name_in_a_path_can_come_in_the_query() -> None:
    """For proxies that decode ``%2F``, everywhere."""
    for route in ROUTES:
        assert {name for name in route.template.names if name} <= set(route.query), route.template.text


class Client:
    """A client that knows nothing of Oncelog but the document: it holds every answer against the document, too."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._document = http.get("/openapi.json").json()
        self._operations = {
            operation["operationId"]: (method, path, operation)
            for path, item in self._document["paths"].items()
            for method, operation in item.items()
        }
        self.called: set[str] = set()

    @property
    def operations(self) -> set[str]:
        """The names of all operations."""
        return set(self._operations)

    def call(self, name: str, body: Any = None, media: str = "application/json", **given: Any) -> Any:
        """Call an operation; return its answer, of which status, type and schema are as documented."""
        method, path, operation = self._operations[name]
        query: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for parameter in operation["parameters"]:
            value = given.pop(parameter["name"], None)
            if value is None:
                assert not parameter.get("required"), parameter
            elif parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
            else:
                {"query": query, "header": headers}[parameter["in"]][parameter["name"]] = value
        assert not given, f"{name} has no {given}"
        self.called.add(name)
        if body is not None:
            content = operation["requestBody"]["content"]
            assert media in content or "*/*" in content
            headers["content-type"] = media
        data = json.dumps(body).encode() if media == "application/json" and body is not None else body
        with self._http.stream(method.upper(), path, params=query, headers=headers, content=data) as response:
            return self._checked(operation, response)

    def _checked(self, operation: dict[str, Any], response: httpx.Response) -> Any:
        described = operation["responses"].get(str(response.status_code)) or operation["responses"]["default"]
        assert response.status_code < 400 or response.status_code in (409, 410, 412, 422), response.read()
        if "content" not in described:
            return None
        media = response.headers["content-type"].partition(";")[0]
        schema = described["content"][media]["schema"]
        if media == "text/event-stream":
            return None
        text = response.read().decode()
        if media == "application/json" or media.endswith("+json"):
            return self._valid(schema, json.loads(text))
        if media == "application/x-ndjson":
            return [self._valid(schema, json.loads(line)) for line in text.splitlines()]
        return text

    def _valid(self, schema: dict[str, Any], value: Any) -> Any:
        jsonschema.Draft202012Validator(schema | {"components": self._document["components"]}).validate(value)
        return value


def test_a_generic_client_does_everything_by_the_document_alone(http: httpx.Client) -> None:
    """Every operation is called, and every answer fits its schema."""
    client = Client(http)
    for _ in range(2):
        client.call("logs_create", {"name": "open/api", "settings": {"window": {"max_keys": 10}}})
    client.call("logs_create", {"name": "openapi-s", "streams": True})
    log = {"log": "open/api"}
    client.call("records_append", b"v", "text/plain", **log, **{"Idempotency-Key": "a"})
    client.call("records_append", b'{"value":"v","id":"a"}\n{"value":"w"}\n', "application/x-ndjson", **log, atomic=0)
    assert client.call("records_append", b"other", "text/plain", **log, **{"Idempotency-Key": "a"})["position"] == 0
    assert client.call("records_read", **log, start=0, limit=10)["end"] == 2
    assert client.call("records_read_one", **log, position=1)["value"] == "w"
    client.call("tails_tail", **log)
    assert "open/api" in client.call("logs_list_logs")["names"]
    assert client.call("logs_info", **log)["last_position"] == 1
    client.call("logs_settings", **log)
    client.call("logs_configure", {"retention_s": 60.0}, **log, **{"If-Match": "*"})
    for name in ("logs_files", "logs_producers", "logs_seal", "logs_verify"):
        client.call(name, **log)
    client.call("files_read", **log, first=0, Range="bytes=0-3")
    client.call("logs_truncate", {"before": 0}, **log)
    assert client.call("logs_find", {"id": "a"}, **log)["ack"]["position"] == 0
    stream = {"log": "openapi-s", "stream": "s/1"}
    client.call("streams_append", b"e", "text/plain", **stream, **{"If-None-Match": "*"})
    client.call("streams_append", b"f", "text/plain", **stream, **{"If-Match": '"7"'})
    client.call("streams_read", **stream, direction="backward")
    client.call("streams_list_streams", log="openapi-s")
    client.call("tails_subscribe", **stream)
    client.call("tails_subscribe_all", log="openapi-s", types="a,b")
    _queue(client)
    client.call("logs_delete", **log)
    for name in ("server_livez", "server_readyz", "server_metrics", "server_describe"):
        client.call(name)
    assert client.operations - client.called == {"hooks_post"}


def _queue(client: Client) -> None:
    client.call("queues_create", {"name": "open/api"})
    queue = {"queue": "open/api"}
    client.call("queues_send", b"m", "text/plain", **queue, **{"Idempotency-Key": "m"})
    client.call("queues_send", b'{"value":"n"}\n', "application/x-ndjson", **queue)
    found = client.call("queues_receive", {"limit": 2}, **queue)["deliveries"]
    first, second = ({name: one[name] for name in ("token", "partition", "position")} for one in found)
    client.call("queues_extend", {"leases": [first], "seconds": 5}, **queue)
    client.call("queues_ack", {"leases": [first]}, **queue)
    client.call("queues_ack", {"leases": [first]}, **queue)
    client.call("queues_nack", {"leases": [second], "reason": "r", "retry": False}, **queue)
    [letter] = client.call("queues_dead_letters", **queue)
    client.call("queues_redrive", {"positions": []}, **queue)
    client.call("queues_discard", {"positions": [letter["position"]]}, **queue)
    for name in ("queues_stats", "queues_settings", "queues_pause", "queues_resume"):
        client.call(name, **queue)
    client.call("queues_configure", {"ack_timeout_s": 5.0}, **queue, **{"If-Match": "*"})
    assert "open/api" in client.call("queues_list_queues")["names"]
    client.call("queues_delete", **queue)
