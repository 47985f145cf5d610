"""The columns of a payload and of what a reader gets: names, types, order and bits."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from oncelog.errors import InvalidArgument

VALUE, ID, STREAM, TYPE, HEADERS, PRODUCER, SEQUENCE, TENANT, START = (1 << bit for bit in range(9))

HEADERS_TYPE = pa.map_(pa.string(), pa.binary())
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

FIELDS: dict[int, pa.Field] = {
    VALUE: pa.field("value", pa.binary(), nullable=False),
    ID: pa.field("id", pa.string()),
    STREAM: pa.field("stream", pa.string()),
    TYPE: pa.field("type", pa.string()),
    HEADERS: pa.field("headers", HEADERS_TYPE),
    PRODUCER: pa.field("producer", pa.string()),
    SEQUENCE: pa.field("sequence", pa.int64()),
    TENANT: pa.field("tenant", pa.string()),
    START: pa.field("start", pa.bool_(), nullable=False),
}
"""A payload's columns by their bit, in canonical order. Bits are stored: they never change their meaning."""

BITS: dict[str, int] = {field.name: bit for bit, field in FIELDS.items()}
"""The bit of each column, by its name."""

ALL_BITS = sum(FIELDS)

READ_SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
        FIELDS[ID],
        FIELDS[STREAM],
        FIELDS[TYPE],
        FIELDS[VALUE],
        FIELDS[HEADERS],
        FIELDS[PRODUCER],
        FIELDS[SEQUENCE],
        FIELDS[TENANT],
    ]
)
"""What a reader gets: where each record stands, when it was stored, and what was given."""


@cache
def schema_of(mask: int) -> pa.Schema:
    """Return the schema of a payload with these columns."""
    return pa.schema([field for bit, field in FIELDS.items() if mask & bit])


def mask_of(schema: pa.Schema) -> int:
    """Return the bits of a payload's columns; ``InvalidArgument`` when the schema is not a payload's."""
    mask = 0
    for name in schema.names:
        mask |= BITS.get(name, 0)
    if not mask & VALUE or not schema.equals(schema_of(mask)):
        message = f"columns {schema.names}: not a payload, expected {schema_of(mask | VALUE).names} in canonical types"
        raise InvalidArgument(message)
    return mask


def read_schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the reader's schema with these columns only, in this order; ``InvalidArgument`` for an unknown one."""
    for name in names:
        if name not in READ_SCHEMA.names:
            message = f"columns: no column {name!r}, there are {', '.join(READ_SCHEMA.names)}"
            raise InvalidArgument(message)
    return pa.schema([READ_SCHEMA.field(name) for name in names])
