"""HTTP and gRPC need the same verb for the same thing."""

from __future__ import annotations

import pytest

from oncelog.server.http.routes import ROUTES
from oncelog.server.security import verbs

TWINS = {
    "records_append": "Log.Append", "records_read": "Log.Read", "records_read_one": "Log.Read",
    "tails_tail": "Log.Read", "logs_list_logs": "Database.Logs", "logs_create": "Database.Create",
    "logs_info": "Log.Info", "logs_delete": "Database.Delete", "logs_settings": "Log.Info",
    "logs_configure": "Log.Configure", "logs_files": "Log.Files", "logs_producers": "Log.Producers",
    "logs_truncate": "Log.Truncate", "logs_find": "Log.Find", "logs_seal": "Log.Job", "logs_verify": "Log.Verify",
    "streams_list_streams": "Streams.List", "streams_read": "Streams.Read", "streams_append": "Streams.Append",
    "tails_subscribe": "Streams.Subscribe", "tails_subscribe_all": "Streams.Subscribe", "files_read": "Log.Read",
    "queues_list_queues": "Database.Queues",
    "queues_create": "Database.Create", "queues_delete": "Database.Delete", "queues_settings": "Queue.Info",
    "queues_configure": "Queue.Configure", "queues_send": "Queue.Send", "queues_receive": "Queue.Receive",
    "queues_ack": "Queue.Settle", "queues_nack": "Queue.Settle", "queues_extend": "Queue.Settle",
    "queues_stats": "Queue.Stats", "queues_pause": "Queue.Pause", "queues_resume": "Queue.Resume",
    "queues_dead_letters": "Queue.DeadLetters", "queues_redrive": "Queue.Redrive", "queues_discard": "Queue.Discard",
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_and_its_method_need_the_same(route: object) -> None:
    """A right that is asked for on one port and not on the other is none."""
    found = next(one for one in ROUTES if one is route)
    if found.verb is None:
        assert found.name in {
            "hooks_post", "server_livez", "server_readyz", "server_metrics", "server_describe"
        }  # fmt: skip
        return
    need = verbs.METHODS[TWINS[found.name]]
    assert found.verb == need.verb
    assert found.audited == need.audited
    assert found.making == need.making
