"""A block: what one commit writes, the atom of durability.

A header of 128 bytes, then one Arrow record batch as an IPC message (the column mask gives its schema), padded with
zeros so that a block is a multiple of 64 bytes::

    0    8  magic                         64  16  writer id
    8    2  version                       80   8  up-time, µs
    10   2  flags: zero                   88   8  timestamp, µs
    12   4  column mask                   96   8  length of the body, padded
    16   8  segment                       104  8  xxh3 of the body, padded
    24   8  first entry                   112  8  checksum of the block before, 0 for a segment's first
    32   8  first position                120  8  xxh3 of the 120 bytes above: the block's own checksum
    40   8  count of records
    48   8  epoch
    56   8  zero

All numbers are little endian. The block's checksum covers the body's, so it stands for the whole block, and each
block names the one before it: what an older run left behind in a recycled file never passes for the next block.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa
import xxhash

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format.payload import single
from oncelog.format.payload.ipc import is_plain
from oncelog.format.payload.schema import ALL_BITS, ID, VALUE, mask_of, schema_of
from oncelog.format.payload.soundness import check_message, check_nulls
from oncelog.format.payload.usual import is_usual

Chunk: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

MAGIC = b"\x8bOnceBlk"
VERSION = 1
HEADER_BYTES = 128
WRITER_BYTES = 16
ALIGNMENT_BYTES = 64

_HEADER = struct.Struct("<8sHHI5q8x16s2q3Q")
_CHECKSUM = struct.Struct("<Q")
HEADER = struct.Struct("<8sHHI5q8x16s2q4Q")
"""Magic, version, flags, then the fields of ``BlockHeader``. The first ``CHECKED_BYTES`` are under its checksum."""
_HOP = struct.Struct("<8sH14xq8xq48xQQQQ")
_EXTENT = struct.Struct("<8s8xqq8xq48xQ")
CHECKED_BYTES = _HEADER.size
_ZEROS = bytes(ALIGNMENT_BYTES)
_COPIED_BYTES_MAX = 16_384
_VALUE_AND_ID = VALUE | ID
_digest = xxhash.xxh3_64_intdigest

Stop: TypeAlias = Literal["end", "no block", "bad header", "bad body", "cut short", "broken chain"]
"""Why a scan went no further: see ``BlockScan``."""


class BlockHeader(msgspec.Struct, frozen=True, gc=False):
    """What a block says of itself. ``previous`` is the checksum of the block before, ``checksum`` its own."""

    mask: int
    segment: int
    first_entry: int
    first_position: int
    count: int
    epoch: int
    writer: bytes
    uptime_us: int
    timestamp_us: int
    body_bytes: int
    body_checksum: int
    previous: int
    checksum: int

    @property
    def next_entry(self) -> int:
        """The entry behind the last one of the block."""
        return self.first_entry + self.count

    @property
    def size_bytes(self) -> int:
        """The whole block, header and body."""
        return HEADER_BYTES + self.body_bytes


class Encoded(msgspec.Struct, frozen=True):
    """A block ready to be written: its pieces in order, their size together, and the block's checksum."""

    chunks: list[Chunk]
    size_bytes: int
    checksum: int


class Block(msgspec.Struct, frozen=True):
    """A block that was read and checked. The payload's buffers lie in the buffer it was read from."""

    header: BlockHeader
    payload: pa.RecordBatch


class BlockScan(msgspec.Struct, frozen=True):
    """Blocks found one behind the other: where each begins, its first entry and how many it has.

    ``end`` is the offset behind the last of them and ``checksum`` the last one's (or what was given when there is
    none). ``stopped`` says what is at ``end``: nothing to look at (``"end"``); no magic (``"no block"``); magic and a
    wrong checksum (``"bad header"``); a block that is ``"cut short"`` by the end, or has a ``"bad body"``; or a whole
    header that does not follow the last block (``"broken chain"``).
    """

    offsets: list[int]
    first_entries: list[int]
    counts: list[int]
    end: int
    checksum: int
    stopped: Stop


def encode(
    payload: pa.RecordBatch,
    *,
    segment: int,
    first_entry: int,
    first_position: int,
    epoch: int,
    writer: bytes,
    uptime_us: int,
    timestamp_us: int,
    previous: int,
) -> Encoded:
    """Return a payload of at least one row as a block. ``previous`` is the checksum of the block before, or 0.

    The payload's buffers are among the chunks, not copied, unless they are small: do not change them.
    """
    assert payload.num_rows, "a block has at least one record"
    assert len(writer) == WRITER_BYTES, "a writer's id is 16 bytes"
    mask = mask_of(payload.schema)
    chunks, body_bytes, body_checksum = _body(payload, mask)
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        mask,
        segment,
        first_entry,
        first_position,
        payload.num_rows,
        epoch,
        writer,
        uptime_us,
        timestamp_us,
        body_bytes,
        body_checksum,
        previous,
    )
    checksum = xxhash.xxh3_64_intdigest(head)
    chunks.insert(0, head + _CHECKSUM.pack(checksum))
    return Encoded(chunks, HEADER_BYTES + body_bytes, checksum)


def encode_one(  # noqa: PLR0917 (sooner than by name: every append of one record comes here)
    value: bytes,
    record_id: bytes | None,
    segment: int,
    first_entry: int,
    first_position: int,
    epoch: int,
    writer: bytes,
    uptime_us: int,
    timestamp_us: int,
    previous: int,
) -> Encoded:
    """Return a record that has a value, perhaps an id, and nothing else, as a block: as ``encode`` would, sooner."""
    body = single.message(value, record_id)
    body_bytes = len(body)
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        VALUE if record_id is None else _VALUE_AND_ID,
        segment,
        first_entry,
        first_position,
        1,
        epoch,
        writer,
        uptime_us,
        timestamp_us,
        body_bytes,
        _digest(body),
        previous,
    )
    checksum = _digest(head)
    return Encoded([b"".join((head, _CHECKSUM.pack(checksum), body))], HEADER_BYTES + body_bytes, checksum)


def _body(payload: pa.RecordBatch, mask: int) -> tuple[list[Chunk], int, int]:
    if payload.nbytes <= _COPIED_BYTES_MAX:
        chunks: list[Chunk] = [payload.serialize()]
    else:
        chunks = _message(payload, mask)
    message_bytes = sum(map(len, chunks))
    if message_bytes % ALIGNMENT_BYTES:
        chunks.append(_ZEROS[: -message_bytes % ALIGNMENT_BYTES])
    digest = xxhash.xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
    return chunks, message_bytes + -message_bytes % ALIGNMENT_BYTES, digest.intdigest()


class _Sink:
    """Collects what an IPC writer writes, without copying Arrow's buffers."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def write(self, chunk: bytes | pa.Buffer) -> int:
        self.chunks.append(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held open."""


_IDLE: dict[int, deque[tuple[_Sink, pa.ipc.RecordBatchStreamWriter]]] = {mask: deque() for mask in range(ALL_BITS + 1)}
"""IPC writers nobody is using, by column mask. A writer in use is in no deque, so threads never share one."""


def _message(payload: pa.RecordBatch, mask: int) -> list[Chunk]:
    try:
        sink, writer = _IDLE[mask].pop()
    except IndexError:
        sink, writer = _new_writer(mask)
    writer.write_batch(payload)
    chunks, sink.chunks = sink.chunks, []
    _IDLE[mask].append((sink, writer))
    return _joined(chunks)


def _new_writer(mask: int) -> tuple[_Sink, pa.ipc.RecordBatchStreamWriter]:
    sink = _Sink()
    schema = schema_of(mask)
    writer = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)
    # The schema's own message goes out with the first batch: let that be an empty one.
    writer.write_batch(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))
    sink.chunks = []
    return sink, writer


def _joined(chunks: list[Chunk]) -> list[Chunk]:
    """Join the small pieces that lie side by side: each chunk is an entry of an iovec."""
    joined: list[Chunk] = []
    small: list[Chunk] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            small.append(chunk)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(chunk)
    return [*joined, b"".join(small)] if small else joined


def read_header(buffer: pa.Buffer | bytes | memoryview, offset: int = 0) -> BlockHeader | None:
    """Return the header at ``offset``, or ``None`` when no block begins there: other bytes, zeros or nothing.

    ``CorruptionError`` when one begins there and its header is cut short or changed, ``Unsupported`` when it is whole
    and of a newer version.
    """
    memory = memoryview(buffer)
    if memory.nbytes < offset + HEADER_BYTES:
        _refuse_part(bytes(memory[offset:]), offset)
        return None
    fields = HEADER.unpack_from(memory, offset)
    if fields[0] != MAGIC:
        return None
    if xxhash.xxh3_64_intdigest(memory[offset : offset + CHECKED_BYTES]) != fields[-1]:
        message = f"block at offset {offset}: its header's checksum does not match"
        raise CorruptionError(message)
    mask = fields[3]
    if fields[1] != VERSION or fields[2] or mask & ~ALL_BITS or not mask & VALUE:
        _refuse_version(fields[1], fields[2], mask, f"block at offset {offset}")
    return BlockHeader(*fields[3:])


def read_extent(head: bytes) -> tuple[int, int, int] | None:
    """Return the segment, the entry behind the last one and the size in bytes that the header of a new block says;
    ``None`` if the bytes are no header.

    The checksum is not checked: the bytes were just made. A reader of stored bytes calls ``read_header``.
    """
    if len(head) < HEADER_BYTES:
        return None
    magic, segment, first_entry, count, body_bytes = _EXTENT.unpack_from(head)
    return (segment, first_entry + count, HEADER_BYTES + body_bytes) if magic == MAGIC else None


def _refuse_part(part: bytes, offset: int) -> None:
    if part.startswith(MAGIC):
        message = f"block at offset {offset}: its header is cut short, {len(part)} bytes of {HEADER_BYTES}"
        raise CorruptionError(message)


def _refuse_version(version: int, flags: int, mask: int, what: str) -> None:
    message = (
        f"{what}: format version {version}, flags {flags:#x}, columns {mask:#x}; this Oncelog reads version {VERSION} "
        f"and columns within {ALL_BITS:#x}: upgrade it"
    )
    raise Unsupported(message)


class CheckedBlocks(list[pa.Buffer]):
    """Blocks whose checksums were checked before, by another reader: a body is not summed up twice.

    Payloads of ``sound`` blocks were found to be sound, too. ``on_sound`` is called when all of them are.
    """

    sound = False

    def on_sound(self) -> None:
        """Note that the payloads of all blocks are sound."""


def decode(buffer: pa.Buffer | bytes, *, checked: bool = False, sound: bool = False, full: bool = False) -> Block:
    """Return the block that fills the buffer exactly, checked. The payload lies in the buffer: nothing is copied.

    ``CorruptionError`` when any byte is not what was written, ``Unsupported`` for a newer version. The sum of the body
    of a block that was ``checked`` before is taken for good, and so is the payload of one that was ``sound``.
    ``full`` checks the text of the payload, too.
    """
    header = check(buffer, body=not checked)
    return Block(header, payload_of(header, pa.py_buffer(buffer), sound=sound, full=full))


def payload_of(header: BlockHeader, buffer: pa.Buffer, *, sound: bool, full: bool) -> pa.RecordBatch:
    """Return the payload of a block whose checksums hold; ``CorruptionError`` as ``decode``."""
    body = buffer.slice(HEADER_BYTES)
    usual = sound or is_usual(body, header.mask)
    if not usual and not is_plain(memoryview(body).cast("B")):
        message = f"{_name(header)}: its checksum holds and its payload is compressed, or no record batch"
        raise CorruptionError(message)
    try:
        payload = pa.ipc.read_record_batch(body, schema_of(header.mask))
    except (pa.ArrowException, OSError, EOFError) as error:
        message = f"{_name(header)}: its checksum holds and Arrow cannot read it: {error}"
        raise CorruptionError(message) from error
    if payload.num_rows != header.count:
        message = f"{_name(header)}: {payload.num_rows} records, its header says {header.count}"
        raise CorruptionError(message)
    if full or not sound:
        try:
            check_message(body, payload, header.mask, full=full)
            if not usual:
                check_nulls(payload, header.mask)
        except pa.ArrowException as error:
            message = f"{_name(header)}: its checksum holds and its columns do not make sense: {error}"
            raise CorruptionError(message) from error
    return payload


def check(buffer: pa.Buffer | bytes, *, body: bool = True) -> BlockHeader:
    """Return the header of the block that fills the buffer exactly, checksums checked; raises as ``decode`` does."""
    header = read_header(buffer)
    if header is None:
        message = "block: its magic is missing, these bytes are no block"
        raise CorruptionError(message)
    memory = memoryview(buffer)
    if memory.nbytes != header.size_bytes:
        message = f"{_name(header)}: {memory.nbytes} bytes, its header says {header.size_bytes}"
        raise CorruptionError(message)
    if body and xxhash.xxh3_64_intdigest(memory[HEADER_BYTES:]) != header.body_checksum:
        message = f"{_name(header)}: its body's checksum does not match"
        raise CorruptionError(message)
    return header


def _name(header: BlockHeader) -> str:
    return f"block of segment {header.segment} from entry {header.first_entry}"


def scan(
    buffer: pa.Buffer | bytes,
    offset: int = 0,
    end: int | None = None,
    *,
    previous: int | None = 0,
    bodies: bool = False,
) -> BlockScan:
    """Hop from block to block from ``offset``, as far as they are whole and chained.

    ``previous`` is the checksum the first block must name, ``None`` when it is not known. ``bodies`` checks the bodies'
    checksums too. Never raises ``CorruptionError``: the caller knows whether what stopped it is a torn tail or damage.
    ``Unsupported`` for a whole header of a newer version, which must not be taken for a torn tail.
    """
    memory = memoryview(buffer)
    end = memory.nbytes if end is None else min(end, memory.nbytes)
    unpack, digest = _HOP.unpack_from, xxhash.xxh3_64_intdigest
    offsets: list[int] = []
    first_entries: list[int] = []
    counts: list[int] = []
    last = previous
    stopped: Stop = "end"
    while offset < end:
        if offset + HEADER_BYTES > end:
            stopped = "cut short" if bytes(memory[offset:end]).startswith(MAGIC) else "no block"
            break
        magic, version, first_entry, count, body_bytes, body_checksum, before, checksum = unpack(memory, offset)
        if magic != MAGIC:
            stopped = "no block"
            break
        if digest(memory[offset : offset + CHECKED_BYTES]) != checksum:
            stopped = "bad header"
            break
        if before != last and last is not None:
            stopped = "broken chain"
            break
        if version != VERSION:
            _refuse_version(version, 0, 0, f"block at offset {offset}")
        behind = offset + HEADER_BYTES + body_bytes
        if behind > end:
            stopped = "cut short"
            break
        if bodies and digest(memory[offset + HEADER_BYTES : behind]) != body_checksum:
            stopped = "bad body"
            break
        offsets.append(offset)
        first_entries.append(first_entry)
        counts.append(count)
        last = checksum
        offset = behind
    return BlockScan(offsets, first_entries, counts, offset, last or 0, stopped)
