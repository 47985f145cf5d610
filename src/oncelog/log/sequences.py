"""The sequences of producers at one writer: which records are new, which were there, and which would be lost.

Guarded by the committer's lock. A record that carries no producer never comes here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.producers import UNKNOWN, ProducerMark, Producers, Pushed
from oncelog.errors import InvalidArgument, PartialOverlap
from oncelog.format import arrays, columns
from oncelog.format.schema import FIELDS, PRODUCER, SEQUENCE
from oncelog.log.admission import Judged
from oncelog.log.committer import Committer
from oncelog.log.counters import Counters
from oncelog.log.groups import Group, Ticket
from oncelog.log.uptime import Uptime
from oncelog.settings import ProducerPolicy
from oncelog.types import Record


class Sequences:
    """Holds the sequences of records against those of their producers, as the policy says."""

    def __init__(
        self, producers: Producers, policy: ProducerPolicy, *, committer: Committer, uptime: Uptime, counters: Counters
    ) -> None:
        self.producers = producers
        self._policy = policy
        self._committer = committer
        self._uptime = uptime
        self._counters = counters
        self.evict()

    @property
    def in_use(self) -> bool:
        """Whether there is anything to remember."""
        return len(self.producers) > 0

    @property
    def policy(self) -> ProducerPolicy:
        """The policy that holds now."""
        return self._policy

    def follow(self, policy: ProducerPolicy) -> None:
        """Keep to another policy from now on. Nothing is pending."""
        if policy.enabled and not self._policy.enabled:
            self.producers.restart()
        self._policy = policy
        self.evict()

    def evict(self) -> None:
        """Forget the producers that the policy does not want remembered."""
        policy = self._policy
        assert policy.inactive_s is not None
        assert policy.max_producers is not None
        self.producers.evict(
            self._uptime.now_us(),
            inactive_us=int(policy.inactive_s * 1e6),
            max_producers=policy.max_producers,
            stored_position=self._committer.stored_position,
        )
        self._counters.producers = len(self.producers)
        self._counters.producers_expired = self.producers.expired
        self._counters.producers_evicted = self.producers.evicted

    # One record.

    def meet(self, record: Record) -> Ticket | None:
        """Return the answer for a record whose sequence is known, or out of order; ``None`` for a new one."""
        assert record.producer is not None
        try:
            sequence = self.producers.count(record.producer, record.sequence)
            found = self.producers.find(record.producer, sequence) if self._policy.enabled else None
        except InvalidArgument as error:
            self._counters.refused += 1
            return Ticket(UNKNOWN, None, -1, error=error)
        if found is None:
            return None
        self._counters.duplicates += 1
        if record.sequence is None:
            self.producers.count_on(record.producer, sequence + 1)
        self.producers.touch(record.producer, self._uptime.now_us())
        group = self._committer.group_of(found) if found >= self._committer.stored_position else None
        return Ticket(found, group, -1, duplicate=True)

    def push(self, record: Record, position: int, group: Group) -> Record:
        """Note that a new record goes into a group; return it with its sequence."""
        assert record.producer is not None
        sequence = self.producers.count(record.producer, record.sequence)
        self._push(record.producer, sequence, sequence, position, group)
        return record if record.sequence is not None else msgspec.structs.replace(record, sequence=sequence)

    def _push(self, name: str, first: int, last: int, position: int, group: Group) -> None:
        self.producers.push(name, first, last, position, self._committer.stored_position)
        if group.pushed is None:
            group.pushed = {}
        group.pushed[name] = Pushed(last, position + last - first)

    # Many.

    def judge(self, payload: pa.RecordBatch) -> Judged:
        """Decide the rows that carry a producer, in their order, against what was pushed and against each other."""
        judged, counted = self._judge(payload)
        for name, next_sequence in counted.items():
            self.producers.count_on(name, next_sequence)
        return judged

    def _judge(self, payload: pa.RecordBatch) -> tuple[Judged, dict[str, int]]:
        """Return the judgement, and for each producer that counts its sequences, what the next will be."""
        count = payload.num_rows
        unknown = np.full(count, UNKNOWN, np.int64)
        judged = Judged(payload, np.ones(count, np.bool_), unknown, unknown.copy(), {})
        numbers, given = _sequences(payload)
        counted: dict[str, int] = {}
        for name, rows in _producers(payload):
            if self._judge_one(judged, name, rows, numbers, given):
                counted[name] = int(numbers[rows][-1]) + 1
        if given is not None:
            owned = arrays.present(payload.column(payload.schema.get_field_index("producer")))
            filled = _with_column(payload, SEQUENCE, arrays.integers(numbers, owned))
            judged = judged._replace(payload=filled)
        return judged, counted

    def _judge_one(
        self, judged: Judged, name: str, rows: _Rows, numbers: NDArray[np.int64], given: NDArray[np.bool_] | None
    ) -> bool:
        """Decide the rows of one producer; return whether they were counted."""
        mine = numbers[rows]
        explicit = given is None or bool(given[rows].all())
        try:
            if explicit:
                self.producers.count(name, int(mine[0]))
            else:
                assert given is not None
                _check_none_given(name, given[rows])
                first = self.producers.count(name, None, len(mine))
                mine = numbers[rows] = np.arange(first, first + len(mine))
        except InvalidArgument as error:
            for row in _numbered(rows, len(numbers)):
                self._refuse(judged, row, error)
            return False
        if self._policy.enabled and not self.producers.is_rising(name, mine):
            self._judge_each(judged, name, rows, numbers)
        return not explicit

    def _judge_each(self, judged: Judged, name: str, rows: _Rows, numbers: NDArray[np.int64]) -> None:
        """Decide the rows of a producer that are not simply new, one by one."""
        fresh: dict[int, int] = {}
        highest: int | None = None
        for row in _numbered(rows, len(numbers)):
            sequence = int(numbers[row])
            try:
                found = self.producers.find(name, sequence)
                if found is None and sequence not in fresh:
                    _check_above(name, sequence, highest)
            except InvalidArgument as error:
                self._refuse(judged, row, error)
                continue
            if found is not None or sequence in fresh:
                judged.open[row] = False
                judged.positions[row] = UNKNOWN if found is None else found
                judged.repeats[row] = fresh.get(sequence, -1)
            else:
                fresh[sequence] = row
                highest = sequence
        self.producers.touch(name, self._uptime.now_us())

    def _refuse(self, judged: Judged, row: int, error: InvalidArgument) -> None:
        judged.open[row] = False
        judged.refused[row] = error
        self._counters.refused += 1

    def judge_batch(self, payload: pa.RecordBatch) -> Judged:
        """Decide rows that are all or nothing: all new, or all known; ``PartialOverlap`` or ``InvalidArgument``
        otherwise.
        """
        if payload.column(payload.schema.get_field_index("producer")).null_count:
            message = "some records of the batch carry a producer and some do not: all must, or none"
            raise InvalidArgument(message)
        judged, counted = self._judge(payload)
        for error in judged.refused.values():
            raise error
        known = int(np.count_nonzero(~judged.open))
        if (judged.repeats >= 0).any():
            message = "a sequence occurs more than once in one batch"
            raise InvalidArgument(message)
        if 0 < known < payload.num_rows:
            message = (
                f"{known} of {payload.num_rows} sequences of the batch are known: nothing was written; "
                "retry a batch as it was, or use append_many"
            )
            raise PartialOverlap(message, known=(), new=())
        for name, next_sequence in counted.items():
            self.producers.count_on(name, next_sequence)
        return judged

    def push_rows(self, payload: pa.RecordBatch, positions: NDArray[np.int64], group: Group) -> None:
        """Note that rows, all new, go into a group."""
        numbers, _ = _sequences(payload)
        for name, rows in _producers(payload):
            mine, places = numbers[rows], positions[rows]
            # Runs: where the sequence and the position do not both go on by one, another begins.
            edges = (np.flatnonzero((np.diff(mine) != 1) | (np.diff(places) != 1)) + 1).tolist()
            for start, end in zip([0, *edges], [*edges, len(mine)], strict=True):
                self._push(name, int(mine[start]), int(mine[end - 1]), int(places[start]), group)

    # What is durable.

    def persist(self, pushed: Mapping[str, Pushed], uptime_us: int) -> None:
        """Note that a group's sequences are durable."""
        self.producers.persist(pushed, uptime_us)
        self.evict()

    def marks(self) -> dict[str, ProducerMark]:
        """Return how far each producer got, in what is durable."""
        return self.producers.marks()


_Rows = slice | NDArray[np.int64]
"""Rows of a payload: their numbers, or all of them."""


def _numbered(rows: _Rows, count: int) -> list[int]:
    numbers: list[int] = np.arange(count)[rows].tolist()
    return numbers


def _producers(payload: pa.RecordBatch) -> list[tuple[str, _Rows]]:
    """Return the producers in a payload, each with its rows."""
    column = payload.column(payload.schema.get_field_index("producer"))
    if _is_one(column):
        return [(column[0].as_py(), slice(None))]
    encoded = column.dictionary_encode()
    codes = np.asarray(encoded.indices.fill_null(-1))
    return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(encoded.dictionary.to_pylist())]


def _is_one(column: pa.Array) -> bool:
    """Tell, at a fraction of the cost of looking for all, whether a string column has one value only."""
    if column.null_count or not len(column):
        return False
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    first, size = int(ends[0]), int(ends[1] - ends[0])
    if int(ends[-1]) - first != size * len(column) or (np.diff(ends) != size).any():
        return False
    data = column.buffers()[2].slice(first, size * len(column)).to_pybytes()
    return bool(data == data[:size] * len(column))


def _sequences(payload: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return the sequences (0 where there is none), and which are given (``None``: all)."""
    at = payload.schema.get_field_index("sequence")
    if at < 0:
        return np.zeros(payload.num_rows, np.int64), np.zeros(payload.num_rows, np.bool_)
    column = payload.column(at)
    if not column.null_count:
        return np.asarray(column), None
    return np.array(column.fill_null(0)), arrays.present(column)


def _check_none_given(name: str, given: NDArray[np.bool_]) -> None:
    if given.any():
        message = f"producer {name!r}: some of its records carry a sequence, and some do not"
        raise InvalidArgument(message)


def _check_above(name: str, sequence: int, highest: int | None) -> None:
    if highest is not None and sequence < highest:
        message = f"producer {name!r}: sequence {sequence} comes behind {highest}: sequences must increase"
        raise InvalidArgument(message)


def _with_column(payload: pa.RecordBatch, bit: int, values: pa.Array) -> pa.RecordBatch:
    mask = columns.mask_of(payload.schema) | bit
    present = dict(zip(payload.schema.names, payload.columns, strict=True)) | {FIELDS[bit].name: values}
    schema = columns.schema_of(mask)
    return pa.RecordBatch.from_arrays([present[name] for name in schema.names], schema=schema)


def stamped(payload: pa.RecordBatch, producer: str) -> pa.RecordBatch:
    """Return a payload whose rows are all of a producer, unless they say another."""
    at = payload.schema.get_field_index("producer")
    if at < 0:
        return _with_column(payload, PRODUCER, pa.repeat(pa.scalar(producer), payload.num_rows))
    column = payload.column(at)
    return payload.set_column(at, FIELDS[PRODUCER], column.fill_null(producer)) if column.null_count else payload
