"""``oncelog queue dlq``: what could not be delivered, to be looked at and sent back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from oncelog.cli.commands.queues.options import (
    Position,
    QueueName,
    State,
    opened_queue,
    short,
    text_of,
)
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Json, Limit, Url, Yes
from oncelog.cli.terminal.output import json_value, plural, print_facts, print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_count, show_time

if TYPE_CHECKING:
    from oncelog.queue.deliver.dead_letters import DeadLetter

dlq = Verbs("queue dlq", "Dead letters: what could not be delivered.")


def _letter(letter: DeadLetter) -> dict[str, object]:
    known: dict[str, object] = msgspec.to_builtins(letter, builtin_types=(bytes,))
    known["headers"] = {header: text_of(value) for header, value in letter.headers.items()}
    known["died_at"] = show_time(letter.died_at)
    del known["value"]
    return {**known, **json_value(letter.value)}


@dlq.verb("list emails", "list emails --json | jq .last_error", name="list")
def list_letters(name: QueueName, url: Url, *, limit: Limit = None, state: State = None, json: Json = False) -> None:
    """List the dead letters of a queue, oldest first."""
    with opened_queue(url, name, state) as queue:
        found = queue.dead_letters.list(limit=limit)
    columns = [("position", "right"), ("died at", "left"), ("group", "left"), ("attempts", "right"), ("id", "left")]
    columns += [("last error", "fold"), ("value", "fold")]
    print_list(found, columns, _row, (name, "cyan"), ": no dead letters", json=json, plain=_letter)


def _row(one: DeadLetter) -> tuple[str, ...]:
    error, value = one.last_error, short(one.value)
    return f"{one.position:,}", show_time(one.died_at), one.group, str(one.attempts), one.id, error, value


@dlq.verb("show emails 3")
def show(name: QueueName, position: Position, url: Url, *, state: State = None, json: Json = False) -> None:
    """Show one dead letter: where it comes from, why it died, and what it says."""
    with opened_queue(url, name, state) as queue:
        letter = queue.dead_letters.show(position)
    if json:
        print_json(_letter(letter))
        return
    facts = [(part.replace("_", " "), str(value)) for part, value in _letter(letter).items() if value not in ("", {})]
    print_facts([("", facts)])


@dlq.verb("redrive emails", "redrive emails 3 4 7")
def redrive(
    name: QueueName,
    url: Url,
    positions: Annotated[
        list[int] | None, typer.Argument(metavar="[POSITION]...", help="Which; nothing: all.", show_default=False)
    ] = None,
    *,
    state: State = None,
    json: Json = False,
) -> None:
    """Send dead letters back to the queue and group they came from. An effect that had been done is not done again,
    where workers use an inbox.
    """
    with opened_queue(url, name, state) as queue:
        count = queue.dead_letters.redrive(positions or None)
    if json:
        print_json({"queue": name, "redriven": count})
    else:
        say((name, "cyan"), ": ", plural(count, "message"), " sent back")


@dlq.verb("discard emails 3 4 7", "discard emails --all --yes")
def discard(
    name: QueueName,
    url: Url,
    positions: Annotated[
        list[int] | None, typer.Argument(metavar="[POSITION]...", help="Which, as list shows it.", show_default=False)
    ] = None,
    *,
    all_letters: Annotated[bool, typer.Option("--all", metavar="", help="All that are there now.")] = False,
    yes: Yes = False,
    state: State = None,
    json: Json = False,
) -> None:
    """Give dead letters up for good. They are not delivered again; their records stay in the log of dead letters."""
    if bool(positions) == all_letters:
        message = "say which dead letters to discard: their positions, or --all"
        raise typer.BadParameter(message)
    with opened_queue(url, name, state) as queue:
        chosen = positions or [letter.position for letter in queue.dead_letters.list()]
        if not yes and chosen:
            asking.confirm(f"{show_count(len(chosen), 'dead letter')} of {name} will be given up for good. Go on?")
        count = queue.dead_letters.discard(chosen)
    if json:
        print_json({"queue": name, "discarded": count})
    else:
        say((name, "cyan"), ": ", plural(count, "dead letter"), " discarded")
