"""The one table of routes: what each is called, what it needs, what it does. OpenAPI is made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from oncelog.log.info import LogInfo, SealedFileInfo
from oncelog.log.upkeep.retention import Truncation
from oncelog.queue.inspect import QueueStats
from oncelog.queue.rules.settings import QueueSettings
from oncelog.server.http import forms
from oncelog.server.http.calls import files, hooks, logs, queues, records, server, streams, tails
from oncelog.server.http.calls.files import PARQUET
from oncelog.server.http.calls.tails import SSE
from oncelog.server.http.paths import Template
from oncelog.server.http.request import ARROW, BYTES, JSON, NDJSON, Call
from oncelog.server.security.scopes import Kind, Verb
from oncelog.settings import LogSettings
from oncelog.streams.events import StreamInfo

Does = Callable[[Call], Awaitable[Response]]
_RAW = "*/*"


class Route(NamedTuple):
    """One method on one path.

    ``verb`` is needed on the ``kind`` that ``subject`` names: a part of the path, or ``"body"`` for the name in the
    body. Without a verb, everybody may call it. ``takes`` and ``gives`` are what stands in the bodies, by media type;
    several kinds are a tuple.
    """

    method: str
    template: Template
    does: Does
    name: str
    summary: str
    verb: Verb | None
    kind: Kind = "server"
    subject: str | None = None
    audited: bool = False
    making: bool = False
    query: Mapping[str, str] = {}
    takes: Mapping[str, Any] = {}
    gives: Mapping[str, Any] = {}
    headers: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)

    @property
    def writes(self) -> bool:
        """Whether a call may write something."""
        return self.method != "GET"


_LIMIT = "How many at most."
_TIMEOUT = "How many seconds the answer is waited for, at most 30. It ends the wait, not the write."
_RECORD_HEADERS = ("Idempotency-Key", "Oncelog-Id", "Oncelog-Type", "Oncelog-Stream", "Oncelog-Tenant")
_PAGE = {"limit": _LIMIT, "after": "The last name of the page before.", "prefix": "What the names begin with."}


def _route(method: str, path: str, does: Does, verb: Verb | None, kind: Kind = "server", **more: Any) -> Route:
    """Make a route. Its name and summary are those of the function that it calls."""
    noun = does.__module__.rpartition(".")[2]
    summary = (does.__doc__ or "").partition("\n")[0]
    template = Template.of(path)
    subject = more.pop("subject", kind if kind in template.names else None)
    query = dict(more.pop("query", {})) | {
        name: f"The {name}, instead of the part of the path, which is then '-'." for name in template.names if name
    }
    audited = more.pop("audited", verb == "admin")
    return Route(
        method, template, does, f"{noun}_{does.__name__}", summary, verb, kind, subject, audited, query=query, **more
    )


ROUTES: tuple[Route, ...] = (
    # Records.
    _route(
        "POST", "/v1/logs/{log}/records", records.append, "append", "log",
        query={"atomic": "1: all or none.", "timeout_s": _TIMEOUT},
        takes={_RAW: bytes, NDJSON: forms.RecordForm, ARROW: bytes},
        gives={JSON: (forms.AckForm, forms.ResultsForm), ARROW: bytes, NDJSON: forms.ResultForm},
        headers=(*_RECORD_HEADERS, "Oncelog-Producer", "Oncelog-Sequence"), statuses=(201, 200, 207, 422),
    ),
    _route(
        "GET", "/v1/logs/{log}/records", records.read, "read", "log",
        query={"start": "earliest, latest, a position, SEGMENT:ENTRY, or a time with a zone.", "limit": _LIMIT},
        gives={JSON: forms.EntriesForm, NDJSON: forms.EntryForm, ARROW: bytes}, statuses=(200, 204, 410),
    ),
    _route(
        "GET", "/v1/logs/{log}/records/{position}", records.read_one, "read", "log",
        gives={JSON: forms.EntryForm, BYTES: bytes}, headers=("If-None-Match",), statuses=(200, 304, 410),
    ),
    _route(
        "GET", "/v1/logs/{log}/tail", tails.tail, "read", "log",
        query={"start": "earliest, latest, a position, SEGMENT:ENTRY, or a time with a zone."},
        gives={SSE: forms.EntryForm}, headers=("Last-Event-ID",), statuses=(200, 204),
    ),
    # Logs.
    _route("GET", "/v1/logs", logs.list_logs, "look", query=_PAGE, gives={JSON: forms.NamesForm}),
    _route(
        "POST", "/v1/logs", logs.create, "admin", "log", subject="body", making=True,
        takes={JSON: forms.CreateLogForm}, gives={JSON: LogSettings}, statuses=(201, 200),
    ),
    _route("GET", "/v1/logs/{log}", logs.info, "look", "log", gives={JSON: LogInfo}),
    _route(
        "DELETE", "/v1/logs/{log}", logs.delete, "admin", "log", making=True, query={"timeout_s": _TIMEOUT},
        statuses=(204,),
    ),
    _route("GET", "/v1/logs/{log}/settings", logs.settings, "look", "log", gives={JSON: LogSettings}),
    _route(
        "PATCH", "/v1/logs/{log}/settings", logs.configure, "admin", "log", takes={JSON: dict[str, Any]},
        gives={JSON: LogSettings}, headers=("If-Match",), statuses=(200, 412, 428),
    ),
    _route("GET", "/v1/logs/{log}/files", logs.files, "look", "log", gives={JSON: list[SealedFileInfo]}),
    _route(
        "GET", "/v1/logs/{log}/files/{first}", files.read, "read", "log", gives={PARQUET: bytes},
        headers=("Range", "If-None-Match"), statuses=(200, 206, 304, 416),
    ),
    _route(
        "GET", "/v1/logs/{log}/producers", logs.producers, "look", "log", gives={JSON: dict[str, forms.ProducerForm]}
    ),
    _route(
        "POST", "/v1/logs/{log}/find", logs.find, "read", "log", takes={JSON: forms.FindForm},
        gives={JSON: forms.FoundForm},
    ),
    _route(
        "POST", "/v1/logs/{log}/truncate", logs.truncate, "admin", "log", takes={JSON: forms.TruncateForm},
        gives={JSON: Truncation},
    ),
    _route("POST", "/v1/logs/{log}/seal", logs.seal, "admin", "log", gives={NDJSON: forms.ProgressForm}),
    _route("POST", "/v1/logs/{log}/verify", logs.verify, "admin", "log", gives={NDJSON: forms.ProgressForm}),
    # Streams.
    _route(
        "GET", "/v1/streams/{log}", streams.list_streams, "read", "log",
        query={"prefix": "What the names begin with.", "limit": _LIMIT}, gives={JSON: list[StreamInfo]},
    ),
    _route(
        "GET", "/v1/streams/{log}/{stream}", streams.read, "read", "log",
        query={"start": "A version.", "limit": _LIMIT, "direction": "forward or backward."},
        gives={JSON: forms.EventsForm},
    ),
    _route(
        "POST", "/v1/streams/{log}/{stream}", streams.append, "append", "log", query={"timeout_s": _TIMEOUT},
        takes={_RAW: bytes, NDJSON: forms.RecordForm}, gives={JSON: forms.EventAcksForm},
        headers=("Idempotency-Key", "Oncelog-Id", "Oncelog-Type", "If-Match", "If-None-Match"),
        statuses=(201, 200, 412, 422),
    ),
    _route(
        "GET", "/v1/streams/{log}/{stream}/subscribe", tails.subscribe, "read", "log",
        query={"start": "A version, or latest."}, gives={SSE: forms.EventForm}, headers=("Last-Event-ID",),
    ),
    _route(
        "GET", "/v1/logs/{log}/events", tails.subscribe_all, "read", "log",
        query={
            "start": "earliest, latest, or a position.", "prefix": "What the names of the streams begin with.",
            "types": "Types of events, with commas in between.",
        },
        gives={SSE: forms.EventForm}, headers=("Last-Event-ID",),
    ),
    # Queues.
    _route("GET", "/v1/queues", queues.list_queues, "look", query=_PAGE, gives={JSON: forms.NamesForm}),
    _route(
        "POST", "/v1/queues", queues.create, "admin", "queue", subject="body", making=True,
        takes={JSON: forms.CreateQueueForm}, gives={JSON: QueueSettings}, statuses=(201, 200),
    ),
    _route(
        "DELETE", "/v1/queues/{queue}", queues.delete, "admin", "queue", making=True,
        query={"force": "1: do not ask those who hold messages."}, statuses=(204,),
    ),
    _route("GET", "/v1/queues/{queue}/settings", queues.settings, "look", "queue", gives={JSON: QueueSettings}),
    _route(
        "PATCH", "/v1/queues/{queue}/settings", queues.configure, "admin", "queue", takes={JSON: dict[str, Any]},
        gives={JSON: QueueSettings}, headers=("If-Match",), statuses=(200, 412, 428),
    ),
    _route(
        "POST", "/v1/queues/{queue}/messages", queues.send, "append", "queue", query={"timeout_s": _TIMEOUT},
        takes={_RAW: bytes, NDJSON: forms.MessageForm}, gives={JSON: (forms.SentForm, forms.SentResultsForm)},
        headers=("Idempotency-Key", "Oncelog-Id", "Oncelog-Key", "Oncelog-Tenant", "Oncelog-Delay"),
        statuses=(201, 200, 207, 422),
    ),
    _route(
        "POST", "/v1/queues/{queue}/receive", queues.receive, "consume", "queue", takes={JSON: forms.ReceiveForm},
        gives={JSON: forms.DeliveriesForm},
    ),
    _route(
        "POST", "/v1/queues/{queue}/ack", queues.ack, "consume", "queue", takes={JSON: forms.AckMessagesForm},
        gives={JSON: forms.SettledForm}, statuses=(200, 409),
    ),
    _route(
        "POST", "/v1/queues/{queue}/nack", queues.nack, "consume", "queue", takes={JSON: forms.NackMessagesForm},
        gives={JSON: forms.SettledForm}, statuses=(200, 409),
    ),
    _route(
        "POST", "/v1/queues/{queue}/extend", queues.extend, "consume", "queue", takes={JSON: forms.ExtendMessagesForm},
        gives={JSON: forms.SettledForm}, statuses=(200, 409),
    ),
    _route("GET", "/v1/queues/{queue}/stats", queues.stats, "look", "queue", gives={JSON: QueueStats}),
    _route(
        "POST", "/v1/queues/{queue}/pause", queues.pause, "admin", "queue", takes={JSON: forms.GroupForm},
        statuses=(204,),
    ),
    _route(
        "POST", "/v1/queues/{queue}/resume", queues.resume, "admin", "queue", takes={JSON: forms.GroupForm},
        statuses=(204,),
    ),
    _route(
        "GET", "/v1/queues/{queue}/dead-letters", queues.dead_letters, "read", "queue",
        query={"start": "A position: the one behind the last of the page before.", "limit": _LIMIT},
        gives={JSON: list[forms.DeadLetterForm]},
    ),
    _route(
        "POST", "/v1/queues/{queue}/dead-letters/redrive", queues.redrive, "admin", "queue",
        takes={JSON: forms.RedriveForm}, gives={JSON: forms.CountForm},
    ),
    _route(
        "POST", "/v1/queues/{queue}/dead-letters/discard", queues.discard, "admin", "queue",
        takes={JSON: forms.DiscardForm}, gives={JSON: forms.CountForm},
    ),
    # Webhooks, and the server itself.
    _route("POST", "/v1/hooks/{name}", hooks.post, None, takes={_RAW: bytes}, gives={JSON: forms.AckForm}),
    _route("GET", "/livez", server.livez, None, gives={JSON: dict[str, str]}),
    _route("GET", "/readyz", server.readyz, None, gives={JSON: dict[str, str]}, statuses=(200, 503)),
    _route("GET", "/metrics", server.metrics, None, gives={"text/plain": str}),
    _route("GET", "/openapi.json", server.describe, None, gives={JSON: dict[str, Any]}),
)  # fmt: skip


def find(method: str, parts: tuple[str, ...]) -> tuple[Route, dict[str, str]] | list[str]:
    """Return the route of a request with the raw names in its path, or the methods that the path knows.

    A route that gives events has no ``HEAD``: it would never end.
    """
    allowed: list[str] = []
    for route in ROUTES:
        found = route.template.match(parts)
        if found is not None:
            if route.method == method or (method == "HEAD" and route.method == "GET" and SSE not in route.gives):
                return route, found
            allowed.append(route.method)
    return allowed
