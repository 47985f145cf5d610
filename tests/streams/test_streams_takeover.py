"""Streams whose log is taken by another process at the wrong moment."""

from __future__ import annotations

import pytest

from oncelog.connect import Database
from oncelog.errors import WriterFenced
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.streams.index import Index
from oncelog.types import Record


def test_a_log_that_is_taken_while_streams_open_it_is_told_as_such(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer appended before the index was read: that is no bug, nothing was written, and a retry works."""
    with Database(ObjectStorage(memory_bucket)) as slow, Database(ObjectStorage(memory_bucket)) as quick:
        streams = slow.streams("events", create=True)
        real, taken = Index.catch_up, list[object]()

        def catch_up(self: Index) -> int:
            if not taken:
                taken.append(None)
                with quick.log("events").writer(takeover="force") as writer:
                    writer.append(b"theirs", stream="a", id="1")
            return real(self)

        monkeypatch.setattr(Index, "catch_up", catch_up)
        with pytest.raises(WriterFenced) as caught:
            streams.append("a", Record(b"ours", id="2"))
        assert caught.value.outcome == "not written"
        (ack,) = streams.append("a", Record(b"ours", id="2"))
        assert ack.version == 1
