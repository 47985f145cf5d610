"""The sequences of producers at one writer: which records are new, which are duplicates, and which are refused.

A part of the append core: up-time and position are arguments. A record that carries no producer never comes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.dedup.producers import UNKNOWN, ProducerMark, Producers, Pushed
from oncelog.errors import InvalidArgument, PartialOverlap
from oncelog.format.payload import arrays, schema
from oncelog.format.payload.rows_by_producer import Owners, owners_of
from oncelog.format.payload.schema import FIELDS, PRODUCER, SEQUENCE
from oncelog.log.append.counters import Counters
from oncelog.log.append.decisions import Judged, Met
from oncelog.log.append.groups import Group, Ticket
from oncelog.settings import ProducerPolicy
from oncelog.types import Record


class Sequences:
    """Holds the sequences of records against those of their producers, as the policy says."""

    def __init__(self, producers: Producers, policy: ProducerPolicy, counters: Counters) -> None:
        self.producers = producers
        self._policy = policy
        self._counters = counters
        counters.producers = len(producers)  # none is forgotten before the writer's own producer is open

    @property
    def in_use(self) -> bool:
        """Whether there is anything to remember."""
        return len(self.producers) > 0

    @property
    def policy(self) -> ProducerPolicy:
        """The policy that holds now."""
        return self._policy

    def follow(self, policy: ProducerPolicy, uptime_us: int, stored_position: int) -> None:
        """Keep to another policy from now on. Nothing is pending."""
        if policy.enabled and not self._policy.enabled:
            self.producers.restart()
        self._policy = policy
        self.evict(uptime_us, stored_position)

    def evict(self, uptime_us: int, stored_position: int) -> None:
        """Forget the producers that the policy does not want remembered."""
        policy = self._policy
        assert policy.inactive_s is not None
        assert policy.max_producers is not None
        self.producers.evict(
            uptime_us,
            inactive_us=int(policy.inactive_s * 1e6),
            max_producers=policy.max_producers,
            stored_position=stored_position,
        )
        self._counters.producers = len(self.producers)
        self._counters.producers_expired = self.producers.expired
        self._counters.producers_evicted = self.producers.evicted

    # One record.

    def meet(self, record: Record, uptime_us: int) -> Ticket | None:
        """Return the answer for a record whose sequence is known, or out of order; ``None`` for a new one.

        The ticket has no group: whether its position is stored is not known here.
        """
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
        self.producers.touch(record.producer, uptime_us)
        return Ticket(found, None, -1, duplicate=True)

    def push(self, record: Record, position: int, group: Group, stored_position: int) -> Record:
        """Note that a new record goes into a group; return it with its sequence."""
        assert record.producer is not None
        sequence = self.producers.count(record.producer, record.sequence)
        self.producers.push(record.producer, sequence, sequence, position, stored_position)
        if group.pushed is None:
            group.pushed = {}
        group.pushed[record.producer] = Pushed(sequence, position)
        return record if record.sequence is not None else msgspec.structs.replace(record, sequence=sequence)

    # Many.

    def judge(self, payload: pa.RecordBatch, uptime_us: int) -> Judged:
        """Decide the rows that carry a producer, in their order, against what was pushed and against each other."""
        judged, counted = self._judge(payload, uptime_us)
        for name, next_sequence in counted.items():
            self.producers.count_on(name, next_sequence)
        return judged

    def _judge(self, payload: pa.RecordBatch, uptime_us: int) -> tuple[Judged, dict[str, int]]:
        """Return the judgement, and for each producer that counts its sequences, what the next will be."""
        owners = owners_of(payload)
        numbers, given = _sequences(payload)
        judged = Judged(payload, owners)
        if given is None:
            self._judge_given(judged, numbers, uptime_us)
            return judged, {}
        counted = self._judge_counted(judged, numbers, given, uptime_us)
        owned = arrays.present(payload.column(payload.schema.get_field_index("producer")))
        judged.payload = _with_column(payload, SEQUENCE, arrays.integers(numbers, owned))
        return judged, counted

    def _judge_given(self, judged: Judged, numbers: NDArray[np.int64], uptime_us: int) -> None:
        """Decide rows that all carry a sequence."""
        owners = judged.owners
        ordered = owners.ordered(numbers)
        falling = owners.falling(ordered) if self._policy.enabled else ()
        firsts: list[int] = ordered[owners.bounds[:-1]].tolist()
        for number, (name, first) in enumerate(zip(owners.names, firsts, strict=True)):
            try:
                self.producers.count(name, first)
            except InvalidArgument as error:
                self._refuse(judged, owners.rows_of(number), error)
                continue
            if self._policy.enabled and (number in falling or not self.producers.is_above(name, first)):
                self._judge_each(judged, name, owners.rows_of(number), numbers, uptime_us)

    def _judge_counted(
        self, judged: Judged, numbers: NDArray[np.int64], given: NDArray[np.bool_], uptime_us: int
    ) -> dict[str, int]:
        """Decide rows of which some carry no sequence, and fill those in; return what each producer counts next."""
        counted: dict[str, int] = {}
        for number, name in enumerate(judged.owners.names):
            rows = judged.owners.rows_of(number)
            explicit = bool(given[rows].all())
            try:
                if not explicit:
                    _check_none_given(name, given[rows])
                first = self.producers.count(name, int(numbers[rows[0]]) if explicit else None, len(rows))
            except InvalidArgument as error:
                self._refuse(judged, rows, error)
                continue
            if not explicit:
                numbers[rows] = first + np.arange(len(rows))  # the number behind the highest one does not fit 64 bits
                counted[name] = first + len(rows)
            rising = bool((numbers[rows[1:]] > numbers[rows[:-1]]).all())
            if self._policy.enabled and not (rising and self.producers.is_above(name, first)):
                self._judge_each(judged, name, rows, numbers, uptime_us)
        return counted

    def _judge_each(
        self, judged: Judged, name: str, rows: NDArray[np.int64], numbers: NDArray[np.int64], uptime_us: int
    ) -> None:
        """Decide the rows of a producer that are not simply new, one by one."""
        fresh: dict[int, int] = {}
        highest: int | None = None
        met = judged.meet()
        for row, sequence in zip(rows.tolist(), numbers[rows].tolist(), strict=True):
            try:
                found = self.producers.find(name, sequence)
                if found is None and sequence not in fresh:
                    _check_above(name, sequence, highest)
            except InvalidArgument as error:
                self._refuse(judged, [row], error)
                continue
            if found is not None or sequence in fresh:
                met.open[row] = False
                met.positions[row] = UNKNOWN if found is None else found
                met.repeats[row] = fresh.get(sequence, -1)
            else:
                fresh[sequence] = row
                highest = sequence
        self.producers.touch(name, uptime_us)

    def _refuse(self, judged: Judged, rows: Sequence[int] | NDArray[np.int64], error: InvalidArgument) -> None:
        met = judged.meet()
        met.open[rows] = False
        met.refused |= dict.fromkeys(map(int, rows), error)
        self._counters.refused += len(rows)

    def judge_batch(self, payload: pa.RecordBatch, uptime_us: int) -> Judged:
        """Decide rows that are all or nothing: all new, or all known; ``PartialOverlap`` or ``InvalidArgument``
        otherwise.
        """
        if payload.column(payload.schema.get_field_index("producer")).null_count:
            message = "some records of the batch carry a producer and some do not: all must, or none"
            raise InvalidArgument(message)
        judged, counted = self._judge(payload, uptime_us)
        if judged.met is not None:
            _check_whole(judged.met)
        for name, next_sequence in counted.items():
            self.producers.count_on(name, next_sequence)
        return judged

    def push_rows(
        self,
        payload: pa.RecordBatch,
        positions: NDArray[np.int64],
        group: Group,
        owners: Owners | None,
        stored_position: int,
    ) -> None:
        """Note that rows, all new, go into a group; ``owners`` are those of the payload, if they are known."""
        owners = owners_of(payload) if owners is None else owners
        if not owners.names:
            return
        numbers, places = owners.ordered(_sequences(payload)[0]), owners.ordered(positions)
        if group.pushed is None:
            group.pushed = {}
        if len(owners.names) == 1 and _is_run(numbers) and _is_run(places):
            first, last, position = int(numbers[0]), int(numbers[-1]), int(places[0])
            self.producers.push(owners.names[0], first, last, position, stored_position)
            group.pushed[owners.names[0]] = Pushed(last, position + last - first)
            return
        # Runs: where the sequence and the position do not both go on by one, another begins.
        edges = owners.breaks((numbers[1:] - numbers[:-1] != 1) | (places[1:] - places[:-1] != 1))
        starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(numbers)]))
        firsts, lasts, begins = numbers[starts], numbers[ends - 1], places[starts]
        bounds = np.searchsorted(starts, owners.bounds).tolist()
        for name, start, end in zip(owners.names, bounds[:-1], bounds[1:], strict=True):
            runs = slice(start, end)
            self.producers.push_runs(name, firsts[runs], lasts[runs], begins[runs], stored_position)
            first, last = int(firsts[end - 1]), int(lasts[end - 1])
            group.pushed[name] = Pushed(last, int(begins[end - 1]) + last - first)

    # What is durable.

    def persist(self, pushed: Mapping[str, Pushed], stamped_us: int, uptime_us: int, stored_position: int) -> None:
        """Note that the sequences of a group, which was ``stamped_us``, are durable."""
        self.producers.persist(pushed, stamped_us)
        self.evict(uptime_us, stored_position)

    def marks(self, uptime_us: int, stored_position: int) -> dict[str, ProducerMark]:
        """Return how far each producer that is remembered now got, in what is durable."""
        self.evict(uptime_us, stored_position)
        return self.producers.marks()


def _sequences(payload: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return the sequences (0 where there is none), and which are given (``None``: all)."""
    at = payload.schema.get_field_index("sequence")
    if at < 0:
        return np.zeros(payload.num_rows, np.int64), np.zeros(payload.num_rows, np.bool_)
    column = payload.column(at)
    if not column.null_count:
        return np.asarray(column), None
    return np.array(column.fill_null(0)), arrays.present(column)


def _is_run(numbers: NDArray[np.int64]) -> bool:
    """Tell whether each number is by one higher than the one before."""
    return int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and bool((numbers[1:] > numbers[:-1]).all())


def _check_none_given(name: str, given: NDArray[np.bool_]) -> None:
    if given.any():
        message = f"producer {name!r}: some of its records carry a sequence, and some do not"
        raise InvalidArgument(message)


def _check_above(name: str, sequence: int, highest: int | None) -> None:
    if highest is not None and sequence < highest:
        message = f"producer {name!r}: sequence {sequence} comes behind {highest}: sequences must increase"
        raise InvalidArgument(message)


def _check_whole(met: Met) -> None:
    """Raise unless the rows of a batch are all new, or all known."""
    for error in met.refused.values():
        raise error
    if (met.repeats >= 0).any():
        message = "a sequence occurs more than once in one batch"
        raise InvalidArgument(message)
    known, count = int(np.count_nonzero(~met.open)), len(met.open)
    if 0 < known < count:
        message = (
            f"{known} of {count} sequences of the batch are known: nothing was written; "
            "retry a batch as it was, or use append_many"
        )
        raise PartialOverlap(message, known=(), new=())


def _with_column(payload: pa.RecordBatch, bit: int, values: pa.Array) -> pa.RecordBatch:
    wanted = schema.schema_of(schema.mask_of(payload.schema) | bit)
    present = dict(zip(payload.schema.names, payload.columns, strict=True)) | {FIELDS[bit].name: values}
    return pa.RecordBatch.from_arrays([present[name] for name in wanted.names], schema=wanted)


def stamped(payload: pa.RecordBatch, producer: str) -> pa.RecordBatch:
    """Return a payload whose rows are all of a producer, unless they say another."""
    at = payload.schema.get_field_index("producer")
    if at < 0:
        return _with_column(payload, PRODUCER, pa.repeat(pa.scalar(producer), payload.num_rows))
    column = payload.column(at)
    return payload.set_column(at, FIELDS[PRODUCER], column.fill_null(producer)) if column.null_count else payload
