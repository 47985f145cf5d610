"""A checked envelope for small objects: what it is, which version wrote it, how long it is, and that nothing changed.

::

    0   4  magic: the kind of object
    4   2  version of that kind's format
    6   2  zero
    8   8  length of the payload
    16  8  xxh3 of the 16 bytes above and the payload
    24     the payload

All numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec
import pyarrow as pa
import xxhash

from oncelog.errors import CorruptionError, Unsupported
from oncelog.shapes import UNREADABLE

_HEAD = struct.Struct("<4sHHQ")
_CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
"""What an envelope adds to its payload."""

_KIND_BYTES = 4
_T = TypeVar("_T")


def wrap(kind: bytes, version: int, payload: bytes | bytearray | memoryview | pa.Buffer) -> bytes:
    """Return the payload in its envelope. ``kind`` is a magic of four bytes."""
    assert len(kind) == _KIND_BYTES, "a kind is four bytes"
    content = memoryview(payload).cast("B")
    head = _HEAD.pack(kind, version, 0, content.nbytes)
    return b"".join((head, _CHECKSUM.pack(_checksum(head, content)), content))


def unwrap(kind: bytes, newest_version: int, data: pa.Buffer | bytes, what: str) -> memoryview:
    """Return the payload of an envelope that fills ``data`` exactly.

    ``what`` names the object in errors. ``CorruptionError`` when it is of another kind, cut short, too long or
    changed; ``Unsupported`` when it is whole, and written by a version newer than ``newest_version``.
    """
    payload, size_bytes = unwrap_front(kind, newest_version, data, what)
    given_bytes = memoryview(data).nbytes
    if size_bytes != given_bytes:
        message = f"{what}: {given_bytes - size_bytes} bytes too many behind its {size_bytes}"
        raise CorruptionError(message)
    return payload


def unwrap_front(kind: bytes, newest_version: int, data: pa.Buffer | bytes, what: str) -> tuple[memoryview, int]:
    """Return the payload of the envelope that ``data`` begins with, and the envelope's whole size in bytes.

    Raises as ``unwrap`` does, but for what follows the envelope.
    """
    content = memoryview(data).cast("B")
    if content.nbytes < HEAD_BYTES:
        message = f"{what}: {content.nbytes} bytes are too few, the envelope alone has {HEAD_BYTES}"
        raise CorruptionError(message)
    magic, version, _, payload_bytes = _HEAD.unpack_from(content)
    if magic != kind:
        message = f"{what}: begins with {magic!r}, expected {kind!r}"
        raise CorruptionError(message)
    size_bytes = HEAD_BYTES + payload_bytes
    if size_bytes > content.nbytes:
        message = f"{what}: cut short, {content.nbytes} bytes of {size_bytes}"
        raise CorruptionError(message)
    payload = content[HEAD_BYTES:size_bytes]
    if _CHECKSUM.unpack_from(content, _HEAD.size)[0] != _checksum(content[: _HEAD.size], payload):
        message = f"{what}: checksum does not match, the bytes are not those that were written"
        raise CorruptionError(message)
    if version > newest_version:
        message = f"{what}: format version {version}, this Oncelog reads up to {newest_version}: upgrade it"
        raise Unsupported(message)
    return payload.toreadonly(), size_bytes


def unpack(packed: bytes | memoryview, shape: type[_T], what: str) -> _T:
    """Return what a payload in msgpack says; ``CorruptionError`` if that does not make sense.

    A text that is not UTF-8 is a ``ValueError`` of the decoder, a document nested too deep is a ``RecursionError``.
    """
    try:
        return msgspec.msgpack.decode(packed, type=shape)
    except (ValueError, *UNREADABLE) as error:
        message = f"{what}: checksum holds but the content does not make sense: {error}"
        raise CorruptionError(message) from error


def _checksum(head: bytes | memoryview, payload: memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(payload)
    return digest.intdigest()
