"""Mistakes that are planted into the real code, to see that the simulator finds each."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

from oncelog.errors import Unavailable
from oncelog.format.block import HEADER_BYTES
from oncelog.storage.base import LogHome, SegmentEnd
from oncelog.storage.bucket import home as bucket_home
from oncelog.storage.bucket.home import ObjectHome
from oncelog.storage.quorum import ensemble, node
from oncelog.storage.quorum.ensemble import Ensemble
from oncelog.storage.quorum.home import QuorumHome
from oncelog.storage.quorum.node import Node, Written
from oncelog.storage.quorum.registers import Registers
from oncelog.testing.disk import SimulatedDisk
from oncelog.testing.simulation.network import VirtualStore
from oncelog.testing.simulation.world import Kind

Planted = contextlib.AbstractContextManager[Any]


def _with_acks(registers: Registers, ack: int) -> Registers:
    """Return registers that count by another number of acks."""
    found = copy.copy(registers)
    found.ensemble = msgspec.structs.replace(registers.ensemble, ack=ack)
    return found


def ack_one_too_few() -> Planted:
    """Let an append return when A - 1 nodes hold its block."""
    real = Registers.write

    def write(self: Registers, number: int, data: pa.Buffer) -> None:
        real(_with_acks(self, self.ensemble.ack - 1), number, data)

    return mock.patch.object(Registers, "write", write)


def one_fence_too_few() -> Planted:
    """Take W - A fences for a quorum."""
    return mock.patch.object(Ensemble, "fences", property(lambda self: len(self.nodes) - self.ack))


def nothing_rescued() -> Planted:
    """Give a block that too few nodes hold no copy in the store."""
    return mock.patch.object(Registers, "_rescue", return_value=None)


def last_decides() -> Planted:
    """Let the second writer of a tail, or an ensemble, take its own for the decided one."""

    def created(store: LogHome, key: str, data: bytes, value: object) -> object:
        store.create(key, [data])
        return value

    return mock.patch.object(ensemble, "_created", created)


def wiped_node_counts() -> Planted:
    """Believe a node that was wiped."""
    return mock.patch.object(Node, "check_identity", return_value=None)


@contextlib.contextmanager
def visible_at_one_copy() -> Iterator[None]:
    """Let a reader hand out a block that one node holds."""
    real = Registers.is_chosen

    def is_chosen(self: Registers, number: int) -> bool:
        return real(_with_acks(self, 1), number)

    def chosen_from(self: Registers, number: int) -> int:
        listed = self._listed()
        while self._blocks(listed, number):
            number += 1
        return number

    with mock.patch.object(Registers, "is_chosen", is_chosen), mock.patch.object(Registers, "chosen_from", chosen_from):
        yield


def no_tombstone() -> Planted:
    """Let a segment be started that was fenced before it was started."""

    def fence(self: QuorumHome, segment: int, epoch: int) -> SegmentEnd:
        decided = ensemble.read_tail(self.store, segment)
        found = ensemble.read(self.store, segment)
        if decided is not None or found is None:
            return decided or SegmentEnd(entries=0, blocks=0, end=0, checksum=0)
        return self.registers(segment, found).decide(epoch)

    return mock.patch.object(QuorumHome, "fence", fence)


def fence_not_heeded() -> Planted:
    """Let a writer take a fence for its block."""
    real = Node.write

    def write(self: Node, path: str, data: pa.Buffer) -> Written:
        real(self, path, data)
        return "block"

    return mock.patch.object(Node, "write", write)


def no_fence() -> Planted:
    """Let a recovery create no fences."""
    return mock.patch.object(Registers, "_fence", lambda self, _number, _epoch: ["fence"] * len(self.nodes))


def ambiguous_is_success() -> Planted:
    """Acknowledge an append of unknown outcome."""
    real = Registers.write

    def write(self: Registers, number: int, data: pa.Buffer) -> None:
        with contextlib.suppress(Unavailable):
            real(self, number, data)

    return mock.patch.object(Registers, "write", write)


def creates_overwrite() -> Planted:
    """Let a node replace blocks by fences, and fences by blocks."""

    def create(self: VirtualStore, path: str, data: pa.Buffer) -> bool:
        is_there = path in self.objects
        if is_there and not path.startswith("logs/"):
            return False
        if is_there and self.name == "store":
            return False
        self.objects[path] = data
        return True

    return mock.patch.object(VirtualStore, "create", create)


def damaged_copy_counts() -> Planted:
    """Count copies by their size alone."""

    def sound_copies(self: Registers, listed: dict[str, dict[int, int]], number: int) -> list[pa.Buffer]:
        found = self.block(number)
        return [] if found is None else [found] * self._blocks(listed, number)

    return mock.patch.object(Registers, "_sound_copies", sound_copies)


def short_block_is_a_fence() -> Planted:
    """Tell blocks and fences apart by their size alone."""

    def kind_of(data: pa.Buffer, _segment: int | None = None) -> Written:
        return "block" if data.size >= HEADER_BYTES else "fence"

    return mock.patch.object(node, "kind_of", kind_of)


def bucket_without_fence() -> Planted:
    """Let a takeover in a bucket create no fence."""

    def fence(self: ObjectHome, segment: int, _epoch: int) -> SegmentEnd:
        sizes = dict(self._listed(bucket_home._segment_prefix(segment)))
        return self._tail(segment, bucket_home._first_hole(segment, sizes), sizes)

    return mock.patch.object(ObjectHome, "fence", fence)


def no_sync() -> Planted:
    """Let a disk not sync."""
    return mock.patch.object(SimulatedDisk, "sync", return_value=None)


def no_lock() -> Planted:
    """Let a disk give its lock to everybody."""
    return mock.patch.object(SimulatedDisk, "lock", return_value=True)


PLANTED: list[tuple[Callable[[], Planted], Kind]] = [
    (last_decides, "quorum"),
    (no_tombstone, "quorum"),
    (fence_not_heeded, "quorum"),
    (no_fence, "quorum"),
    (creates_overwrite, "quorum"),
    (bucket_without_fence, "bucket"),
    (no_sync, "local"),
    (no_lock, "local"),
]
"""Mistakes that nearly every run meets."""

RARE: list[tuple[Callable[[], Planted], Kind]] = [
    (ack_one_too_few, "quorum"),
    (one_fence_too_few, "quorum"),
    (nothing_rescued, "quorum"),
    (wiped_node_counts, "quorum"),
    (visible_at_one_copy, "quorum"),
    (damaged_copy_counts, "quorum"),
    (short_block_is_a_fence, "quorum"),
    (ambiguous_is_success, "quorum"),
]
"""Mistakes that need several faults at once."""
