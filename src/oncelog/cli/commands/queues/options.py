"""What the commands of ``oncelog queue`` have in common: their options, and how a message is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

import oncelog
from oncelog.cli.terminal.options import meant
from oncelog.errors import NotFound

if TYPE_CHECKING:
    from oncelog import Database, Queue

_SHOWN_BYTES = 60

QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.", show_default=False)]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        envvar="ONCELOG_QUEUE_STATE",
        metavar="URL",
        help="Where its brokers remember: postgresql://…",
        show_default="SQLite beside the logs",
    ),
]
Group = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group of consumers.")]
Position = Annotated[int, typer.Argument(metavar="POSITION", help="Its place, as list shows it.", show_default=False)]


@contextmanager
def opened_queue(url: str, name: str, state: str | None, *, create: bool = False) -> Iterator[Queue]:
    """Open a queue of a database, for a while; make it first, if asked to."""
    with oncelog.connect(url) as db:
        yield db.queue(name, create=True, state=state) if create else named_queue(db, name, state)


def named_queue(db: Database, name: str, state: str | None) -> Queue:
    """Return a queue that is there; of one that is not, say what makes it in a shell."""
    try:
        return db.queue(name, state=state)
    except NotFound as error:
        if not str(error).startswith("there is no queue"):
            raise
        hint = f"{meant(name, db.queues(state=state))}make it with oncelog queue create, or see oncelog queue list"
        message = f"there is no queue {name!r} at {db.url}: {hint}"
        raise NotFound(message) from error


def text_of(value: bytes) -> str:
    """Return a value as text, with what is none spelled out."""
    return value.decode("utf-8", "backslashreplace")


def short(value: bytes) -> str:
    """Return the beginning of a value, in one line."""
    return text_of(value[:_SHOWN_BYTES]).replace("\n", "␤") + ("…" if len(value) > _SHOWN_BYTES else "")
