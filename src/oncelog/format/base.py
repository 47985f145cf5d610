"""The base keeps producers and stream versions of records that truncation removes.

It stands for every record before ``position``. Nothing can rebuild it, so a damaged one is refused.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from oncelog.format import frame
from oncelog.format.snapshot import ProducerMark
from oncelog.shapes import prepare

KIND = b"OLba"
VERSION = 1


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far producers and streams had got at ``position``.

    ``streams`` has the number of events of each stream, in the order of their first events.
    """

    log_id: str
    position: int
    producers: dict[str, ProducerMark] = {}
    streams: dict[str, int] = {}


def encode(base: Base) -> bytes:
    """Return a base as the bytes of its object."""
    return frame.wrap(KIND, VERSION, msgspec.msgpack.encode(base))


def decode(data: pa.Buffer | bytes, what: str) -> Base:
    """Return the base that the bytes hold; ``CorruptionError`` or ``Unsupported`` otherwise."""
    return frame.unpack(frame.unwrap(KIND, VERSION, data, what), Base, what)


prepare(Base)
