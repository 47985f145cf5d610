"""A part: one object of a run, with its head, its filter, its index, and its pages.

::

    head     an envelope (``frame``): log id, part, counts, checksums, digest
    filter   from the next multiple of 64 on: blocks of 64 bytes
    index    8 bytes a page: the first half of the key of the page's first entry
    pages    from the next multiple of 4,096 on (``pages``)

What lies between is zero. Head, filter and index are the *front*: what is kept at hand. The filter has a checksum
for each ``CHUNK_BYTES`` of it, so that it need not be read whole to be used: a bit that fell to zero would let a
stored id pass for a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import frame
from oncelog.format.runs.pages import PAGE_BYTES, PAGE_ENTRIES, Pages, page_count, seal
from oncelog.format.runs.run import BLOCKED, Digest, RunPart
from oncelog.shapes import UNREADABLE, prepare

KIND = b"OLrp"
VERSION = 1
CHUNK_BYTES = 1 << 16
"""So much of a filter has one checksum."""

BLOCK_WORDS = 8
BLOCK_BYTES = 64
_FRONT_ALIGNMENT = 64
_SUM_BYTES = 8


class PartHead(msgspec.Struct, frozen=True, array_like=True):
    """What a part says of itself. ``bits`` is how many leading bits of a key tell its part, ``part`` which they are."""

    log_id: str
    part: int
    bits: int
    kind: int
    count: int
    blocks: int
    digest: Digest
    index_checksum: int
    filter_checksums: bytes

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return page_count(self.count)

    @property
    def seed(self) -> int:
        """The seed of the pages' checksums: a page of another part does not pass for one of this."""
        told = msgspec.msgpack.encode((self.log_id, self.part, self.bits, self.count, self.digest))
        return xxhash.xxh3_64_intdigest(told)

    def entries_in(self, page: int) -> int:
        """Return how many entries a page has: all but the last are full."""
        return min(PAGE_ENTRIES, self.count - page * PAGE_ENTRIES)


class Front(msgspec.Struct, frozen=True):
    """The front of a part: its head, checked, and its filter and index, not yet checked."""

    head: PartHead
    filter: NDArray[np.uint64]
    index: NDArray[np.uint64]

    def chunk_is_whole(self, chunk: int) -> bool:
        """Tell whether one chunk of the filter is what was written."""
        words = self.filter[chunk * (CHUNK_BYTES // 8) : (chunk + 1) * (CHUNK_BYTES // 8)]
        told = self.head.filter_checksums[chunk * _SUM_BYTES : (chunk + 1) * _SUM_BYTES]
        return xxhash.xxh3_64_intdigest(words.data).to_bytes(_SUM_BYTES, "little") == told

    def index_is_whole(self) -> bool:
        """Tell whether the index is what was written."""
        return xxhash.xxh3_64_intdigest(self.index.data) == self.head.index_checksum


def encode(  # noqa: PLR0917
    log_id: str, part: int, bits: int, count: int, digest: Digest, filter: NDArray[np.uint64], pieces: Sequence[Pages]
) -> tuple[RunPart, list[memoryview | bytes]]:
    """Seal the pages of a part; return how the manifest knows the part, and its bytes in pieces."""
    words = np.ascontiguousarray(filter, "<u8").view(np.uint8).data
    index = b"".join(pages["high"][:, 0].tobytes() for pages in pieces)
    head = PartHead(
        log_id=log_id,
        part=part,
        bits=bits,
        kind=BLOCKED,
        count=count,
        blocks=len(words) // BLOCK_BYTES,
        digest=digest,
        index_checksum=xxhash.xxh3_64_intdigest(index),
        filter_checksums=b"".join(
            xxhash.xxh3_64_intdigest(words[start : start + CHUNK_BYTES]).to_bytes(_SUM_BYTES, "little")
            for start in range(0, len(words), CHUNK_BYTES)
        ),
    )
    first = 0
    for pages in pieces:
        seal(pages, first, head.seed)
        first += len(pages)
    framed = frame.wrap(KIND, VERSION, msgspec.msgpack.encode(head))
    before = framed + bytes(-len(framed) % _FRONT_ALIGNMENT)
    used_bytes = len(before) + len(words) + len(index)
    front_bytes = used_bytes + -used_bytes % PAGE_BYTES
    chunks: list[memoryview | bytes] = [before, words, index, bytes(front_bytes - used_bytes)]
    chunks += [pages.view(np.uint8).data for pages in pieces]
    told = RunPart(count, front_bytes, front_bytes + first * PAGE_BYTES, xxhash.xxh3_64_intdigest(framed))
    return told, [chunk for chunk in chunks if len(chunk)]


def decode_front(data: pa.Buffer, told: RunPart, what: str) -> Front:
    """Return the front of a part from its first ``told.front_bytes`` bytes (or all of it).

    The head is checked here, against itself and against what the manifest tells; ``CorruptionError`` if it is another,
    ``Unsupported`` if it is of a newer version.
    """
    packed, framed_bytes = frame.unwrap_front(KIND, VERSION, data, what)
    if xxhash.xxh3_64_intdigest(memoryview(data)[:framed_bytes]) != told.checksum:
        _refuse(what, "its head is not the one that the manifest names")
    try:
        head = msgspec.msgpack.decode(packed, type=PartHead)
    except UNREADABLE as error:
        message = f"{what}: its head does not make sense: {error}"
        raise CorruptionError(message) from error
    if head.kind != BLOCKED:
        message = f"{what}: a filter of kind {head.kind}, this Oncelog reads kind {BLOCKED}: upgrade it"
        raise Unsupported(message)
    filter_start = framed_bytes + -framed_bytes % _FRONT_ALIGNMENT
    index_start = filter_start + head.blocks * BLOCK_BYTES
    end = index_start + head.pages * 8
    if head.count != told.ids or head.blocks < 1 or end > told.front_bytes or data.size < told.front_bytes:
        _refuse(what, "its head does not fit its bytes")
    if told.front_bytes + head.pages * PAGE_BYTES != told.size_bytes:
        _refuse(what, "its size does not fit its count")
    if len(head.filter_checksums) != -(-head.blocks * BLOCK_BYTES // CHUNK_BYTES) * _SUM_BYTES:
        _refuse(what, "its filter lacks checksums")
    return Front(
        head,
        np.frombuffer(data, "<u8", head.blocks * BLOCK_WORDS, filter_start),
        np.frombuffer(data, "<u8", head.pages, index_start),
    )


def _refuse(what: str, why: str) -> None:
    message = f"{what}: damaged: {why}; `oncelog rebuild` makes the run again"
    raise CorruptionError(message)


prepare(PartHead)
