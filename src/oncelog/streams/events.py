"""What goes into a stream, what comes out of it, and the answer to an append."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.arguments import shown
from oncelog.errors import InvalidArgument
from oncelog.format.payload.arrays import integers
from oncelog.log.stored.rows import Rows, each
from oncelog.types import moment

Expected = int | Literal["any", "no stream", "exists"]
"""What a stream must be for an append: anything, not there, there, or exactly at a version."""

NO_VERSION = -1
"""The version of a stream without events; its first event has version 0."""


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of a stream: ``version`` counts from 0 in its stream, ``position`` over the whole log."""

    stream: str
    version: int
    position: int
    timestamp: datetime
    id: str | None
    type: str | None
    value: bytes
    headers: Mapping[str, bytes] | None = None


class EventAck(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer for one appended event: it is durable, at this version and position.

    ``duplicate``: it was there. ``conflict``: what was there under its id has other content, and stands; only in a log
    whose settings say ``on_conflict="original"``, in others that is an ``IdConflict``.
    """

    version: int
    position: int
    timestamp: datetime | None
    duplicate: bool = False
    conflict: bool = False


class CaughtUp(msgspec.Struct, frozen=True):
    """A subscription has come to the end of what there was: what follows is live. ``position`` is the next one."""

    position: int


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: the version of its last event, how many it has had, and where the last one stands (``None``: it was
    truncated away).
    """

    stream: str
    version: int
    count: int
    last_position: int | None


def check_stream(stream: object) -> str:
    """Return the name of a stream, or raise ``InvalidArgument`` for what cannot be one."""
    found = check_text("stream", stream)
    if not found:
        message = f"stream {found!r}: must be a str that is not empty"
        raise InvalidArgument(message)
    return found


def check_text(name: str, text: object) -> str:
    """Return what must be text that can be stored, or raise ``InvalidArgument``."""
    if not isinstance(text, str):
        message = f"{name} {shown(text)}: is {type(text).__name__}, must be a str"
        raise InvalidArgument(message)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: has a lone surrogate at character {error.start}, must be text that UTF-8 can hold"
        raise InvalidArgument(message) from error
    return text


def check_expected(expected: object) -> Expected:
    """Return what is expected of a stream, or raise ``InvalidArgument``."""
    if isinstance(expected, str) and expected in ("any", "no stream", "exists"):
        return expected  # type: ignore[return-value]
    if isinstance(expected, int | np.integer) and not isinstance(expected, bool) and int(expected) >= NO_VERSION:
        return int(expected)
    message = f"expected {expected!r}: must be 'any', 'no stream', 'exists', or a version, 0 or more"
    raise InvalidArgument(message)


def is_backward(direction: object) -> bool:
    """Tell whether events are read from the last to the first."""
    if direction not in ("forward", "backward"):
        message = f"direction {direction!r}: must be 'forward' or 'backward'"
        raise InvalidArgument(message)
    return direction == "backward"


def check_types(types: Iterable[str] | None) -> list[str] | None:
    """Return the types that are wanted; ``None`` for all."""
    if isinstance(types, str) or not (types is None or isinstance(types, Iterable)):
        message = f"types: is {types!r}, must be a list of types"
        raise InvalidArgument(message)
    return None if types is None else [check_text("type", type) for type in types]


def events_of(rows: Rows, chosen: NDArray[np.int64], versions: NDArray[np.int32]) -> list[StreamEvent]:
    """Return chosen rows, all of them of streams, as events."""
    if not len(chosen):
        return []
    payload = rows.payload if len(chosen) == rows.count else rows.payload.take(integers(chosen))
    times = each(rows.timestamp_us, rows.count)[chosen].tolist()
    positions = (chosen + rows.first_position).tolist()
    columns = zip(*(_column(payload, name) for name in ("stream", "id", "type", "value", "headers")), strict=True)
    return [
        StreamEvent(
            stream=stream,
            version=version,
            position=position,
            timestamp=moment(time_us),
            id=id,
            type=type,
            value=value,
            headers=None if headers is None else dict(headers),
        )
        for (stream, id, type, value, headers), version, position, time_us in zip(
            columns, versions.tolist(), positions, times, strict=True
        )
    ]


def _column(payload: pa.RecordBatch, name: str) -> list[Any]:
    at = payload.schema.get_field_index(name)
    return payload.column(at).to_pylist() if at >= 0 else [None] * payload.num_rows
