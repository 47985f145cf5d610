"""``oncelog stream``: the streams of a log, their events, and those to come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import oncelog
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Create, InputFormat, Json, Limit, Name, Url, Wait, Yes
from oncelog.cli.terminal.output import json_value, note, plural, print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_count, show_time
from oncelog.errors import InvalidArgument, NotFound
from oncelog.redaction import harmless

if TYPE_CHECKING:
    from oncelog.streams.events import EventAck, Expected, StreamEvent, StreamInfo
    from oncelog.streams.streams import Streams

app = Verbs("stream", "Streams: events with versions, in a log that takes ids for those of their stream.")

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", show_default=False)]
MaybeStream = Annotated[
    str | None, typer.Argument(metavar="[STREAM]", help="The stream; without one, all.", show_default=False)
]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only streams whose names begin so.")]
Types = Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")]


@contextmanager
def _opened(url: str, name: str, *, create: bool | None = None) -> Iterator[Streams]:
    """Open a log's streams, or make it; ``create`` is ``None`` for a command that cannot."""
    with oncelog.connect(url) as db:
        try:
            streams = db.streams(name, create=bool(create))
        except NotFound as error:
            hint = "--create makes it" if create is not None else "the first append makes it, with --create"
            message = f"there is no log {name!r} at {url}: {hint}, or see oncelog log list"
            raise NotFound(message) from error
        yield streams


def _expected(text: str) -> Expected:
    """Return what is expected of a stream, as people write it."""
    words = text.replace("-", " ")
    if words in ("any", "no stream", "exists"):
        return words  # type: ignore[return-value]
    if text.isascii() and text.isdecimal():
        return int(text)
    message = f"{text!r}: write any, no-stream, exists, or the version of the stream's last event"
    raise typer.BadParameter(message)


@app.verb(
    "append orders order-42 events.jsonl --expected no-stream --create",
    "append orders order-42 --expected 3 --type Paid < value.txt",
)
def append(
    name: Name,
    stream: StreamName,
    url: Url,
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="What to read; - or nothing is stdin.", show_default=False)
    ] = Path("-"),
    *,
    expected: Annotated[
        Any,
        typer.Option(parser=_expected, metavar="VERSION", help="any, no-stream, exists, or the last event's version."),
    ] = "any",
    type: Annotated[str | None, typer.Option(metavar="TYPE", help="The type of events that do not say theirs.")] = None,
    format: Annotated[
        InputFormat | None, typer.Option(help="The form of the input.", show_default="by the file's name; else lines")
    ] = None,
    create: Create = False,
    wait: Wait = 5.0,
    json: Json = False,
) -> None:
    """Append the events of a file to a stream, all or none.

    [bold]lines[/]: each line is an event's value. [bold]jsonl[/]: each line is an object with value or value_base64,
    and optionally id, type, headers. Run again under the same ids, it answers with the versions of the first time.
    """
    from oncelog.cli.records import appending  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    records = [
        msgspec.structs.replace(record, type=type) if record.type is None else record
        for record in appending.records_of(file, format)
    ]
    with _opened(url, name, create=create) as streams:
        acks = streams.append(stream, records, expected=expected, wait_s=wait)
    if json:
        print_json({"log": name, "stream": stream, "events": [msgspec.to_builtins(ack) for ack in acks]})
    elif acks:
        say((harmless(stream), "cyan"), ": ", plural(len(acks), "event"), _told(acks))
    else:
        say((harmless(stream), "cyan"), ": nothing to append")


def _told(acks: Sequence[EventAck]) -> str:
    """Return what became of events, in words."""
    last = f"{acks[-1].version:,}"
    if not acks[0].duplicate:
        return f", now at version {last}"
    other = sum(ack.conflict for ack in acks)
    stands = f" with other content, which stands ({other:,} of them)" if other else ""
    return f", {'a duplicate' if len(acks) == 1 else 'duplicates'}{stands}, up to version {last}"


@app.verb("read orders order-42", "read orders order-42 --from 10 --limit 5 --json", "read orders --backward --limit 1")
def read(
    name: Name,
    url: Url,
    stream: MaybeStream = None,
    *,
    begin: Annotated[
        int | None, typer.Option("--from", min=0, metavar="N", help="The version, or for all streams the position.")
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", metavar="", help="The last one first.")] = False,
    limit: Limit = None,
    prefix: Prefix = "",
    types: Types = None,
    json: Json = False,
) -> None:
    """Write the events of a stream, or of all, one a line."""
    direction: Any = "backward" if backward else "forward"
    _check_chosen(stream, prefix, types)
    with _opened(url, name) as streams:
        if stream is not None:
            events = streams.read(stream, begin, limit=limit, direction=direction)
        else:
            events = streams.read_all(begin, limit=limit, direction=direction, prefix=prefix, types=types)
        for event in events:
            _print(event, as_json=json)


def _check_chosen(stream: str | None, prefix: str, types: list[str] | None) -> None:
    if stream is not None and (prefix or types):
        message = "--prefix and --type choose among all streams: leave the stream out"
        raise InvalidArgument(message)


@app.verb("subscribe orders", "subscribe orders order-42 --json", "subscribe orders --prefix order- --from latest")
def subscribe(
    name: Name,
    url: Url,
    stream: MaybeStream = None,
    *,
    begin: Annotated[
        str, typer.Option("--from", metavar="N", help="The version, or for all streams the position; or latest.")
    ] = "0",
    limit: Limit = None,
    prefix: Prefix = "",
    types: Types = None,
    json: Json = False,
) -> None:
    """Write events as they come, after those that are there, until Ctrl-C.

    A line on stderr says when all events that were stored before are written.
    """
    if begin != "latest" and not (begin.isascii() and begin.isdecimal()):
        message = f"--from {begin!r}: write a version or position, or latest"
        raise InvalidArgument(message)
    _check_chosen(stream, prefix, types)
    start: Any = "latest" if begin == "latest" else int(begin)
    with _opened(url, name) as streams:
        chosen = (
            streams.subscribe_all(start or "earliest", prefix=prefix, types=types)
            if stream is None
            else streams.subscribe(stream, start)
        )
        left = limit
        with chosen as events:
            while left is None or left > 0:
                event = events.poll(1.0)
                if isinstance(event, oncelog.CaughtUp):
                    note(("caught up", "dim"), f" at position {event.position:,}")
                elif event is not None:
                    _print(event, as_json=json)
                    sys.stdout.flush()
                    left = None if left is None else left - 1


def _print(event: StreamEvent, *, as_json: bool) -> None:
    if not as_json and sys.stdout.isatty():
        place = harmless(f"{event.stream}@{event.version}")
        say((place, "cyan"), "  ", (harmless(event.type or "-"), "dim"), "  ", harmless(event.value))
        return
    if not as_json:  # for a pipe: columns, separated by tabs, the value as it is
        place = f"{event.stream}@{event.version}\t{event.type or ''}\t"
        sys.stdout.buffer.write(place.encode() + event.value + b"\n")
        return
    fields = {
        "stream": event.stream,
        "version": event.version,
        "position": event.position,
        "timestamp": show_time(event.timestamp),
        "id": event.id,
        "type": event.type,
    }
    fields |= json_value(event.value)
    if event.headers:
        from oncelog.cli.records.sinks import headers_of  # noqa: PLC0415 (pyarrow is not for those who ask for help)

        fields["headers"] = headers_of(event.headers)
    print_json(fields)


@app.verb("create orders", "create shop/orders --json")
def create(name: Name, url: Url, *, json: Json = False) -> None:
    """Create a log for streams: an id is one of its stream there. One that is there is left as it is.

    For other settings: oncelog log create --id-scope stream.
    """
    with oncelog.connect(url) as db:
        there = name in db.logs()
        db.streams(name, create=True)
    if json:
        print_json({"log": name, "created": not there})
    else:
        say((name, "cyan"), " was there already" if there else " is there, for streams")


@app.verb("delete orders", "delete orders --yes")
def delete(name: Name, url: Url, *, yes: Yes = False, json: Json = False) -> None:
    """Delete a log with all its streams, for good. A single stream cannot be deleted: the log is append-only."""
    with _opened(url, name) as streams:
        found = streams.list()
    events = sum(one.count for one in found)
    if not yes:
        lost = f"{show_count(len(found), 'stream')} with {show_count(events, 'event')} will be gone"
        asking.confirm_name(f"{lost}. Type the log's name to go on", name)
    with oncelog.connect(url) as db:
        db.delete(name)
    if json:
        print_json({"log": name, "deleted": True, "streams": len(found), "events": events})
    else:
        say((name, "cyan"), " is deleted, with ", plural(len(found), "stream"), " and ", plural(events, "event"))


@app.verb("list orders", "list orders --prefix order- --json | jq -r .stream", name="list")
def list_streams(name: Name, url: Url, *, prefix: Prefix = "", json: Json = False) -> None:
    """List the streams there are, with their versions."""
    with _opened(url, name) as streams:
        found = streams.list(prefix)
    begins = f" that begins with {prefix!r}" if prefix else ""
    columns = [("stream", "left"), ("version", "right"), ("events", "right"), ("last position", "right")]
    print_list(found, columns, _row, (name, "cyan"), f" has no stream{begins}", json=json)


def _row(one: StreamInfo) -> tuple[str, ...]:
    last = "" if one.last_position is None else f"{one.last_position:,}"
    return one.stream, f"{one.version:,}", f"{one.count:,}", last
