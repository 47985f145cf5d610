"""``oncelog producer``: who writes a log by sequences, and how far each got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import oncelog
from oncelog.cli.commands.logs import describe
from oncelog.cli.commands.logs.opened import opened
from oncelog.cli.commands.logs.settings import MaxProducers, ProducerInactivity, ProducersOption, policy
from oncelog.cli.terminal import asking
from oncelog.cli.terminal.options import Json, Name, Url, Wait, Yes
from oncelog.cli.terminal.output import print_facts, print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_duration
from oncelog.errors import NotFound
from oncelog.redaction import harmless

if TYPE_CHECKING:
    from oncelog.log.log import Log

app = Verbs("producer", "Producers: who writes a log by sequences, and how far each got.")

ProducerName = Annotated[str, typer.Argument(metavar="PRODUCER", help="The producer's name.", show_default=False)]


class ProducerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a producer got, and how much up-time ago that was."""

    producer: str
    last_sequence: int
    last_position: int
    inactive_s: float


def _progress(log: Log) -> list[ProducerProgress]:
    """Return how far each producer got, the least recently active first."""
    marks = log.producers()
    now_us = max([int(log.info().uptime_s * 1e6), *(mark.active_us for mark in marks.values())])
    return [
        ProducerProgress(
            producer=name,
            last_sequence=mark.last_sequence,
            last_position=mark.last_position,
            inactive_s=(now_us - mark.active_us) / 1e6,
        )
        for name, mark in marks.items()
    ]


@app.verb("list orders", "list orders --json | jq .last_sequence", name="list")
def list_producers(name: Name, url: Url, *, json: Json = False) -> None:
    """List a log's producers, the least recently active first.

    With --json: one object a line.
    """
    with opened(url, name) as log:
        found = _progress(log)
    columns = [("producer", "left"), ("last sequence", "right"), ("position", "right"), ("inactive", "right")]
    print_list(found, columns, _row, (name, "cyan"), " has no producers", json=json)


def _row(one: ProducerProgress) -> tuple[str, ...]:
    return one.producer, f"{one.last_sequence:,}", f"{one.last_position:,}", show_duration(one.inactive_s)


@app.verb("show orders importer-1", "show orders importer-1 --json | jq .last_sequence")
def show(name: Name, producer: ProducerName, url: Url, *, json: Json = False) -> None:
    """Show how far a producer got: where to go on.

    The next sequence must be higher than the last one.
    """
    with opened(url, name) as log:
        found = next((one for one in _progress(log) if one.producer == producer), None)
    if found is None:
        message = f"log {name!r} knows no producer {producer!r}: see oncelog producer list {name}"
        raise NotFound(message)
    if json:
        print_json(found)
        return
    facts = [
        ("last sequence", f"{found.last_sequence:,}"),
        ("position", f"{found.last_position:,}"),
        ("inactive", f"{show_duration(found.inactive_s)} of up-time"),
    ]
    print_facts([(producer, facts)])


@app.verb("forget orders importer-1", "forget orders importer-1 --yes")
def forget(
    name: Name, producer: ProducerName, url: Url, *, wait: Wait = 5.0, yes: Yes = False, json: Json = False
) -> None:
    """Forget how far a producer got.

    Its records stay. Its next sequence is taken for its first: what it sends again is stored again.
    """
    if not yes:
        asking.confirm(f"Forget producer {producer} of {name}? What it sends again will be stored again.")
    with opened(url, name) as log:
        known = log.forget_producer(producer, wait_s=wait)
    if not known:
        message = f"log {name!r} knows no producer {producer!r}: see oncelog producer list {name}"
        raise NotFound(message)
    if json:
        print_json({"log": name, "producer": producer, "forgotten": True})
    else:
        say((harmless(producer), "cyan"), " is forgotten")


@app.verb(
    "policy",
    "policy --producers off",
    "policy --namespace shop --max-producers 100 --producer-inactivity 7d",
    name="policy",
)
def policy_of(
    url: Url,
    *,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the logs named NAME/…, instead of all.")
    ] = None,
    producers: ProducersOption = None,
    producer_inactivity: ProducerInactivity = None,
    max_producers: MaxProducers = None,
    json: Json = False,
) -> None:
    """Show, or set, the policy for producers of a database or a namespace.

    A log's own policy (oncelog log create) comes before its namespace's, and that before the database's. What is not
    given when one is set is left to the next level.
    """
    given = policy(producers, producer_inactivity, max_producers)
    with oncelog.connect(url) as db:
        if given != policy(None, None, None):
            db.set_producer_policy(given, namespace)
        found = db.producer_policy(namespace)
    if json:
        print_json({"namespace": namespace, **msgspec.to_builtins(found)})
    else:
        says = describe.show_policy(found)
        whose = namespace or "the database"
        say((whose, "cyan"), ": ", "nothing of its own" if found == policy(None, None, None) else says)
