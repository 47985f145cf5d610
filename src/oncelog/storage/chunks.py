"""Pieces of what is written, put together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from oncelog.storage.base import Chunk


def joined(chunks: Sequence[Chunk]) -> pa.Buffer:
    """Return the chunks as one buffer of their own, aligned as Arrow likes it."""
    sources = [np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks]
    whole = pa.allocate_buffer(sum(source.size for source in sources))
    target = np.frombuffer(whole, dtype=np.uint8)
    offset = 0
    for source in sources:
        target[offset : offset + source.size] = source
        offset += source.size
    return whole
