"""The service ``Log``: records in, records out, and what can be asked of a log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, get_args

import pyarrow as pa

from oncelog.errors import InvalidArgument, Unavailable
from oncelog.limits import BLOCK_BYTES_MAX
from oncelog.log import inner
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.jobs.audit import By
from oncelog.log.log import Log
from oncelog.log.stored.staged import Staged
from oncelog.server.call import Caller
from oncelog.server.jobs import JobProgress, Tell
from oncelog.server.rpc import write_stream
from oncelog.server.rpc.calls import Requests
from oncelog.server.server import Server
from oncelog.server.tails import Encode, TailPiece
from oncelog.settings import TIMEOUT_S, LogSettings
from oncelog.types import Ack
from oncelog.wire import failures, frames, messages, values

BEAT_S = 15.0
"""So often a stream that follows a log says that nothing came."""

SILENT_S = 3600.0
"""The same where another message keeps the stream alive."""

STAGED_BYTES_MAX = 4 * BLOCK_BYTES_MAX
"""What one ``Stage`` may bring; more rows come in several."""


def _entries(piece: TailPiece) -> bytes:
    made = messages.Entries(
        entries=[values.entry_message(entry) for entry in piece.entries()],
        next_position=piece.next,
        end_position=piece.end,
    )
    return bytes(made.SerializeToString())


ENTRIES: Encode[bytes] = Encode("Entries", _entries)


def _arrow(columns: list[str] | None) -> Encode[bytes]:
    def encode(piece: TailPiece) -> bytes:
        return frames.read_bytes(piece.rows.view(columns), piece.next, piece.end)

    return Encode(("arrow", None if columns is None else tuple(columns)), encode)


def document(value: object) -> Any:
    """Return a setting or a report as a message."""
    return messages.Document(json=values.to_document(value))


def optional(request: Any, name: str, default: Any = None) -> Any:
    """Return a field of a request, or what stands for one that was not given."""
    return getattr(request, name) if request.HasField(name) else default


class LogService:
    """The methods of ``Log``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods by their names on the wire."""
        return {
            "Append": self.append,
            "Write": lambda requests, call: write_stream.write(self._server, write_stream.Messages(), requests, call),
            "WriteArrow": lambda requests, call: write_stream.write(
                self._server, write_stream.RawMessages(), requests, call
            ),
            "Read": self.read,
            "ReadArrow": self.read_arrow,
            "Find": self.find,
            "Stage": self.stage,
            "Ingest": self.ingest,
            "Info": self._asking(lambda log, _: log.info()),
            "Configure": self.configure,
            "Truncate": self._asking(lambda log, request: log.truncate(request.before)),
            "Files": self._asking(lambda log, _: log.files()),
            "Extents": self._asking(lambda log, request: inner.extents(log, request.start, request.end)),
            "Positions": self.positions,
            "Producers": self._asking(lambda log, _: log.producers()),
            "ForgetProducer": self.forget_producer,
            "Verify": self.verify,
            "Job": self.job,
        }

    def _asking(self, ask: Callable[[Log, Any], object]) -> Callable[[Any, Caller], Any]:
        """Return a method that asks a log something, and returns the answer as a document."""

        async def method(request: Any, _: Caller) -> Any:
            return await self._server.read(
                lambda: document(ask(self._server.open_log(request.log), request)), request.log
            )

        return method

    # Writing.

    async def append(self, request: Any, call: Caller) -> Any:
        """Append records; one call, one answer."""
        records = [values.record(one) for one in request.records]
        results = await self._server.seats[request.log].append(
            records, atomic=request.atomic, timeout_s=optional(request, "timeout_s", TIMEOUT_S), peer=call.peer
        )
        return messages.AppendResponse(results=[failures.result(one) for one in results])

    async def stage(self, requests: Requests, _: Caller) -> Any:
        """Store rows for a later ``Ingest``; nothing is stored before the last of them is there."""
        first = await requests.next()
        if first is None:
            message = "Stage begins with a StageRequest"
            raise InvalidArgument(message)
        opening = write_stream.parsed(messages.StageRequest, first)
        requests.admit(opening.log)
        self._server.check_serving()
        columns = list(opening.columns) if opening.chosen_columns else None
        taken = 0
        parts: list[bytes] = []
        try:
            while (data := await requests.next()) is not None:
                if taken + len(data) > STAGED_BYTES_MAX:
                    message = f"one Stage has at most {STAGED_BYTES_MAX} bytes: send the rows by several"
                    raise InvalidArgument(message)
                await self._server.budget.take(len(data))
                taken += len(data)
                parts.append(data)
            return document(await self._server.write(lambda: self._staged(opening.log, parts, columns), opening.log))
        finally:
            if taken:
                self._server.budget.give(taken)

    def _staged(self, name: str, parts: list[bytes], columns: list[str] | None) -> Staged:
        log = self._server.open_log(name)
        tables: list[pa.Table] = [frames.table(part) for part in parts]
        return inner.store(log, inner.prepare(log, tables, columns))

    async def ingest(self, request: Any, _: Caller) -> Any:
        """Make staged rows a part of the log, by its one writer."""
        staged = [values.from_document(one, Staged) for one in request.staged]
        batch = values.from_document(request.batch, BatchName) if request.HasField("batch") else None
        seat = self._server.seats[request.log]

        def work() -> Any:
            with seat.lend() as writer:
                return writer.ingest(
                    staged,
                    batch,
                    on_conflict=request.on_conflict or "quarantine",
                    on_replay=request.on_replay or "error",
                    timeout_s=optional(request, "timeout_s", TIMEOUT_S),
                )

        try:
            return document(await self._server.write(work, request.log))
        finally:
            self._server.wake(request.log)

    # Reading.

    async def read(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Yield records as messages."""
        async for message in self._pieces(request, ENTRIES, lambda at: messages.Entries(next_position=at)):
            yield message

    async def follow(self, request: Any, _: Caller) -> AsyncIterator[bytes]:
        """Yield records as messages for ever, and nothing while none come."""
        request.follow = True
        async with contextlib.aclosing(self._pieces(request, ENTRIES, lambda _: None, beat_s=SILENT_S)) as found:
            async for message in found:
                if message is not None:
                    yield message

    async def read_arrow(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Yield records in columns."""
        columns = list(request.columns) if request.chosen_columns else None
        async for message in self._pieces(
            request, _arrow(columns), lambda at: frames.read_bytes(None, at, at), columns
        ):
            yield message

    async def _pieces(
        self,
        request: Any,
        encode: Encode[bytes],
        beat: Callable[[int], Any],
        columns: list[str] | None = None,
        beat_s: float = BEAT_S,
    ) -> AsyncGenerator[Any, None]:
        """Yield pieces that are encoded already; ``beat`` makes a message that says that nothing came."""
        start = values.start(request.start)
        lease_s = optional(request, "lease_s")
        tails = self._server.tails
        if not request.follow:
            limit = optional(request, "limit")
            found = tails.read(
                request.log, start, encode, limit=limit, lease_s=lease_s, columns=columns, log_id=request.log_id
            )
            async with contextlib.aclosing(found):  # type: ignore[type-var]
                async for _, data in found:
                    yield data
            return
        following = tails.follow(request.log, start, encode, lease_s=lease_s, beat_s=beat_s, log_id=request.log_id)
        async with contextlib.aclosing(following):
            async for piece, made in following:
                yield made if piece is not None else beat(made)  # type: ignore[arg-type]
        message = "this server stops: read on from another one, or from here later"
        raise Unavailable(message, retry_after_s=self._server.retry_after_s())

    async def positions(self, request: Any, _: Caller) -> Any:
        """Return where the log begins and ends, and where reading would begin."""

        def work() -> Any:
            log = self._server.open_log(request.log)
            found = messages.PositionsResponse(first=log.first_position(), end=log.end_position())
            if request.HasField("start"):
                found.at = log.position_at(values.start(request.start))
            return found

        return await self._server.read(work, request.log)

    async def find(self, request: Any, _: Caller) -> Any:
        """Return where an id is stored."""

        def work() -> Any:
            found = self._server.open_log(request.log).find(request.id, stream=optional(request, "stream"))
            if found is None:
                return messages.FindResponse()
            ack = Ack(found.position, found.segment, found.entry, found.timestamp, duplicate=True)
            return messages.FindResponse(ack=values.ack_message(ack), fingerprint=found.fingerprint)

        return await self._server.read(work, request.log)

    # Administering.

    async def configure(self, request: Any, _: Caller) -> Any:
        """Change the settings of a log, unless it has changed since ``if_version``; return those that are stored."""
        settings = values.from_document(request.settings, LogSettings)

        def work() -> Any:
            log = self._server.open_log(request.name)
            if request.HasField("if_version") and log.info().version != request.if_version:
                message = f"log {request.name!r} has changed since version {request.if_version}: look at it again"
                raise InvalidArgument(message)
            log.configure(settings)
            self._server.seats.renew(request.name)
            return document(log.settings)

        return await self._server.write(work, request.name)

    async def forget_producer(self, request: Any, _: Caller) -> Any:
        """Forget how far a producer got."""
        seat = self._server.seats[request.log]

        def work() -> bool:
            with seat.lend():
                return self._server.open_log(request.log).forget_producer(request.producer)

        return messages.Flag(value=await self._server.write(work, request.log))

    # Jobs.

    async def verify(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Verify a log; yield how far that is, and the result."""
        async for message in self._job((request.log, "verify"), lambda tell: self._log(request).verify(tell)):
            yield message

    async def job(self, request: Any, _: Caller) -> AsyncIterator[Any]:
        """Run a long job; yield how far that is, and the result."""
        if request.kind == "snapshot":
            async for message in self._job((request.log, "snapshot"), lambda _: self._snapshot(request.log)):
                yield message
            return
        if request.kind not in _JOBS:
            message = f"job {request.kind!r}: there are snapshot, {', '.join(_JOBS)}"
            raise InvalidArgument(message)
        key = (request.log, request.kind, request.by, request.remove)
        async for message in self._job(key, lambda tell: _JOBS[request.kind](self._log(request), request, tell)):
            yield message

    def _snapshot(self, name: str) -> None:
        with self._server.seats[name].lend() as writer:
            writer.snapshot()

    def _log(self, request: Any) -> Log:
        return self._server.open_log(request.log)

    async def _job(self, key: tuple[object, ...], work: Callable[[Tell], Any]) -> AsyncIterator[Any]:
        async for progress in self._server.jobs.follow(key, work):
            yield _progress(progress)


def _progress(progress: JobProgress) -> Any:
    made = messages.Progress(done=progress.done, total=progress.total)
    if progress.ended:
        made.result.CopyFrom(document(progress.result))
    return made


def _seal(log: Log, _: Any, tell: Tell) -> object:
    done = 0

    def sealed(_: object) -> None:
        nonlocal done
        done += 1
        tell(done, 0)

    return log.seal(sealed)


def _audit(log: Log, request: Any, tell: Tell) -> object:
    by: Any = request.by or "producer"
    if by not in get_args(By):
        message = f"audit by {by!r}: there are {', '.join(get_args(By))}"
        raise InvalidArgument(message)
    return log.audit(by, tell)


_JOBS: dict[str, Callable[[Log, Any, Tell], object]] = {
    "verify": lambda log, _, tell: log.verify(tell),
    "seal": _seal,
    "audit": _audit,
    "purge": lambda log, request, tell: log.purge(remove=request.remove, progress=tell),
    "rebuild": lambda log, _, tell: log.rebuild(tell),
    "tidy": lambda log, _, __: inner.tidy(log),
    "sweep": lambda log, _, __: log.sweep(),
    "retain": lambda log, _, __: log.retain(),
    "marks": lambda log, _, __: log.marks(),
}
