"""Marks: how far a producer of batches has come, so that a batch which comes again is known without a window.

A Spark query hands a batch over again after its driver died, with rows that may come out in another order and in other
partitions. What tells such a batch from a new one is its number; what tells a replay from a mistake (a checkpoint
restored from a backup) is a digest of its rows that does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.format.manifest import Mark, MarkedBatch
from oncelog.limits import LABEL_BYTES_MAX, MARKED_BATCHES_MAX
from oncelog.shapes import prepare

Replay = Literal["new", "same", "other", "forgotten"]


class BatchName(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a batch: the name of its producer and the number of the batch. ``owner`` is the query that commits it
    (empty: a job that is no query).
    """

    producer: str
    number: int
    owner: str = ""


def check(batch: BatchName) -> None:
    """Raise ``InvalidArgument`` for a batch that cannot be marked."""
    if not 1 <= len(batch.producer.encode()) <= LABEL_BYTES_MAX:
        message = f"producer {batch.producer[:40]!r}: must have 1 to {LABEL_BYTES_MAX} bytes of UTF-8"
        raise InvalidArgument(message)
    if batch.number < 0:
        message = f"batch {batch.number} of producer {batch.producer!r}: batches count from 0"
        raise InvalidArgument(message)


def find(marks: Sequence[Mark], producer: str) -> Mark | None:
    """Return a producer's mark, if it has one."""
    return next((mark for mark in marks if mark.producer == producer), None)


def check_owner(mark: Mark | None, batch: BatchName) -> None:
    """Raise ``InvalidArgument`` when a producer's name belongs to another query: batch numbers of two queries have
    nothing to do with each other, and one would swallow the other's rows.
    """
    if mark is not None and mark.owner != batch.owner:
        message = (
            f"producer {batch.producer!r} belongs to {_called(mark.owner)}, which came to batch {mark.last}; this is "
            f"{_called(batch.owner)}. Was its checkpoint lost, or made again? Its batches count from 0 again, so they "
            "cannot be told from those that are there: give this one another producer name (rows with ids that are "
            "within the window are still recognised)"
        )
        raise InvalidArgument(message)


def _called(owner: str) -> str:
    return f"query {owner}" if owner else "a batch job"


def judge(mark: Mark | None, batch: BatchName, records: int, digest: int) -> Replay:
    """Tell whether a batch is new; if not, whether it is what was brought in under its number, as far as that is
    remembered.
    """
    if mark is None or batch.number > mark.last:
        return "new"
    for known in mark.batches:
        if known.number == batch.number:
            return "same" if (known.records, known.digest) == (records, digest) else "other"
    if batch.number < mark.batches[0].number:
        return "forgotten" if records else "same"
    return "other" if records else "same"  # a batch without rows leaves no trace


def advanced(
    mark: Mark | None, batch: BatchName, brought: MarkedBatch, counts: tuple[int, int, int], now_us: int
) -> Mark:
    """Return a producer's mark after a batch; ``counts`` are its rows that were adopted, known, and put aside."""
    before = mark if mark is not None else Mark(batch.producer, batch.owner, now_us, ())
    kept = [known for known in before.batches if known.number != brought.number]
    batches = sorted([*kept, brought], key=lambda known: known.number)[-MARKED_BATCHES_MAX:]
    records, duplicates, conflicts = counts
    return Mark(
        batch.producer,
        batch.owner,
        now_us,
        tuple(batches),
        before.records + records,
        before.duplicates + duplicates,
        before.conflicts + conflicts,
    )


prepare(BatchName)
