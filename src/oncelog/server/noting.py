"""What the ring of a log keeps of the answers to an ask: which id, which outcome, and the content of a conflict.

A conflict is an append whose id is taken by other content. The log does not store that content, so the ring keeps the
beginning of it: a person who looks for the id can then compare the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.errors import AppendErrors, IdConflict, OncelogError
from oncelog.server.ring import Answered, RefusedAppend
from oncelog.types import Ack, AckRun, ColumnAcks, Record

NOTED_MAX = 256
"""Answers to one ask that are noted, at most."""

REFUSED_MAX = 16
"""Conflicts of one ask whose content is kept, at most."""

REFUSED_BYTES_MAX = 2048
"""So much of a refused value is kept."""

LABEL_MAX = 128
"""So many characters of a label, and bytes of a header, are kept."""

_LABELS = ("stream", "type", "tenant", "producer", "sequence")
_HEADERS_MAX = 64


def answered(loaded: object, result: object, error: OncelogError | None, peer: str, now_us: int) -> Iterator[Answered]:
    """Yield what is kept of the answers to one ask: ``loaded`` is its records, or its table."""
    if isinstance(loaded, pa.Table) and isinstance(result, list | AckRun):
        yield from _of_rows(loaded, result, peer, now_us)
    elif isinstance(loaded, pa.Table):
        yield from _of_table(loaded, result, error, peer, now_us)
    elif isinstance(result, list):
        yield from _of_records(loaded, result, peer, now_us)
    elif error is not None:
        yield from _of_error(loaded, error, peer, now_us)


def _of_records(loaded: object, answers: Sequence[object], peer: str, now_us: int) -> Iterator[Answered]:
    """Each record has an answer of its own."""
    assert isinstance(loaded, Sequence)
    kept = 0
    for record, answer in zip(loaded[:NOTED_MAX], answers, strict=False):
        outcome, position = outcome_of(answer)
        keeps = _is_conflict(answer) and kept < REFUSED_MAX
        kept += keeps
        yield Answered(now_us, record.id, peer, outcome, position, _refused(_parts(record)) if keeps else None)


def _of_rows(table: pa.Table, answers: Sequence[object], peer: str, now_us: int) -> Iterator[Answered]:
    """Each row of a table has an answer of its own."""
    rows = min(table.num_rows, NOTED_MAX)
    ids = table.column("id")[:rows].to_pylist() if "id" in table.column_names else [None] * rows
    kept = 0
    for row, (id, answer) in enumerate(zip(ids, answers, strict=False)):
        outcome, position = outcome_of(answer)
        keeps = _is_conflict(answer) and kept < REFUSED_MAX
        kept += keeps
        yield Answered(now_us, id, peer, outcome, position, _row(table, row) if keeps else None)


def _row(table: pa.Table, row: int) -> RefusedAppend:
    return _refused(table.slice(row, 1).to_pylist()[0])


def _of_error(loaded: object, error: OncelogError, peer: str, now_us: int) -> Iterator[Answered]:
    """No record of the ask was stored. Of a batch nobody knows which one is at fault."""
    records: Sequence[Record] = loaded if isinstance(loaded, Sequence) else ()
    if len(records) == 1:
        yield from _of_records(records, [error], peer, now_us)
        return
    for id in [record.id for record in records[:NOTED_MAX]] or [None]:
        yield Answered(now_us, id, peer, f"refused: {type(error).__name__}", None)


def _of_table(
    table: pa.Table, result: object, error: OncelogError | None, peer: str, now_us: int
) -> Iterator[Answered]:
    """Rows that stored nothing are noted by their ids; the others are counted, because the log itself has them."""
    ids = table.column("id") if "id" in table.column_names else None
    kept = 0
    noted, count = _rows(result)
    for row, outcome, position in noted:
        keeps = outcome in ("conflict", IdConflict.__name__) and kept < REFUSED_MAX
        kept += keeps
        content = _row(table, row) if keeps else None
        yield Answered(now_us, ids[row].as_py() if ids is not None else None, peer, outcome, position, content)
    if error is None:
        yield Answered(now_us, None, peer, f"stored {table.num_rows - count:,} rows", None)
    else:
        yield Answered(now_us, None, peer, type(error).__name__, None)


def _rows(result: object) -> tuple[Sequence[tuple[int, str, int | None]], int]:
    """Return the first rows of a table that stored nothing (which, the outcome, the position that was answered), and
    how many such rows there are.
    """
    if isinstance(result, AppendErrors):
        answers = [(row, *outcome_of(answer)) for row, answer in enumerate(result.results)]
        found = [one for one in answers if one[1] != "stored"]
        return found[:NOTED_MAX], len(found)
    if not isinstance(result, ColumnAcks):
        return [], 0
    rows = np.flatnonzero(np.asarray(result.duplicates) | np.asarray(result.conflicts))
    words = ("duplicate", "conflict")
    first = [(int(row), words[bool(result.conflicts[row])], int(result.positions[row])) for row in rows[:NOTED_MAX]]
    return first, len(rows)


def outcome_of(answer: object) -> tuple[str, int | None]:
    """Return the word for an answer, and the position that it names."""
    if isinstance(answer, Ack):
        word = "conflict" if answer.conflict else "duplicate" if answer.duplicate else "stored"
        return word, answer.position
    if isinstance(answer, OncelogError):
        return type(answer).__name__, getattr(answer, "position", None)
    return "stored", None


def _is_conflict(answer: object) -> bool:
    return isinstance(answer, IdConflict) or (isinstance(answer, Ack) and answer.conflict)


def _parts(record: Record) -> dict[str, Any]:
    return {"value": record.value, "headers": record.headers, **{name: getattr(record, name) for name in _LABELS}}


def _refused(parts: Mapping[str, Any]) -> RefusedAppend:
    """Return the beginning of a record that was refused, and what its whole value can be recognised by."""
    value = parts.get("value") or b""
    whole = value.encode() if isinstance(value, str) else bytes(value)
    given = parts.get("headers") or {}
    headers = list(dict(given).items())[:_HEADERS_MAX]
    return RefusedAppend(
        value=whole[:REFUSED_BYTES_MAX],
        size_bytes=len(whole),
        digest=hashlib.sha256(whole).hexdigest(),
        headers={name: bytes(header or b"")[:LABEL_MAX] for name, header in headers},
        labels={name: str(parts[name])[:LABEL_MAX] for name in _LABELS if parts.get(name) is not None},
    )
