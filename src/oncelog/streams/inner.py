"""What other rooms ask of streams, and no user: the inner half of ``Streams``."""

from __future__ import annotations

from oncelog.log.log import Log
from oncelog.streams.streams import Streams


def is_of(streams: Streams, log: Log) -> bool:
    """Tell whether streams belong to this very handle of a log."""
    return streams._is_of(log)


def index_bytes(streams: Streams) -> int:
    """Return how many bytes of memory the index of streams takes."""
    return streams._index.nbytes
