"""``oncelog queue``: work queues, from sending to their end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

import oncelog
from oncelog.cli.commands.logs.describe import refusals
from oncelog.cli.commands.queues import settings as queue_settings
from oncelog.cli.commands.queues.dead_letters import dlq
from oncelog.cli.commands.queues.options import (
    Group,
    QueueName,
    State,
    named_queue,
    opened_queue,
    short,
    text_of,
)
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Create, Json, Limit, Url, Yes
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import json_value, note, plural, print_json, print_list, print_table, print_text, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import duration_s, show_count, show_duration, show_time
from oncelog.errors import NotFound

if TYPE_CHECKING:
    from oncelog import Database, Delivery
    from oncelog.cli.records.sending import SendingRun
    from oncelog.queue.deliver.consumer import Consumer
    from oncelog.queue.inspect import QueueStats

app = Verbs("queue", "Work queues: send, consume, look, and deal with dead letters.")
app.add_typer(dlq, name="dlq")
queue_settings.add_to(app)

_BATCH = 500
Force = Annotated[bool, typer.Option("--force", metavar="", help="Also while workers hold messages of it.")]


@app.verb("create emails", "create emails --partitions 4")
def create(
    name: QueueName,
    url: Url,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The logs it is spread over: fixed from now on.", show_default="1"),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", metavar="", help="Its state is lost: begin again with all messages in its logs.")
    ] = False,
    state: State = None,
    json: Json = False,
) -> None:
    """Create a queue. One that is there with as many partitions is left as it is."""
    with oncelog.connect(url) as db:
        queue = db.queue(name, partitions=partitions, create=True, adopt=adopt, state=state)
        if json:
            print_json({"queue": queue.name, "partitions": queue.partitions})
        else:
            say((name, "cyan"), " is there, with ", plural(queue.partitions, "partition"))


@app.verb("list", "list --json | jq -r .name", name="list")
def list_queues(url: Url, *, state: State = None, json: Json = False) -> None:
    """List the queues there are: how many messages were sent, and what waits in all groups."""
    with oncelog.connect(url) as db:
        found = [db.queue(name, state=state).stats() for name in db.queues(state=state) if not name.startswith("dlq.")]
    rows = [
        {
            "name": stats.name,
            "partitions": stats.partitions,
            "sent": sum(stats.ends),
            "groups": len(stats.groups),
            "lag": sum(group.lag for group in stats.groups.values()),
        }
        for stats in found
    ]
    columns = [("queue", "left"), *((heading, "right") for heading in ("partitions", "sent", "groups", "lag"))]
    print_list(rows, columns, _row, "no queues at ", (url, "cyan"), json=json)


def _row(queue: dict[str, Any]) -> list[str]:
    name, *counts = queue.values()
    return [name, *(f"{count:,}" for count in counts)]


@app.verb(
    "send emails 'welcome!' --id user-7",
    "send emails --key customer-7 --delay 10m hello",
    "send emails < day.txt",
    "send emails --id-field user.id < day.jsonl",
)
def send(
    name: QueueName,
    url: Url,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="What to send; nothing: each line of stdin.", show_default=False),
    ] = None,
    *,
    id: Annotated[str, typer.Option(help="The id of the one message: sent again, it is there once.")] = "",
    id_field: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where each JSON document has its id, as in user.id.")
    ] = None,
    key: Annotated[str, typer.Option(help="What picks its partition, and is kept in order.")] = "",
    tenant: Annotated[str, typer.Option(help="Whose it is.")] = "",
    delay: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="How long to hold it back.", show_default="0 s")
    ] = 0.0,
    deadline: Annotated[
        float | None,
        typer.Option(parser=duration_s, metavar="DURATION", help="After which it is not delivered, but dead."),
    ] = None,
    create: Create = False,
    state: State = None,
    json: Json = False,
) -> None:
    """Send messages. They are durable when this ends.

    With --id, one message: sent again, also after an error, it is in the queue once. With --id-field, each value or
    line is a JSON document that has its own id. Refused ones are shown on stderr; everything else is sent, and the exit
    code is 1.
    """
    from oncelog.cli.records.sending import SendingRun  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    if id and (id_field is not None or len(values or ()) != 1):
        message = "--id is for one message: give its value; --id-field is for many"
        raise typer.BadParameter(message)
    common = {"id": id, "key": key, "tenant": tenant, "delay_s": delay, "deadline_s": deadline}
    with opened_queue(url, name, state, create=create) as queue:
        run = SendingRun(queue, common, refusals(as_json=json))
        try:
            run.run(values, id_field)
        finally:
            _tell_sent(name, run, as_json=json)
    if run.refused:
        raise typer.Exit(ExitCode.FINDINGS)


def _tell_sent(name: str, run: SendingRun, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": name, "sent": run.sent, "duplicates": run.duplicates, "refused": run.refused})
        return
    known = f", {show_count(run.duplicates, 'duplicate')}" if run.duplicates else ""
    refused = (f", {run.refused:,} refused", "yellow") if run.refused else ""
    say((name, "cyan"), ": ", plural(run.sent, "message"), f" sent{known}", refused)


@app.verb(
    "consume emails --group mailer", "consume emails -g mailer --limit 10 --json | jq .value", "consume emails -f"
)
def consume(
    name: QueueName,
    url: Url,
    *,
    group: Group = "default",
    limit: Limit = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", metavar="", help="Wait for more, until Ctrl-C.")] = False,
    state: State = None,
    json: Json = False,
) -> None:
    """Write messages to stdout, and acknowledge each once it is written.

    Ends when there are none to deliver now. Killed in between, it may write a message again the next time.
    """
    with opened_queue(url, name, state) as queue, queue.consume(group, prefetch=100) as consumer:
        left = limit if limit is not None else -1
        while left:
            found = consumer.receive(_BATCH if left < 0 else min(left, _BATCH), timeout_s=1.0 if follow else 0.0)
            if not found and not follow:
                break
            if found:
                _write_all(consumer, found, json=json)
            left -= len(found)
        if not json and queue.stats().paused:
            note(f"{name} is paused: it delivers nothing until oncelog queue resume {name}")


def _write_all(consumer: Consumer, found: list[Delivery], *, json: bool) -> None:
    """Write deliveries, then acknowledge them; those that cannot be written (a broken pipe, Ctrl-C) are refused."""
    try:
        for delivery in found:
            _write(delivery, json=json)
        sys.stdout.flush()
    except BaseException as error:
        consumer.nack(found, f"not written: {error!r}")
        raise
    consumer.ack(found)


def _write(delivery: Delivery, *, json: bool) -> None:
    if not json:
        print_text(text_of(delivery.value))
        return
    print_json(
        {
            "id": delivery.id,
            "key": delivery.key,
            "tenant": delivery.tenant,
            "partition": delivery.partition,
            "position": delivery.position,
            "attempts": delivery.attempts,
            "last_error": delivery.last_error,
            "sent_at": show_time(delivery.sent_at),
            "headers": {header: text_of(value) for header, value in delivery.headers.items()},
            **json_value(delivery.value),
        }
    )


@app.verb("stats", "stats emails", "stats emails --json | jq '.groups[].lag'")
def stats(
    url: Url,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The queue's name; nothing: all.", show_default=False)
    ] = None,
    *,
    state: State = None,
    json: Json = False,
) -> None:
    """Show how far each group is: what is new, in workers' hands, waiting, dead. With --json: one object a queue."""
    with oncelog.connect(url) as db:
        names = [name] if name is not None else db.queues(state=state)
        found = [named_queue(db, one, state).stats() for one in names]
    for one in found if json else ():
        print_json(one)
    if not json:
        _print_stats(url, found)


def _print_stats(url: str, found: list[QueueStats]) -> None:
    if not found:
        say("no queues at ", (url, "cyan"))
        return
    headings = ("lag", "new", "leased", "waiting", "dying", "acked", "refused", "timed out", "buried")
    columns = [("queue", "left"), ("group", "left"), *((heading, "right") for heading in headings), ("", "left")]
    rows: list[list[str | Text]] = []
    for queue in found:
        if not queue.groups:
            rows.append([Text(queue.name, "cyan"), "-", f"{sum(queue.ends):,}", *([""] * 8), _paused(queue.paused)])
        for name, group in queue.groups.items():
            counts = [group.lag, group.new, group.leased, group.waiting, group.dying, group.acked, group.refused]
            counts += [group.timed_out, group.buried]
            shown = [f"{count:,}" for count in counts]
            rows.append([Text(queue.name, "cyan"), name, *shown, _paused(queue.paused or group.paused)])
    print_table(columns, rows)


def _paused(paused: bool) -> Text:  # noqa: FBT001 (it says what it is)
    return Text("paused" if paused else "", "yellow")


@app.verb("peek emails --group mailer", "peek emails --limit 3 --json")
def peek(
    name: QueueName, url: Url, *, group: Group = "default", limit: Limit = 10, state: State = None, json: Json = False
) -> None:
    """Show the first messages that a group has not settled, and how each stands, without delivering them."""
    with opened_queue(url, name, state) as queue:
        found = queue.peek(group, limit=limit if limit is not None else 10)
    for one in found if json else ():
        known = msgspec.to_builtins(one, builtin_types=(bytes,))
        print_json({**{part: value for part, value in known.items() if part != "value"}, **json_value(one.value)})
    if json:
        return
    columns = [
        ("partition", "right"),
        ("position", "right"),
        ("stands", "left"),
        ("attempts", "right"),
        ("in", "right"),
    ]
    columns += [("id", "left"), ("key", "left"), ("last error", "fold"), ("value", "fold")]
    print_table(
        columns,
        [
            (
                str(one.partition),
                f"{one.position:,}",
                one.standing,
                str(one.attempts),
                show_duration(one.due_in_s) if one.due_in_s else "",
                one.id,
                one.key,
                one.last_error or "",
                short(one.value),
            )
            for one in found
        ],
    )


OneGroup = Annotated[
    str | None, typer.Option("--group", "-g", metavar="GROUP", help="This group only.", show_default="all")
]


@app.verb("pause emails", "pause emails --group mailer")
def pause(name: QueueName, url: Url, *, group: OneGroup = None, state: State = None, json: Json = False) -> None:
    """Deliver nothing until further notice. Sending goes on, and so does the work on what was delivered."""
    with opened_queue(url, name, state) as queue:
        queue.pause(group)
    _say_paused(name, group, paused=True, json=json)


@app.verb("resume emails", "resume emails --group mailer")
def resume(name: QueueName, url: Url, *, group: OneGroup = None, state: State = None, json: Json = False) -> None:
    """Deliver again what was paused."""
    with opened_queue(url, name, state) as queue:
        queue.resume(group)
    _say_paused(name, group, paused=False, json=json)


def _say_paused(name: str, group: str | None, *, paused: bool, json: bool) -> None:
    if json:
        print_json({"queue": name, "group": group, "paused": paused})
    else:
        what = f", group {group}," if group else ""
        say((name, "cyan"), what, " is paused" if paused else " delivers again")


@app.verb("groups emails", "groups emails --json")
def groups(name: QueueName, url: Url, *, state: State = None, json: Json = False) -> None:
    """Show the groups of a queue, and how many messages each keeps in it: what no group needs any more is trimmed."""
    with opened_queue(url, name, state) as queue:
        found = queue.stats().groups
    if json:
        for group, known in found.items():
            print_json({"queue": name, "group": group, "lag": known.lag, "paused": known.paused})
        return
    if not found:
        say((name, "cyan"), " has no group yet: the first consumer makes one")
        return
    rows = [(Text(group, "cyan"), f"{known.lag:,}", _paused(known.paused)) for group, known in found.items()]
    print_table([("group", "left"), ("lag", "right"), ("", "left")], rows)


@app.verb("remove-group emails mialer", "remove-group emails old --yes --force")
def remove_group(
    name: QueueName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group, as groups shows it.", show_default=False)],
    url: Url,
    *,
    yes: Yes = False,
    force: Force = False,
    state: State = None,
    json: Json = False,
) -> None:
    """Forget a group, and what it has not settled: a misspelt one keeps every message for ever."""
    with opened_queue(url, name, state) as queue:
        lag = queue.lag(group)
        if not yes:
            asking.confirm(f"{show_count(lag, 'message')} will not be delivered to {group}. Go on?")
        queue.remove_group(group, force=force)
    if json:
        print_json({"queue": name, "group": group, "removed": True, "lag": lag})
    else:
        say((name, "cyan"), f" has no group {group} any more")


@app.verb("trim emails", "trim emails --json")
def trim(name: QueueName, url: Url, *, state: State = None, json: Json = False) -> None:
    """Remove what every group has settled, as far as the memory of ids does not need it. Consumers do so at times."""
    with opened_queue(url, name, state) as queue:
        firsts = queue.trim()
    if json:
        print_json({"queue": name, "first_positions": firsts})
    else:
        say((name, "cyan"), f" begins at {', '.join(f'{first:,}' for first in firsts)}")


@app.verb("delete emails", "delete emails --yes --force")
def delete(
    name: QueueName, url: Url, *, yes: Yes = False, force: Force = False, state: State = None, json: Json = False
) -> None:
    """Delete a queue with its messages and its dead letters, for good."""
    with oncelog.connect(url) as db:
        messages, letters = _counted(db, name, state)
        if not yes:
            lost = f"{show_count(messages, 'message')} and {show_count(letters, 'dead letter')} will be gone"
            asking.confirm_name(f"{lost}. Type the queue's name to go on", name)
        db.delete_queue(name, force=force, state=state)
    if json:
        print_json({"queue": name, "deleted": True, "messages": messages, "dead_letters": letters})
    else:
        say((name, "cyan"), " is deleted, with ", plural(messages, "message"), " and ", plural(letters, "dead letter"))


def _counted(db: Database, name: str, state: str | None) -> tuple[int, int]:
    """Return the messages and the dead letters of a queue; none of one whose deletion was cut short."""
    try:
        queue = db.queue(name, state=state)
    except NotFound:
        return 0, 0
    groups = queue.stats().groups.values()
    messages = max((group.lag for group in groups), default=sum(queue.stats().ends))
    letters = f"dlq.{name}" in db.queues(state=state)
    return messages, len(queue.dead_letters.list()) if letters else 0
