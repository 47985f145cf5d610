"""``oncelog status``: what is here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.text import Text

import oncelog
from oncelog.cli.terminal.options import Json, Url
from oncelog.cli.terminal.output import print_json, print_table, say
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import show_bytes, show_count
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.queue.send.topic import log_name

if TYPE_CHECKING:
    from oncelog.connect import Database


def status(url: Url, *, json: Json = False) -> None:
    """Show what is here: logs with their records, queues with what waits, and dead letters."""
    with oncelog.connect(url) as db:
        logs = [_standing(name, partial(_of_log, db, name)) for name in db.logs() if not name.startswith("queue/")]
        names, unknown = _queues(db)
        queues = [_standing(name, partial(_of_queue, db, name)) for name in names]
    if json:
        print_json({"url": url, "logs": logs, "queues": queues, **({"queues_error": unknown} if unknown else {})})
        return
    found = f"queues are not shown: {unknown}" if unknown else show_count(len(queues), "queue")
    say((url, "cyan"), f": {show_count(len(logs), 'log')}, {found}")
    if logs:
        _table("log", logs, ("records", "bytes", "writer"))
    if queues:
        say("")
        _table("queue", queues, ("waiting", "in flight", "dead"))


def _standing(name: str, ask: Callable[[], dict[str, object]]) -> dict[str, object]:
    try:
        return {"name": name, **ask()}
    except OncelogError as error:  # one that is damaged does not hide the others
        return {"name": name, "error": str(error)}


def _of_log(db: Database, name: str) -> dict[str, object]:
    info = db.log(name).info()
    records = info.last_position + 1 - info.first_position
    return {"records": records, "bytes": info.bytes, "writer": info.open_segment is not None}


def _queues(db: Database) -> tuple[list[str], str]:
    """Return the names of the queues, or why they cannot be asked for."""
    try:
        return [name for name in db.queues() if not name.startswith("dlq.")], ""
    except InvalidArgument as error:  # a folder of another user; a bucket, whose queues need a state that is named
        return [], str(error)


def _of_queue(db: Database, name: str) -> dict[str, object]:
    queue = db.queue(name)
    groups = queue.stats().groups.values()
    waiting, leased = sum(g.new + g.waiting for g in groups), sum(g.leased for g in groups)
    if not groups:  # the first group will get all that is there
        logs = [db.log(log_name(name, partition)).info() for partition in range(queue.partitions)]
        waiting = sum(info.last_position + 1 - info.first_position for info in logs)
    return {"waiting": waiting, "in flight": leased, "dead": len(queue.dead_letters.list(limit=10_000))}


def _table(kind: str, rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    headings = [
        (kind, "fold"),
        *(("size" if column == "bytes" else column, "right") for column in columns),
        ("error", "fold"),
    ]
    print_table(headings, [_row(row, columns) for row in rows])


def _row(row: dict[str, object], columns: tuple[str, ...]) -> list[str | Text]:
    cells = [_cell(column, row.get(column)) for column in columns]
    return [Text(str(row["name"]), "cyan"), *cells, Text(str(row.get("error", "")), "red")]


def _cell(column: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return show_bytes(value) if column == "bytes" else f"{value:,}"
    return "-"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    example = "Example, with ONCELOG_URL set:\n\n  [cyan]oncelog status[/]"
    app.command(help=paragraphs(status.__doc__ or ""), epilog=example)(status)
