"""What a writer does for producers: many of them share it, each with its own sequences."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.dedup.producers import ProducerMark
from oncelog.errors import InvalidArgument, LogBusy, WriterFenced
from oncelog.format.payload import intake
from oncelog.handle import Handle
from oncelog.log.append import payloads
from oncelog.log.append.committer import Committer
from oncelog.log.append.core import Core
from oncelog.log.append.sequences import Sequences, stamped
from oncelog.log.append.uptime import Uptime
from oncelog.log.producer import Producer
from oncelog.settings import TIMEOUT_S, ProducerPolicy
from oncelog.types import Record

if TYPE_CHECKING:
    from oncelog.log.writer import Writer


class ProducerTaken(WriterFenced):
    """Another handle took a producer's name, or the log forgot the producer. The writer itself goes on."""


class Producing(Handle, ABC):
    """The part of a writer that knows producers."""

    _clock: Clock
    _committer: Committer
    _core: Core
    _uptime: Uptime

    def _produce(self, sequences: Sequences, policy: Callable[[], ProducerPolicy]) -> None:
        """Begin: this writer has no producer of its own yet."""
        self._sequences = sequences
        self._policy = policy
        self._own: Producer | None = None
        self._own_name: str | None = None
        self._acting = threading.local()

    @abstractmethod
    def _absorb(self) -> None: ...

    @abstractmethod
    def _check_held(self) -> None:
        """Raise ``WriterFenced`` if another writer has taken the log."""

    @abstractmethod
    def _deadline(self, timeout_s: float | None) -> int | None: ...

    @arguments.checked
    def as_producer(
        self,
        name: str | None = None,
        *,
        initial_sequence: int | None = None,
        takeover: Literal["polite", "force"] = "polite",
    ) -> Producer:
        """Return a producer on this writer; any number of them may share it. Without a name it is given a unique one.

        Its session begins now, behind what is durable. A name belongs to one open handle: two that count from the same
        sequence would take each other's records for duplicates. So while the name is open here, a second handle is
        refused with ``LogBusy``; with ``takeover="force"`` it takes the name, and the first is ``WriterFenced``.
        ``initial_sequence`` is the first sequence that is counted; without it that is the one behind the last, or 0.
        """
        return self._session(cast("Writer", self), name, initial_sequence, takeover)

    def _session(
        self, writer: Writer, name: str | None, initial_sequence: int | None, takeover: Literal["polite", "force"]
    ) -> Producer:
        """Begin the session of a producer, which refers to its writer as given."""
        self._check_usable()
        if name == "":
            message = "producer '': must not be empty; leave it out to be given a name"
            raise InvalidArgument(message)
        assigned = f"producer-{self._clock.token(16).hex()}" if name is None else name
        intake.check_record(Record(b"", producer=assigned, sequence=initial_sequence))
        producer = Producer(writer, assigned)
        self._committer.locked(self._open_producer, producer, initial_sequence, takeover)
        return producer

    def _open_producer(self, producer: Producer, initial_sequence: int | None, takeover: str) -> None:
        """Give a handle its name. The committer's lock is held."""
        self._absorb()  # what the handle before submitted is its own
        if takeover == "polite" and self._sequences.producers.owner(producer.name) is not None:
            raise _busy(producer.name)
        self._sequences.producers.open(producer.name, producer, initial_sequence)

    def _leave_producer(self, producer: Producer) -> None:
        """End the session of a producer that was closed."""
        self._committer.locked(self._sequences.producers.close, producer.name, producer)

    @contextlib.contextmanager
    def _acting_for(self, producer: Producer) -> Iterator[None]:
        """Let this thread append for a producer inside the ``with`` block."""
        self._acting.producer = producer
        try:
            yield
        finally:
            self._acting.producer = None

    def _check_owner(self, name: str) -> None:
        """Raise if another handle has the name of this producer open: this thread may not append for it.

        The committer's lock is held from here until the record is noted, so that no other handle comes in between.
        """
        owner = self._sequences.producers.owner(name)
        acting = getattr(self._acting, "producer", None)
        if acting is not None and acting.name == name and owner is not acting:
            message = f"producer {name!r} was taken by another handle, or forgotten: stop, reopen it if you must"
            raise ProducerTaken(message, outcome="not written")
        if owner is not None and owner is not acting and owner is not self._own:
            raise _busy(name)

    def _check_owners(self, payload: pa.RecordBatch) -> None:
        """Raise unless all rows that carry a producer may come from this thread."""
        at = payload.schema.get_field_index("producer")
        if at >= 0:
            for name in payload.column(at).unique().drop_null().to_pylist():
                self._check_owner(name)

    def _own_as(self, name: str | None, initial_sequence: int | None = None) -> None:
        """Make all that is appended here, and says no other producer, that of one producer."""
        self._own = self._session(weakref.proxy(self), name, initial_sequence, "polite")  # no cycle: see Ending
        self._own_name = self._own.name

    @property
    def producer(self) -> str:
        """The name of this writer's producer: the one given to ``Log.writer``, or one that is assigned now."""
        self._check_process()
        if self._own_name is None:
            name = f"producer-{self._clock.token(16).hex()}"
            return self._committer.locked(self._named, name)
        return self._own_name

    def _named(self, name: str) -> str:
        """Return the name of this writer's producer, which is this one if it has none. The lock is held."""
        self._own_name = self._own_name or name
        return self._own_name

    @property
    def last_sequence(self) -> int | None:
        """The last sequence of this writer's producer that is durable; ``None`` when there is none."""
        return None if self._own_name is None else self.last_sequence_of(self._own_name)

    @arguments.checked
    def last_sequence_of(self, name: str) -> int | None:
        """Return the last sequence of a producer that is durable; ``None`` when there is none.

        ``WriterFenced`` if another writer has taken the log: it may be further by now.
        """
        self._check_process()
        if not self._closed:
            self._check_held()
        mark = self._committer.locked(self._sequences.producers.mark, name)
        return None if mark is None else mark.last_sequence

    def producers(self) -> dict[str, ProducerMark]:
        """Return how far each producer of the log got, the least recently active first. ``WriterFenced`` if another
        writer has taken the log.
        """
        self._check_process()
        if not self._closed:
            self._check_held()
        return self._committer.locked(self._marks)

    def _marks(self) -> dict[str, ProducerMark]:
        """Return how far each producer got. The lock is held."""
        return self._sequences.marks(self._uptime.at(self._clock.elapsed_us()), self._core.stored_position)

    def _forget_producer(self, name: str, remember: Callable[[str, int], None]) -> None:
        """Forget how far a producer got, once the log has been told to ``remember`` that: see ``Log``."""

        def forget() -> None:
            self._committer.settle_all(self._deadline(TIMEOUT_S))
            remember(name, self._core.stored_position)
            self._sequences.producers.forget(name)

        self._committer.locked(forget)

    def _follow_policy(self) -> None:
        """Keep to the policy for producers as it is stored now; it looks by itself whenever it takes a snapshot."""
        self._check_usable()
        self._committer.locked(self._follow)

    def _follow(self) -> None:
        """Keep to the stored policy, with nothing pending. The lock is held."""
        policy = self._policy()
        if policy != self._sequences.policy:
            self._committer.settle_all(self._deadline(TIMEOUT_S))
            uptime_us = self._uptime.at(self._clock.elapsed_us())
            self._sequences.follow(policy, uptime_us, self._core.stored_position)

    def _owned(self, record: Record) -> Record:
        """Return a record that carries a sequence, or will, with its producer."""
        if record.id is not None:
            raise payloads.named_twice(id=record.id)
        if record.producer is None:
            return payloads.replace(record, producer=self.producer)
        return record

    def _owned_rows(self, payload: pa.RecordBatch, producer: str | None) -> pa.RecordBatch:
        """Return a payload whose rows with a sequence have their producer."""
        names = payload.schema.names
        if producer is not None or self._own is not None:
            payload = stamped(payload, self.producer if producer is None else arguments.text("producer", producer))
        elif "sequence" in names and "producer" not in names:
            payload = stamped(payload, self.producer)
        elif "producer" not in names:
            return payload
        payloads.check_named_once(payload)
        return payload


def _busy(name: str) -> LogBusy:
    message = (
        f"producer {name!r} is open on this writer: append by its handle, close that first, or open the name with "
        "takeover='force'"
    )
    return LogBusy(message)
