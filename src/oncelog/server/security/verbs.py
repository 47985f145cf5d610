"""Which verb each gRPC method needs, on what. HTTP routes say so in their own table; a test holds the two together."""

from __future__ import annotations

from typing import Any, NamedTuple

from oncelog.server.security.scopes import Kind, Verb


class Need(NamedTuple):
    """What a call needs: a verb on a log or queue, whose name is in this field of the request.

    Admin verbs that change something are written to the audit log. ``making``: the call makes or deletes a log.
    """

    verb: Verb
    kind: Kind
    field: str = "log"
    audited: bool = False
    making: bool = False


def _log(verb: Verb, *, audited: bool = False) -> Need:
    return Need(verb, "log", audited=audited)


def _queue(verb: Verb, field: str = "queue", *, audited: bool = False) -> Need:
    return Need(verb, "queue", field, audited)


METHODS: dict[str, Need] = {
    "Log.Append": _log("append"),
    "Log.Write": _log("append"),
    "Log.WriteArrow": _log("append"),
    "Log.Read": _log("read"),
    "Log.ReadArrow": _log("read"),
    "Log.Follow": _log("read"),
    "Log.Find": _log("read"),
    "Log.Stage": _log("append"),
    "Log.Ingest": _log("append"),
    "Log.Info": _log("look"),
    "Log.Configure": Need("admin", "log", "name", audited=True),
    "Log.Truncate": _log("admin", audited=True),
    "Log.Files": _log("look"),
    "Log.Extents": _log("look"),
    "Log.Positions": _log("look"),
    "Log.Producers": _log("look"),
    "Log.ForgetProducer": _log("admin", audited=True),
    "Log.Verify": _log("admin", audited=True),
    "Log.Job": _log("admin", audited=True),
    "Streams.Append": _log("append"),
    "Streams.Read": _log("read"),
    "Streams.Subscribe": _log("read"),
    "Streams.List": _log("read"),
    "Streams.Version": _log("look"),
    "Queue.Send": _queue("append"),
    "Queue.Status": _queue("read"),
    "Queue.Consume": _queue("consume"),
    "Queue.Receive": _queue("consume"),
    "Queue.Settle": _queue("consume"),
    "Queue.Info": _queue("look"),
    "Queue.Stats": _queue("look"),
    "Queue.Groups": _queue("look"),
    "Queue.Peek": _queue("read"),
    "Queue.Pause": _queue("admin", audited=True),
    "Queue.Resume": _queue("admin", audited=True),
    "Queue.RemoveGroup": _queue("admin", audited=True),
    "Queue.Configure": _queue("admin", "name", audited=True),
    "Queue.Trim": _queue("admin", audited=True),
    "Queue.DeadLetters": _queue("read"),
    "Queue.Redrive": _queue("admin", audited=True),
    "Queue.Discard": _queue("admin", audited=True),
    "Database.Describe": Need("look", "server", ""),
    "Database.Logs": Need("look", "server", ""),
    "Database.Create": Need("admin", "log", "name", audited=True, making=True),
    "Database.Delete": Need("admin", "log", "name", audited=True, making=True),
    "Database.Queues": Need("look", "server", ""),
    "Database.Policy": Need("admin", "server", "", audited=True),
    "Database.Servers": Need("look", "server", ""),
}
"""By service and method. ``Database.Logs`` and ``Queues`` return only names that the caller may look at."""

SERVERS = frozenset({"Database.Take", "Database.Watch"})
"""Only servers of the same fleet call these, and prove that they are some; no token is enough."""

LISTING = frozenset({"Database.Describe", "Database.Logs", "Database.Queues", "Database.Servers"})
"""Everybody who is known may call these: what they return is filtered."""


def need(method: str, request: Any) -> Need:
    """Return what a call needs. Opening a log that is there (``Create`` without ``create``) only looks."""
    found = METHODS[method]
    if method == "Database.Policy" and not request.HasField("policy"):
        return Need("look", "server", "")
    if method in ("Database.Create", "Database.Delete"):
        kind: Kind = "queue" if request.kind == "queue" else "log"
        if method == "Database.Create" and not request.create:
            return Need("look", kind, "name")
        return found._replace(kind=kind)
    return found
