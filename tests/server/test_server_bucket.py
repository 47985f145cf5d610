"""A server on a bucket: started again, it takes its logs over from its own life that was killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.errors import OncelogError
from tests.server.clients import Wire, record
from tests.servers import Serving


def test_a_log_in_a_bucket_goes_on_after_its_server_was_killed(serve: Callable[..., Serving], bucket_url: str) -> None:
    """Acknowledged records are there for the next server, ids are remembered, and queues need a shared state."""
    first = serve(bucket_url, ONCELOG_SERVE_NAME="a")
    with Wire(first.grpc) as wire:
        wire.call("Database.Create", name="orders", kind="log", create=True)
        [result] = wire.call("Log.Append", log="orders", records=[record(b"paid", id="42")]).results
        assert (result.ack.position, result.ack.duplicate) == (0, False)
        with pytest.raises(OncelogError, match="postgresql"):
            wire.call("Database.Create", name="emails", kind="queue", create=True)
    first.kill()
    second = serve(bucket_url, ONCELOG_SERVE_NAME="a")  # the same server, started again: nobody waits for its end
    with Wire(second.grpc) as wire:
        again, new = wire.call(
            "Log.Append", log="orders", records=[record(b"paid", id="42"), record(b"sent", id="43")]
        ).results
        assert (again.ack.position, again.ack.duplicate) == (0, True)
        assert (new.ack.position, new.ack.duplicate) == (1, False)
        tail = wire.answers("Log.Read", log="orders", follow=True)
        seen = [entry.record.value for _ in range(2) for entry in next(tail).entries]  # a message for each segment
        assert seen == [b"paid", b"sent"]
        tail.cancel()
    assert second.stop() == 0, second.errors()
