"""Records over HTTP: appended one by one, in NDJSON or in Arrow; read in pages."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence

import msgspec
import pyarrow as pa
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oncelog import limits
from oncelog.errors import AppendErrors, InvalidArgument, NotAuthenticated, NotFound, OncelogError
from oncelog.format.payload import columns, intake
from oncelog.log.log import Log
from oncelog.log.read.scan import Start
from oncelog.server.http import fields, forms, paths, problem, spelling
from oncelog.server.http.answers import LargeAnswer
from oncelog.server.http.bodies import Gone
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.http.request import ARROW, BYTES, JSON, NDJSON, Call, answer
from oncelog.types import Ack, ColumnAcks, Entry, Record
from oncelog.wire import frames

PAGE_RECORDS = 1_000
PAGE_BYTES_MAX = 16 * limits.MIB
"""A page ends before this, unless its first record alone is larger."""

_GROUP_BYTES = limits.MIB
"""Of a body that is taken as it comes, so much is appended at once."""

_UNSAFE = "unsafe"
_SAFE = "same id"


async def append(call: Call) -> Response:
    """Append what the body holds."""
    atomic = fields.flag("atomic", call.query.get("atomic"))
    match call.media_type:
        case _ if call.media_type == NDJSON:
            return await _append_lines(call, atomic=atomic)
        case _ if call.media_type == ARROW:
            return await _append_arrow(call, atomic=atomic)
    record = fields.record(await call.body.whole(limits.VALUE_BYTES_MAX), call.headers)
    [found] = await _appended(call, [record], atomic=atomic)
    return single(found, paths.spelled("v1", "logs", call.names["log"], "records"), safe=is_safe([record]))


def single(found: Ack | OncelogError, place: str, *, safe: bool) -> Response:
    """Return the answer to one record: 201 when it is new, 200 when it was there."""
    if isinstance(found, OncelogError):
        return problem.response(found, retry=_SAFE if safe else _UNSAFE)
    headers = {} if found.position is None else {"location": f"{place}/{found.position}"}
    if found.duplicate:
        headers["idempotent-replayed"] = "true"
    return answer(spelling.ack(found), 200 if found.duplicate else 201, headers)


def is_safe(records: Sequence[Record]) -> bool:
    """Tell whether records may be sent again whatever became of them: each has an id or a sequence."""
    return all(record.id is not None or record.sequence is not None for record in records)


async def _appended(call: Call, records: Sequence[Record], *, atomic: bool) -> Sequence[Ack | OncelogError]:
    """Append records through the log's seat; an unknown outcome says whether they may be sent again."""
    try:
        return await call.server.seats[call.names["log"]].append(
            records, atomic=atomic, timeout_s=call.timeout_s(), peer=call.peer
        )
    except OncelogError as error:
        if len(records) == 1 and not atomic:
            return [error]
        raise _Unanswered(error, safe=is_safe(records)) from error


class _Unanswered(Exception):
    """All records of a request got one error."""

    def __init__(self, error: OncelogError, *, safe: bool) -> None:
        super().__init__(str(error))
        self.response = problem.response(error, retry=_SAFE if safe else _UNSAFE)


def check_no_key(call: Call) -> None:
    """Refuse an id in the headers beside records that bring their own."""
    if fields.record_id(call.headers) is not None:
        message = "Idempotency-Key is the id of one record: in NDJSON and Arrow each record brings its own"
        raise InvalidArgument(message)


# NDJSON.


async def _append_lines(call: Call, *, atomic: bool) -> Response:
    check_no_key(call)
    held = bytearray()
    parts = call.body.parts()
    async for part in parts:
        held += part
        if len(held) > limits.HTTP_BODY_BYTES_MAX:
            if atomic:
                message = f"an atomic body has at most {limits.HTTP_BODY_BYTES_MAX} bytes"
                raise HttpRefusal(413, message)
            return AnswerWhileReceiving(_as_they_come(call, held, parts), media_type=NDJSON)
    records = await lines(call, bytes(held))
    if not records:
        message = "the body has no record"
        raise InvalidArgument(message)
    try:
        found = await _appended(call, records, atomic=atomic)
    except _Unanswered as error:
        return error.response
    return await call.apart(len(held), lambda: _many(found))


async def lines(call: Call, data: bytes) -> list[Record]:
    """Return the records of NDJSON."""
    return await call.apart(
        len(data), lambda: [spelling.record(form) for form in spelling.lines(data, forms.RecordForm)]
    )


def _many(found: Sequence[Ack | OncelogError]) -> Response:
    """Return the answers to several records: 201, 200 when all were there, 207 when some were refused."""
    refused = any(isinstance(one, OncelogError) for one in found)
    new = any(isinstance(one, Ack) and not one.duplicate for one in found)
    return answer(spelling.results(found), 207 if refused else 201 if new else 200)


async def _as_they_come(call: Call, held: bytearray, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Append the lines of a long body as they come, and yield a result for each; the last line says ``done``.

    Without the last line, what became of the lines without a result is not known.
    """
    try:
        async for group in _groups(call, held, parts):
            if not call.is_valid():
                message = "the token was revoked, or has expired"
                raise NotAuthenticated(message)
            found = await _group(call, group)
            yield await call.apart(len(group), functools.partial(_result_lines, found))
        yield b'{"done":true}\n'
    except Gone:
        return
    except OncelogError as error:
        yield msgspec.json.encode({"error": problem.of(error), "done": False}) + b"\n"


def _result_lines(found: Sequence[Ack | OncelogError]) -> bytes:
    return msgspec.json.Encoder().encode_lines([spelling.result(one) for one in found])


class AnswerWhileReceiving(LargeAnswer):
    """A response that begins before the request has ended: it leaves receiving to the request's body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (as Starlette has it)
        """Send what is yielded; a client that leaves ends the body, and with it this."""
        await self.stream_response(send)


async def _groups(call: Call, held: bytearray, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines, about a megabyte at a time, and give their bytes back when they are stored."""
    while True:
        while (end := held.rfind(b"\n", 0, _GROUP_BYTES) + 1) or (end := held.find(b"\n") + 1):
            yield bytes(held[:end])
            del held[:end]
            call.body.let_go(end)
        if len(held) > limits.HTTP_LINE_BYTES_MAX:
            message = f"a line has more than {limits.HTTP_LINE_BYTES_MAX} bytes"
            raise HttpRefusal(413, message)
        try:
            held += await anext(parts)
        except StopAsyncIteration:
            break
    if held:
        yield bytes(held)


async def _group(call: Call, group: bytes) -> Sequence[Ack | OncelogError]:
    records = await lines(call, group)
    if not is_safe(records):
        message = f"a body of more than {limits.HTTP_BODY_BYTES_MAX} bytes needs an id on every record"
        raise InvalidArgument(message)
    if not records:
        return []
    return await call.server.seats[call.names["log"]].append(records, timeout_s=call.timeout_s(), peer=call.peer)


# Arrow.


async def _append_arrow(call: Call, *, atomic: bool) -> Response:
    check_no_key(call)
    data = await call.body.whole()
    table = await call.server.read(lambda: frames.table(data))
    wanted = call.accepts(JSON, ARROW)
    if atomic:
        return await _append_whole(call, table, wanted)
    try:
        acks = await call.server.seats[call.names["log"]].append_arrow(
            table, timeout_s=call.timeout_s(), peer=call.peer
        )
    except AppendErrors as errors:
        if wanted == ARROW:
            return Response(frames.refused_bytes(errors.results).to_pybytes(), 207, media_type=ARROW)
        return _many(errors.results)
    except OncelogError as error:
        safe = "id" in table.column_names and not table.column("id").null_count
        return problem.response(error, retry=_SAFE if safe else _UNSAFE)
    status = 200 if len(acks.duplicates) and acks.duplicates.all() else 201
    if wanted == ARROW:
        return Response(frames.columns_bytes(acks).to_pybytes(), status, media_type=ARROW)
    return answer(spelling.results(_acks(acks)), status)


async def _append_whole(call: Call, table: pa.Table, wanted: str) -> Response:
    """Append the rows of a table, all or none."""
    records = await call.server.read(lambda: _records(table))
    if not records:
        message = "the table has no row"
        raise InvalidArgument(message)
    try:
        found = await _appended(call, records, atomic=True)
    except _Unanswered as error:
        return error.response
    if wanted != ARROW:
        return _many(found)
    new = any(isinstance(one, Ack) and not one.duplicate for one in found)
    return Response(frames.refused_bytes(found).to_pybytes(), 201 if new else 200, media_type=ARROW)


def _records(table: pa.Table) -> list[Record]:
    """Return the rows of a table as records, or raise ``InvalidArgument``. For a thread."""
    payload = intake.normalise(table)
    intake.check_limits(payload)
    labels = ("id", "stream", "type", "headers", "producer", "sequence", "tenant")
    rows = columns.entries(payload, 0, 0, 0, 0)
    return [Record(row.value, **{name: getattr(row, name) for name in labels}) for row in rows]


def _acks(acks: ColumnAcks) -> list[Ack | OncelogError]:
    rows = zip(acks.positions.tolist(), acks.duplicates.tolist(), acks.conflicts.tolist(), strict=True)
    return [Ack(at if at >= 0 else None, None, None, None, again, other) for at, again, other in rows]


# Reading.


def begin(log: Log, start: Start) -> int:
    """Return where reading begins. What is not there yet is a 404; only what was truncated away is gone."""
    try:
        return log.position_at(start)
    except NotFound as error:
        if isinstance(start, int) and start >= log.first_position():
            raise NotFound(str(error)) from error
        raise


def _page(log: Log, start: Start, limit: int) -> tuple[list[Entry], int, int]:
    """Return entries, the position behind them, and the log's end. For a thread."""
    end = log.end_position()
    first = begin(log, start)
    found: list[Entry] = []
    size_bytes = 0
    next_position = min(end, first + limit)
    with log.read(first, limit=limit) as entries:
        for entry in entries:
            size_bytes += len(entry.value)
            if found and size_bytes > PAGE_BYTES_MAX:
                return found, entry.position, end
            found.append(entry)
    return found, max(next_position, found[-1].position + 1 if found else first), max(end, next_position)


async def read(call: Call) -> Response:
    """Return a page of records as JSON, NDJSON or Arrow."""
    start = fields.start(call.query.get("start", "earliest"))
    limit = call.limit(PAGE_RECORDS, limits.HTTP_READ_RECORDS_MAX)
    wanted = call.accepts(JSON, NDJSON, ARROW)
    name = call.names["log"]
    await call.room.take(PAGE_BYTES_MAX, name)
    if wanted == ARROW:
        return await call.read(lambda: _arrow_page(call.server.open_log(name), start, limit))
    return await call.read(lambda: _json_page(call.server.open_log(name), start, limit, wanted))


def _json_page(log: Log, start: Start, limit: int, wanted: str) -> Response:
    found, next_position, end = _page(log, start, limit)
    entries = [spelling.entry(one) for one in found]
    headers = {"oncelog-next": str(next_position), "oncelog-end": str(end), "cache-control": "no-store"}
    if wanted == NDJSON:
        return Response(msgspec.json.Encoder().encode_lines(entries), 200, headers, media_type=NDJSON)
    return answer(forms.EntriesForm(entries=entries, next=next_position, end=end), 200, headers)


def _arrow_page(log: Log, start: Start, limit: int) -> Response:
    """Return a page in columns: whole blocks, until the page is large enough."""
    first = begin(log, start)
    end = log.end_position()
    batches: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in log.read_arrow(first, limit=limit):
        batches.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > PAGE_BYTES_MAX:
            break
    rows = sum(batch.num_rows for batch in batches)
    next_position = batches[-1].column("position")[-1].as_py() + 1 if rows else min(end, first + limit)
    headers = {"oncelog-next": str(next_position), "oncelog-end": str(end), "cache-control": "no-store"}
    data = frames.table_bytes(pa.Table.from_batches(batches)) if batches else b""
    return Response(bytes(data), 200 if batches else 204, headers, media_type=ARROW)


async def read_one(call: Call) -> Response:
    """Return one record. It never changes, so its ETag is strong."""
    position = fields.whole("position", call.names["position"], least=0)
    wanted = call.accepts(JSON, BYTES)
    await call.room.take(limits.VALUE_BYTES_MAX, call.names["log"])
    log, entry = await call.read(lambda: _one(call.server.open_log(call.names["log"]), position))
    etag = f'"{log.log_id}-{position}"'
    headers = {"etag": etag, "cache-control": "private, max-age=0, must-revalidate"}
    if "if-none-match" in call.headers and etag.strip('"') in fields.etags(call.headers["if-none-match"]):
        return Response(None, 304, headers)
    if wanted == BYTES:
        return Response(entry.value, 200, headers | {"x-content-type-options": "nosniff"}, media_type=BYTES)
    return answer(spelling.entry(entry), 200, headers)


def _one(log: Log, position: int) -> tuple[Log, Entry]:
    if position >= log.end_position():
        message = f"log {log.name!r} has no record {position} yet"
        raise NotFound(message)
    with log.read(position, limit=1) as entries:
        for entry in entries:
            return log, entry
    message = f"record {position} of log {log.name!r} was purged"
    raise HttpRefusal(410, message)
