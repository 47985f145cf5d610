"""Which calls go to the holder: every method and route says so, or is a reading one."""

from __future__ import annotations

from oncelog.server.fleet import routing
from oncelog.server.http.routes import ROUTES
from oncelog.wire.methods import METHODS

ANYWHERE = {
    "Log.Read", "Log.ReadArrow", "Log.Follow", "Log.Stage", "Log.Files", "Log.Extents", "Log.Positions",
    "Streams.Read", "Streams.Subscribe", "Streams.List", "Database.Describe", "Database.Logs", "Database.Create",
    "Database.Queues", "Database.Policy", "Database.Servers", "Database.Take", "Database.Watch",
}  # fmt: skip
HTTP_ANYWHERE = {
    "records_read", "records_read_one", "tails_tail", "logs_list_logs", "logs_create", "logs_settings", "logs_files",
    "streams_list_streams", "streams_read", "tails_subscribe", "queues_list_queues", "hooks_post", "server_livez",
    "server_readyz", "server_metrics", "server_describe", "files_read", "tails_subscribe_all",
}  # fmt: skip


def test_every_method_is_placed() -> None:
    """A new method must be placed: it may need the writer, or what the writer has in its memory."""
    queues = {key for key in METHODS if key.startswith("Queue.")}
    assert routing.TAKING | routing.ASKING | queues | ANYWHERE == set(METHODS)
    assert not (routing.TAKING & routing.ASKING)


def test_every_route_is_placed() -> None:
    """The same for HTTP."""
    queues = {route.name for route in ROUTES if route.kind == "queue"}
    assert routing.HTTP_TAKING | routing.HTTP_ASKING | queues | HTTP_ANYWHERE == {route.name for route in ROUTES}
