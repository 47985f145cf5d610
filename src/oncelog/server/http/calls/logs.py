"""Logs over HTTP: made, looked at, configured, truncated, deleted."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from oncelog.connect import Database
from oncelog.errors import InvalidArgument, NotFound, OncelogError
from oncelog.log.log import Log
from oncelog.server.http import fields, forms, paths, problem, spelling
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.http.request import NDJSON, Call, answer
from oncelog.server.jobs import Tell
from oncelog.server.security import authorize, scopes
from oncelog.settings import LogSettings
from oncelog.types import Ack, moment

NAMES_MAX = 1_000
ANSWERS_MAX = 100


def opened(call: Call) -> Log:
    """Return the log that a call is about, or the one answer for a log that is not there. For a thread."""
    kind, name = call.route.kind, call.names["log"]
    try:
        return call.server.open_log(name)
    except NotFound as error:
        if error.first is not None:
            raise
        raise scopes.missing(kind, name) from error


async def list_logs(call: Call) -> Response:
    """List the logs that the caller may look at."""
    there = await call.read(call.server.database.logs)
    return answer(page_of(call, authorize.visible(call.principal, "log", there)))


def page_of(call: Call, names: list[str]) -> forms.NamesForm:
    """Return a page of sorted names, behind ``after``."""
    after = call.query.get("after", "")
    behind = [name for name in names if name > after and name.startswith(call.query.get("prefix", ""))]
    limit = call.limit(NAMES_MAX, NAMES_MAX)
    return forms.NamesForm(behind[:limit], behind[limit - 1] if 0 < limit < len(behind) else None)


async def create(call: Call) -> Response:
    """Make a log, or find it there with the same settings."""
    form = await call.json(forms.CreateLogForm)
    settings = merged(LogSettings(), form.settings) if form.settings else None
    database = call.server.database

    def make() -> tuple[bool, LogSettings]:
        there = _is_there(database, form.name)
        if form.streams:
            database.streams(form.name, settings, create=True)
            return there, database.log(form.name).settings
        return there, database.log(form.name, settings, create=True).settings

    there, stored = await call.server.write(make)
    headers = {"location": paths.spelled("v1", "logs", form.name), "etag": settings_tag(stored)}
    return answer(stored, 200 if there else 201, headers)


def _is_there(database: Database, name: str) -> bool:
    """Tell whether a log is there. All names would be a list of 100,000, perhaps."""
    try:
        database.log(name)
    except NotFound:
        return False
    return True


async def info(call: Call) -> Response:
    """Return what there is to know about a log now."""
    found = await call.read(lambda: opened(call).info())
    return answer(found, headers={"etag": settings_tag(found.settings), "cache-control": "no-store"})


async def delete(call: Call) -> Response:
    """Delete a log and everything in it."""
    await call.read(lambda: opened(call))
    await call.server.delete_log(call.names["log"])
    return Response(None, 204)


async def configure(call: Call) -> Response:
    """Change settings: those that are given, if the settings are still those of ``If-Match``."""
    given = await call.json(dict[str, Any])

    def change() -> LogSettings:
        log = opened(call)
        check_tag(call, settings_tag(log.settings))
        log.configure(merged(log.settings, given))
        call.server.seats.renew(log.name)
        return log.settings

    stored = await call.server.workers.run(change)  # one at a time: the tag and the change belong together
    return answer(stored, headers={"etag": settings_tag(stored)})


async def settings(call: Call) -> Response:
    """Return the settings of a log, and the tag by which a change can be made sure of."""
    found = await call.read(lambda: opened(call).settings)
    return answer(found, headers={"etag": settings_tag(found), "cache-control": "no-store"})


def settings_tag(settings: object) -> str:
    """Return the ETag of settings: the same settings have the same tag, on every server."""
    return f'"{hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:16]}"'


def check_tag(call: Call, tag: str) -> None:
    """Raise ``Refused`` with 412 unless ``If-Match`` holds; with 428 if it is missing."""
    if "if-match" not in call.headers:
        message = "If-Match is missing: GET the settings, and send their ETag, so that nobody's change is lost"
        raise HttpRefusal(428, message)
    if not {"*", tag.strip('"')} & set(fields.etags(call.headers["if-match"])):
        message = "the settings have changed since: GET them again"
        raise HttpRefusal(412, message)


def merged(settings: Any, given: dict[str, Any]) -> Any:
    """Return settings with those that are given changed (RFC 7396), or raise ``InvalidArgument``."""
    kind = type(settings)
    unknown = sorted(set(given) - set(kind.__struct_fields__))
    if unknown:
        message = f"{unknown[0]!r} is no setting: there are {', '.join(kind.__struct_fields__)}"
        raise InvalidArgument(message)
    try:
        return msgspec.convert(_patched(msgspec.to_builtins(settings), given), kind)
    except msgspec.ValidationError as error:
        message = f"settings: {error}"
        raise InvalidArgument(message) from None


def _patched(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    return base | {name: _patched(base.get(name), part) for name, part in patch.items()}


async def files(call: Call) -> Response:
    """List the sealed files."""
    return answer(await call.read(lambda: opened(call).files()))


async def producers(call: Call) -> Response:
    """Return how far each producer got."""
    found = await call.read(lambda: opened(call).producers())
    return answer(
        {
            name: forms.ProducerForm(last_sequence=mark.last_sequence, last_position=mark.last_position)
            for name, mark in found.items()
        }
    )


async def find(call: Call) -> Response:
    """Tell where an id is stored, and how recent attempts with it were answered."""
    form = await call.json(forms.FindForm)
    found = await call.read(lambda: opened(call).find(form.id, stream=form.stream))
    ack = None
    if found is not None:
        ack = spelling.ack(Ack(found.position, found.segment, found.entry, found.timestamp, duplicate=True))
    seat = call.server.seats.get(call.names["log"])
    latest = seat.ring.latest(ANSWERS_MAX, id=form.id) if seat is not None else []
    answers = [
        forms.AnsweredForm(timestamp=moment(one.time_us), peer=one.peer, outcome=one.outcome, position=one.position)
        for one in latest
    ]
    since = moment(seat.opened_us) if seat is not None and seat.opened_us is not None else None
    return answer(forms.FoundForm(ack=ack, answers=answers, since=since), headers={"cache-control": "no-store"})


async def truncate(call: Call) -> Response:
    """Remove everything before a position, as far as nobody needs it."""
    form = await call.json(forms.TruncateForm)
    try:
        return answer(await call.server.write(lambda: opened(call).truncate(before=form.before)))
    except NotFound as error:  # nothing is gone: the position is not there yet
        raise NotFound(str(error)) from error


# Jobs.


async def seal(call: Call) -> Response:
    """Turn closed segments into Parquet files."""
    return await _job(call, ("seal", "", False), lambda log, _: log.seal())


async def verify(call: Call) -> Response:
    """Read everything, check every promise that can be checked."""
    return await _job(call, ("verify",), lambda log, tell: log.verify(tell))


async def _job(call: Call, kind: tuple[object, ...], work: Callable[[Log, Tell], object]) -> Response:
    """Run a long job; answer with lines that say how far it is, and in the last its result. Asked for again while it
    runs, over HTTP or gRPC, it is the same job.
    """
    log = await call.read(lambda: opened(call))
    lines = _lines(call, (log.name, *kind), lambda tell: work(log, tell))
    return StreamingResponse(lines, media_type=NDJSON, headers={"cache-control": "no-store"})


async def _lines(call: Call, key: tuple[object, ...], work: Callable[[Tell], object]) -> AsyncIterator[bytes]:
    try:
        async for one in call.server.jobs.follow(key, work):
            yield _line(forms.ProgressForm(done=one.done, total=one.total, result=one.result if one.ended else UNSET))
    except OncelogError as error:
        await call.note_failure(error)
        yield _line(forms.ProgressForm(error=problem.of(error)))


def _line(form: forms.ProgressForm) -> bytes:
    return msgspec.json.encode(form) + b"\n"
