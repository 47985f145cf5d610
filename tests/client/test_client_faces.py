"""Streams and queues behind a real server process, under their own contracts."""

from __future__ import annotations

import pytest

from oncelog.connect import Database
from oncelog.testing.queue_contract import QueueContract
from oncelog.testing.streams_contract import StreamsContract


class TestStreams(StreamsContract):
    """Streams of a real ``oncelog serve``."""

    @pytest.fixture
    def database(self, remote: Database) -> Database:
        """Return an empty database on the server."""
        return remote


class TestQueue(QueueContract):
    """Queues of a real ``oncelog serve``."""

    @pytest.fixture
    def database(self, remote: Database) -> Database:
        """Return an empty database on the server."""
        return remote


del QueueContract, StreamsContract
