"""What an Arrow IPC message says of itself, read before Arrow allocates anything.

A compressed message of a few kilobytes may ask for gigabytes. The metadata (a FlatBuffers table ``Message``, see
``Message.fbs`` of Arrow) says whether buffers are compressed; each compressed buffer begins with its size.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_CONTINUATION = 0xFFFFFFFF
_PREFIX_BYTES = 8
_PREFIX = struct.Struct("<I4xI")
_ENCAPSULATED = struct.Struct("<II")
_MESSAGE_FIELDS = struct.Struct("<5H")
_BATCH_FIELDS_BYTES = 12
_BUFFER_BYTES = 16
_U16, _U32, _I32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_V5 = 4
_VERSION, _HEADER_KIND, _HEADER, _BODY_BYTES = 0, 1, 2, 3
_SCHEMA_KIND, _DICTIONARY_KIND, _BATCH_KIND = 1, 2, 3
_DICTIONARY_BATCH = 1
_BUFFERS, _COMPRESSION = 2, 3


class Malformed(ValueError):
    """The bytes are no metadata of an Arrow message."""


class _Table(NamedTuple):
    """A FlatBuffers table: where it begins, and its fields by number (0: not there)."""

    data: memoryview
    at: int
    vtable_at: int
    vtable_bytes: int

    def field(self, number: int) -> int:
        """Return where a field's value is, 0 if the field is absent."""
        slot = 4 + 2 * number
        if slot + 2 > self.vtable_bytes:
            return 0
        offset = _U16.unpack_from(self.data, self.vtable_at + slot)[0]
        return self.at + offset if offset else 0

    def table(self, number: int) -> _Table | None:
        """Return the table that a field refers to."""
        at = self.field(number)
        return _table(self.data, at) if at else None


def _table(data: memoryview, at: int) -> _Table:
    """Return the table to which the offset at ``at`` refers."""
    begin = at + _U32.unpack_from(data, at)[0]
    vtable_at = begin - _I32.unpack_from(data, begin)[0]
    if vtable_at < 0:
        message = "a table of fields lies before the metadata"
        raise Malformed(message)
    return _Table(data, begin, vtable_at, _U16.unpack_from(data, vtable_at)[0])


def is_plain(message: memoryview) -> bool:
    """Tell whether an encapsulated message is a record batch of today's version whose buffers are not compressed.

    Version 4 of the metadata could declare compression in another place, so only version 5 is plain. It is asked of
    every block that is read: so the table is not walked field by field, but its few places are.
    """
    try:
        prefix, root = _PREFIX.unpack_from(message)
        if prefix != _CONTINUATION:
            return False
        root += _PREFIX_BYTES
        fields = root - _I32.unpack_from(message, root)[0]
        fields_bytes, _, version, kind, header = _MESSAGE_FIELDS.unpack_from(message, fields)
        header += root
        batch = header + _U32.unpack_from(message, header)[0]
        batch_fields = batch - _I32.unpack_from(message, batch)[0]
        batch_fields_bytes = _U16.unpack_from(message, batch_fields)[0]
        return (
            fields >= 0 <= batch_fields
            and fields_bytes >= _MESSAGE_FIELDS.size
            and version
            and kind
            and header > root
            and _U16.unpack_from(message, root + version)[0] == _V5
            and message[root + kind] == _BATCH_KIND
            and (
                batch_fields_bytes < _BATCH_FIELDS_BYTES
                or not _U16.unpack_from(message, batch_fields + _BATCH_FIELDS_BYTES - 2)[0]
            )
        )
    except (struct.error, IndexError):
        return False


def is_plain_stream(stream: memoryview) -> bool:
    """Tell whether a stream of messages is a schema and record batches whose buffers are not compressed.

    ``False``: it is not, or is none that Arrow writes today. It is asked of every table that a server is sent.
    """
    at = 0
    try:
        while at < len(stream):
            prefix, metadata_bytes = _ENCAPSULATED.unpack_from(stream, at)
            if prefix != _CONTINUATION:
                return False
            if not metadata_bytes:
                return True
            root = _table(stream, at + _PREFIX_BYTES)
            kind_at, body_at = root.field(_HEADER_KIND), root.field(_BODY_BYTES)
            kind = stream[kind_at] if kind_at else 0
            if kind != _SCHEMA_KIND and not (kind == _BATCH_KIND and is_plain(stream[at:])):
                return False
            body_bytes = _I64.unpack_from(stream, body_at)[0] if body_at else 0
            if body_bytes < 0:
                return False
            at += _PREFIX_BYTES + metadata_bytes + body_bytes
    except (struct.error, IndexError, Malformed):
        return False
    return True


def inflated_bytes(metadata: memoryview, body: memoryview) -> int:
    """Return how many bytes the buffers of a message come to once they are decompressed.

    Buffers that are not compressed count as they are. ``Malformed`` when the metadata cannot be read, or is of a
    version that could hide a compression.
    """
    try:
        batch = _batch(_table(metadata.cast("B"), 0))
        return 0 if batch is None else _inflated_bytes(batch, body.cast("B"))
    except (struct.error, IndexError) as error:
        message = f"the metadata of a message is cut short: {error}"
        raise Malformed(message) from error


def _batch(root: _Table) -> _Table | None:
    """Return the record batch of a message, also of one that brings a dictionary."""
    kind_at = root.field(_HEADER_KIND)
    kind = root.data[kind_at] if kind_at else 0
    if kind not in {_DICTIONARY_KIND, _BATCH_KIND}:
        return None
    version_at = root.field(_VERSION)
    if not version_at or _U16.unpack_from(root.data, version_at)[0] != _V5:
        message = "a message of an old version of Arrow's format: write the file again with a newer Arrow"
        raise Malformed(message)
    header = root.table(_HEADER)
    return header.table(_DICTIONARY_BATCH) if header is not None and kind == _DICTIONARY_KIND else header


def _inflated_bytes(batch: _Table, body: memoryview) -> int:
    buffers_at = batch.field(_BUFFERS)
    if not buffers_at:
        return 0
    first = buffers_at + _U32.unpack_from(batch.data, buffers_at)[0]
    count = _U32.unpack_from(batch.data, first)[0]
    is_compressed = bool(batch.field(_COMPRESSION))
    total_bytes = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(batch.data, first + 4 + number * _BUFFER_BYTES)
        declared = _I64.unpack_from(body, offset)[0] if is_compressed and length >= _I64.size and offset >= 0 else -1
        total_bytes += max(length if declared < 0 else declared, 0)
    return total_bytes
