"""What a ring keeps of answers: the outcome of each id, and the content of what was refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.errors import AppendErrors, IdConflict, Unavailable
from oncelog.server import noting
from oncelog.server.ring import Answered
from oncelog.types import Ack, ColumnAcks, Record

STORED = Ack(7, 0, 7, None)
DUPLICATE = Ack(3, 0, 3, None, duplicate=True)
CONFLICT = IdConflict("taken", position=3)


def noted(loaded: Any, result: object, error: Any = None) -> list[Answered]:
    """Return what is kept of the answers to an ask."""
    return list(noting.answered(loaded, result, error, "peer", 5))


def outcomes(found: list[Answered]) -> list[tuple[str | None, str, int | None]]:
    """Return ids, outcomes and positions."""
    return [(one.id, one.outcome, one.position) for one in found]


def test_each_record_is_noted_and_the_content_of_a_conflict_is_kept() -> None:
    """A person can compare what was refused with what is stored: the value, its digest, labels and headers."""
    record = Record(b"x" * 5000, id="b", type="paid", headers={"trace": b"1"})
    found = noted([Record(b"1", id="a"), record, Record(b"1", id="c")], [STORED, CONFLICT, DUPLICATE])
    assert outcomes(found) == [("a", "stored", 7), ("b", "IdConflict", 3), ("c", "duplicate", 3)]
    assert [one.refused is None for one in found] == [True, False, True]
    kept = found[1].refused
    assert kept is not None
    assert (kept.value, kept.size_bytes) == (b"x" * noting.REFUSED_BYTES_MAX, 5000)
    assert kept.digest == hashlib.sha256(record.value).hexdigest()
    assert (kept.labels, kept.headers) == ({"type": "paid"}, {"trace": b"1"})


def test_rows_of_a_table_that_stored_nothing_are_found_by_their_ids() -> None:
    """A retry in columns is an attempt, too: its duplicates and conflicts are noted, the others are counted."""
    table = pa.table({"id": ["a", "b", "c"], "value": pa.array([b"1", b"2", b"3"], pa.binary())})
    acks = ColumnAcks(np.array([3, 7, 4]), np.array([True, False, False]), np.array([False, False, True]))
    found = noted(table, acks)
    assert outcomes(found) == [("a", "duplicate", 3), ("c", "conflict", 4), (None, "stored 1 rows", None)]
    assert found[1].refused is not None
    assert found[1].refused.value == b"3"
    refused = noted(table, AppendErrors("some", results=[STORED, CONFLICT, STORED]))
    assert outcomes(refused) == [("b", "IdConflict", 3), (None, "stored 2 rows", None)]
    assert refused[0].refused is not None


def test_records_in_columns_that_are_decided_one_by_one_are_noted_one_by_one() -> None:
    """What a client submits comes in columns, with an answer a record: each is found by its id."""
    table = pa.table({"id": ["a", "b"], "value": pa.array([b"1", b"2"], pa.binary())})
    found = noted(table, [STORED, CONFLICT])
    assert outcomes(found) == [("a", "stored", 7), ("b", "IdConflict", 3)]
    assert found[1].refused is not None
    assert found[1].refused.value == b"2"


def test_a_batch_that_is_refused_names_all_its_ids_and_blames_none() -> None:
    """A batch is stored whole or not at all: an error is of the batch, not of its first record."""
    batch = [Record(b"1", id="a"), Record(b"2", id="b")]
    assert outcomes(noted(batch, None, CONFLICT)) == [
        ("a", "refused: IdConflict", None),
        ("b", "refused: IdConflict", None),
    ]
    assert outcomes(noted(batch[:1], None, CONFLICT)) == [("a", "IdConflict", 3)]
    assert outcomes(noted(None, None, Unavailable("away"))) == [(None, "refused: Unavailable", None)]


def test_a_flood_of_conflicts_is_kept_in_part() -> None:
    """One frame cannot fill the ring: so many answers, and the content of a few, are kept."""
    records = [Record(b"1", id=str(number)) for number in range(1000)]
    found = noted(records, [CONFLICT] * 1000)
    assert len(found) == noting.NOTED_MAX
    assert sum(one.refused is not None for one in found) == noting.REFUSED_MAX
