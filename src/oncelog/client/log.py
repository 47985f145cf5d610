"""A log over the wire."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import grpc
import msgspec
import pyarrow as pa

from oncelog import arguments
from oncelog import settings as settings_module
from oncelog.client.channel import Broken, Channel, told
from oncelog.client.reading import RemoteReader, RemoteTail
from oncelog.client.session import Opening
from oncelog.client.writer import RemoteWriter, absent, unsupported
from oncelog.dedup.producers import ProducerMark
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.format.manifest import Mark
from oncelog.format.payload import intake
from oncelog.format.payload.tables import Tabular, table_of
from oncelog.handle import Handle, closes_anywhere
from oncelog.limits import HTTP_BODY_BYTES_MAX, LEASE_S_MAX
from oncelog.log.append import payloads
from oncelog.log.info import Extent, LogInfo, SealedFileInfo
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import Ingested, OnConflict, OnReplay
from oncelog.log.jobs.audit import Audit, By
from oncelog.log.jobs.purge import Purge
from oncelog.log.jobs.rebuild_snapshot import Rebuilt
from oncelog.log.jobs.verify import Verification
from oncelog.log.jobs.workers import Hands
from oncelog.log.log import Log
from oncelog.log.read.reader import Reader, Tail, check_columns
from oncelog.log.read.scan import Start
from oncelog.log.stored.staged import Staged
from oncelog.log.stored_log import StoredLog
from oncelog.log.upkeep.retention import Truncation
from oncelog.log.upkeep.sealing import Sealing
from oncelog.log.writer import Writer
from oncelog.settings import TIMEOUT_S, LogSettings, ProducerPolicy, resolve
from oncelog.types import EPOCH, Location, Record
from oncelog.wire import frames, messages, values

_T = TypeVar("_T")
_H = TypeVar("_H", bound=Handle)

JOB_S = 24 * 3600.0
STAGE_BYTES = 2 << 20

Told = Callable[[int, int], None]


class MadeLog(msgspec.Struct, frozen=True):
    """What the server says of a log that was opened or created."""

    name: str
    log_id: str
    settings: LogSettings


class Payloads(NamedTuple):
    """Rows that were checked, to be stored on the server; ``columns`` are all that the file may have."""

    payloads: Sequence[pa.RecordBatch]
    columns: list[str] | None


class RemoteLog(Log):
    """An append-only log on a server. Made by ``Database.log``; safe to share between threads."""

    def __init__(self, channel: Channel, made: MadeLog, policy: Callable[[str | None], ProducerPolicy]) -> None:
        Handle.__init__(self)
        self.name = made.name
        self.channel = channel
        self._log_id = made.log_id
        self._policy = policy
        self.settings_seen = made.settings
        """The settings as they were seen last."""
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()

    def ask(self, key: str, request: Any, kind: type[_T] | Any, *, write: bool = False) -> Any:
        """Ask the server what may be asked again; return the document that it answers."""
        self._check_usable()
        return values.from_document(self.channel.ask(key, request, write=write).json, kind)

    def _asked(self) -> Any:
        return messages.LogRequest(log=self.name)

    @property
    def settings(self) -> LogSettings:
        self.settings_seen = self.info().settings
        return self.settings_seen

    def _is_same(self, other: StoredLog) -> bool:
        return self.log_id == other.log_id

    @property
    def log_id(self) -> str:
        return self._log_id

    # Writing and reading.

    @arguments.checked
    def writer(
        self,
        *,
        wait_s: float = 5.0,
        takeover: Literal["polite", "force"] = "polite",
        producer: str | None = None,
        initial_sequence: int | None = None,
    ) -> Writer:
        """Open a session that writes the log; any number of them may be open, here and elsewhere.

        ``LogBusy`` when a process that is no server keeps the log for ``wait_s``, or another session the producer.
        """
        self._check_usable()
        if takeover not in ("polite", "force"):
            message = f"takeover {takeover!r}: must be 'polite' or 'force'"
            raise InvalidArgument(message)
        opening = Opening(self.name, producer, takeover, arguments.seconds("wait_s", wait_s))
        self.settings_seen = self.info().settings
        return self._opened(RemoteWriter(self, opening, initial_sequence=initial_sequence))

    def read(self, start: Start = "earliest", *, limit: int | None = None, lease_s: float | None = None) -> Reader:
        self._check_usable()
        return self._opened(RemoteReader(self, start, limit=limit, lease_s=self._checked_lease(lease_s)))

    def read_arrow(
        self,
        start: Start = "earliest",
        *,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        lease_s: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._check_usable()
        check_columns(columns)
        lease = self._checked_lease(lease_s)
        return self._opened(RemoteReader(self, start, limit=limit, lease_s=lease, columns=columns)).batches()

    def tail(self, start: Start = "latest", *, lease_s: float | None = None) -> Tail:
        self._check_usable()
        return self._opened(RemoteTail(self, start, lease_s=self._checked_lease(lease_s)))

    def _checked_lease(self, lease_s: float | None) -> float | None:
        if lease_s is not None and not 0 < arguments.seconds("lease_s", lease_s) <= LEASE_S_MAX:
            message = f"lease_s is {lease_s}, must be more than 0 and at most {LEASE_S_MAX}"
            raise InvalidArgument(message)
        return lease_s

    def _opened(self, handle: _H) -> _H:
        if self._closed:
            handle.close()
        self._check_usable()
        self._handles.add(handle)
        return handle

    # Places.

    def positions(self, start: Start) -> Any:
        """Return where the log begins and ends, and where reading would begin."""
        self._check_usable()
        if isinstance(start, tuple):
            for part in start:
                arguments.whole("start", part)
        return self._positions(values.start_message(start))

    def _positions(self, start: Any = None) -> Any:
        self._check_usable()
        return self.channel.ask("Log.Positions", messages.PositionsRequest(log=self.name, start=start))

    def first_position(self) -> int:
        return int(self._positions().first)

    def end_position(self) -> int:
        return int(self._positions().end)

    def position_at(self, start: Start) -> int:
        return int(self.positions(start).at)

    def _extents(self, start: int, end: int) -> list[Extent]:
        request = messages.ExtentsRequest(log=self.name, start=start, end=end)
        return self.ask("Log.Extents", request, list[Extent])  # type: ignore[no-any-return]

    @arguments.checked
    def find(self, id: str, *, stream: str | None = None) -> Location | None:
        self._check_usable()
        intake.check_record(Record(b"", id=id, stream=stream))
        found = self.channel.ask("Log.Find", messages.FindRequest(log=self.name, id=id, stream=stream))
        if not found.HasField("ack"):
            return None
        ack = values.ack(found.ack)
        return Location(
            position=ack.position or 0,
            segment=ack.segment or 0,
            entry=ack.entry or 0,
            timestamp=ack.timestamp or EPOCH,
            fingerprint=found.fingerprint,
        )

    # What there is to know.

    def info(self) -> LogInfo:
        """Return what there is to know about the log now; counters are those since the server took the log."""
        return self.ask("Log.Info", self._asked(), LogInfo)  # type: ignore[no-any-return]

    def files(self) -> list[SealedFileInfo]:
        """Return the sealed files with their first positions: URLs of a bucket, or paths on the server's disk, which
        are not ``local``.
        """
        found: list[SealedFileInfo] = self.ask("Log.Files", self._asked(), list[SealedFileInfo])
        return [msgspec.structs.replace(one, local="://" in one.path) for one in found]

    def producers(self) -> dict[str, ProducerMark]:
        return self.ask("Log.Producers", self._asked(), dict[str, ProducerMark])  # type: ignore[no-any-return]

    def producer_policy(self) -> ProducerPolicy:
        namespace = self.name.rpartition("/")[0].partition("/")[0] or None
        levels = [self._policy(namespace)] if namespace is not None else []
        return resolve(self.settings.producers, *levels, self._policy(None))

    def forget_producer(self, name: str, *, wait_s: float = 5.0) -> bool:
        self._check_usable()
        arguments.seconds("wait_s", wait_s)
        request = messages.ProducerRequest(log=self.name, producer=arguments.text("name", name))
        return bool(self.channel.ask("Log.ForgetProducer", request, write=True).value)

    def configure(self, settings: LogSettings) -> None:
        self._check_usable()
        document = values.to_document(settings_module.check(settings))
        request = messages.ConfigureRequest(name=self.name, settings=document)
        self.settings_seen = self.ask("Log.Configure", request, LogSettings, write=True)

    def truncate(self, before: int) -> Truncation:
        request = messages.TruncateRequest(log=self.name, before=arguments.count("before", before))
        return self.ask("Log.Truncate", request, Truncation, write=True)  # type: ignore[no-any-return]

    # Jobs: the server does them, once for all who ask at the same time.

    def job(
        self, kind: str, result: Any = None, *, by: str = "", remove: bool = False, tell: Told | None = None
    ) -> Any:
        """Have the server do a long job; return its result. A cut connection finds the same job again."""
        self._check_usable()
        request = messages.JobRequest(log=self.name, kind=kind, by=by, remove=remove)
        document = self.channel.again(lambda _: self._followed(request, tell), JOB_S)
        return values.from_document(document.json, result)

    def _followed(self, request: Any, tell: Told | None) -> Any:
        try:
            for progress in self.channel.stream("Log.Job", request):
                if tell is not None and not progress.HasField("result"):
                    tell(progress.done, progress.total)
                if progress.HasField("result"):
                    return progress.result
        except grpc.RpcError as error:
            raise self.channel.translated(error) from None
        text = "the server ended the job's stream"
        raise Broken(text)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        return self.job("verify", Verification, tell=progress)  # type: ignore[no-any-return]

    def seal(self, progress: Callable[[Sealing], None] | None = None) -> Sealing:
        """Have the server turn every closed segment into Parquet files. ``progress`` is called once, at the end."""
        done: Sealing = self.job("seal", Sealing)
        if progress is not None:
            progress(done)
        return done

    def audit(
        self, by: By = "producer", progress: Callable[[int, int], None] | None = None, *, hands: Hands | None = None
    ) -> Audit:
        _check_hands(hands)
        return self.job("audit", Audit, by=by, tell=progress)  # type: ignore[no-any-return]

    def purge(
        self, *, remove: bool = False, progress: Callable[[int, int], None] | None = None, hands: Hands | None = None
    ) -> Purge:
        _check_hands(hands)
        return self.job("purge", Purge, remove=remove, tell=progress)  # type: ignore[no-any-return]

    def rebuild(self, progress: Callable[[int, int], None] | None = None, *, hands: Hands | None = None) -> Rebuilt:
        """Have the server make a dedup snapshot from the closed segments."""
        _check_hands(hands)
        return self.job("rebuild", Rebuilt, tell=progress)  # type: ignore[no-any-return]

    def marks(self) -> list[Mark]:
        return self.job("marks", list[Mark])  # type: ignore[no-any-return]

    def _tidy(self) -> None:
        self.job("tidy")

    def sweep(self) -> list[str]:
        return self.job("sweep", list[str])  # type: ignore[no-any-return]

    def retain(self) -> Truncation:
        return self.job("retain", Truncation)  # type: ignore[no-any-return]

    # Batches of files.

    def stage(self, tables: Iterable[Tabular]) -> Staged:
        """Store tables on the server as a file that ``Writer.ingest`` can make a part of the log."""
        return self.stage_columns([table_of(table) for table in arguments.yielding("tables", tables, "tables")], None)

    def _prepare(self, tables: Iterable[Tabular], columns: Iterable[str] | None = None) -> Any:
        """Check tables for ``store``: a bad row is refused here, before anything is sent."""
        found = [payloads.intake_of(table, self.settings_seen, self.log_id) for table in tables]
        return Payloads(found, None if columns is None else list(columns))

    def _store(self, prepared: Any) -> Staged:
        """Store what was prepared, on the server."""
        return self.stage_columns(prepared.payloads, prepared.columns)

    def stage_columns(self, tables: Sequence[pa.Table | pa.RecordBatch], columns: Sequence[str] | None) -> Staged:
        """Store tables; ``columns`` are all that they may have, if the file is to have no others.

        After a broken connection the file is sent again. A staged file that no commit adopts is deleted in the end.
        """
        self._check_usable()
        request = messages.StageRequest(log=self.name, columns=columns or (), chosen_columns=columns is not None)

        def requests() -> Iterator[bytes]:
            yield request.SerializeToString()
            for table in tables:
                for piece in _pieces(table):
                    yield frames.table_bytes(piece).to_pybytes()

        document = self.channel.again(
            lambda left_s: self.channel.gather("Log.Stage", requests(), left_s), 10 * TIMEOUT_S
        )
        return values.from_document(document.json, Staged)

    def ingest(
        self,
        staged: Sequence[Staged],
        batch: BatchName | None,
        *,
        on_conflict: OnConflict,
        on_replay: OnReplay,
        timeout_s: float | None,
    ) -> Ingested:
        """Have the server ingest staged files. With a batch it may be repeated, and is after a cut."""
        request = messages.IngestRequest(
            log=self.name,
            staged=[values.to_document(one) for one in staged],
            batch=None if batch is None else values.to_document(batch),
            on_conflict=on_conflict,
            on_replay=on_replay,
            timeout_s=timeout_s,
        )
        if batch is not None:
            found = self.channel.again(
                lambda left_s: self.channel.once("Log.Ingest", request, left_s), timeout_s, write=True
            )
        else:
            with told(write=True):
                found = self.channel.once("Log.Ingest", request, timeout_s)
        return values.from_document(found.json, Ingested)

    @closes_anywhere
    def close(self) -> None:
        """Close what was opened here; what is pending is stored first. The log stays open on the server."""
        if self._closes_now():
            close_all(self._handles)


def close_all(handles: Iterable[Handle]) -> None:
    """Close handles, all of them, also if one fails; then raise the first error."""
    errors: list[OncelogError] = []
    for handle in list(handles):
        try:
            handle.close()
        except OncelogError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _check_hands(hands: object) -> None:
    if hands is not None:
        what = "hands"
        raise unsupported(what)


def _pieces(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    """Cut a table into pieces that each fit a message, and that a server takes."""
    rows = max(1, table.num_rows * STAGE_BYTES // max(1, table.nbytes))
    for start in range(0, max(1, table.num_rows), rows):
        yield from _halved(table.slice(start, rows))


def _halved(piece: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    """Halve a piece until it is small enough spelled out. ``nbytes`` counts a text once that many rows name."""
    if piece.num_rows <= 1 or _spelled_bytes(piece) <= HTTP_BODY_BYTES_MAX:
        yield piece
        return
    half = piece.num_rows // 2
    yield from _halved(piece.slice(0, half))
    yield from _halved(piece.slice(half))


def _spelled_bytes(piece: pa.Table | pa.RecordBatch) -> int:
    """Return how many bytes the texts of dictionaries and views have, once each row has its own."""
    table = piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece])
    arrays = (part for column in table.columns for chunk in column.chunks if chunk for part in _parts(chunk))
    try:
        return sum(map(intake.spelled_bytes, arrays))
    except pa.ArrowException:  # an index without a text, say: the server refuses the piece
        return 0


def _parts(array: pa.Array) -> Sequence[pa.Array]:
    """Return the keys and items of a map, those of a slice alone; another array is its only part."""
    if not pa.types.is_map(array.type):
        return (array,)
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return array.keys.slice(first, end - first), array.items.slice(first, end - first)


READER_ABSENT = ("rows",)
TAIL_ABSENT = ("poll_rows", "take_patiently")
LOG_ABSENT = (
    "_base",
    "_compare",
    "_desk",
    "_follow_policy",
    "_holding",
    "_is_lent",
    "_lent",
    "_reader",
    "_scan",
    "_taken",
)
"""What rooms of one process call of each other on a log: not a part of the public surface."""

absent(RemoteLog, LOG_ABSENT)
absent(RemoteReader, READER_ABSENT)
absent(RemoteTail, TAIL_ABSENT)
