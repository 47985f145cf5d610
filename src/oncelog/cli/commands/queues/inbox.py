"""``oncelog inbox``: the story of an effect, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

import oncelog
from oncelog.cli.terminal.asking import confirm
from oncelog.cli.terminal.options import Json, Yes
from oncelog.cli.terminal.output import plural, print_facts, print_json, print_list, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import show_time
from oncelog.errors import InvalidArgument, NotFound
from oncelog.redaction import harmless

if TYPE_CHECKING:
    from oncelog.inbox.inbox import Inbox, KeyStory

app = Verbs(
    "inbox",
    "Effects that happen once: look at one, decide about one.",
    heading="Examples, with ONCELOG_INBOX set (sqlite:///shop.db, say)",
)

Home = Annotated[
    str,
    typer.Option(
        "--inbox",
        envvar="ONCELOG_INBOX",
        metavar="URL",
        help="Where the keys are: sqlite:///path, postgresql://… or redis://….",
        show_default=False,
    ),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the effect.", show_default=False)]
Tenant = Annotated[str | None, typer.Option(metavar="TENANT", help="Its tenant, if there are several.")]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="Its topic, if there are several.")]
Group = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Its group, if there are several.")]
_STYLES = {"COMMITTED": "green", "PENDING": "yellow", "FAILED": "red"}


@contextmanager
def _opened(home: str) -> Iterator[Inbox]:
    """Open an inbox that is there: SQLite would make an empty file under a name that was misspelt."""
    from oncelog.inbox.stores.connections import sqlite_path  # noqa: PLC0415 (help does not wait for drivers)

    if home.startswith("sqlite:") and not Path(path := sqlite_path(home)).exists():
        message = f"there is no file {path}: an inbox makes it with its first effect"
        raise NotFound(message)
    with oncelog.Inbox(home) as inbox:
        yield inbox


def _found(inbox: Inbox, key: str, tenant: str | None, topic: str | None, group: str | None) -> list[KeyStory]:
    wanted = {"tenant": tenant, "topic": topic, "group": group}
    found = [
        known
        for known in inbox.show(key)
        if all(value is None or getattr(known, name) == value for name, value in wanted.items())
    ]
    if not found:
        message = f"nothing is known of the key {key!r}"
        raise NotFound(message)
    return found


def _only(found: list[KeyStory]) -> dict[str, Any]:
    """Return the scope of the only one; people say which if there are several."""
    if len(found) > 1:
        places = "; ".join(f"tenant {one.tenant!r}, topic {one.topic!r}, group {one.group!r}" for one in found)
        message = f"the key is in {len(found)} places ({places}): say which by --tenant, --topic and --group"
        raise InvalidArgument(message)
    one = found[0]
    return {"tenant": one.tenant, "topic": one.topic, "group": one.group}


@app.verb("list", "list --status FAILED --limit 20", "list --json | jq -r .key", name="list")
def list_keys(
    inbox: Home,
    *,
    status: Annotated[
        Literal["PENDING", "COMMITTED", "FAILED"] | None, typer.Option("--status", help="Only keys that stand so.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="Show so many.")] = 100,
    json: Json = False,
) -> None:
    """List the keys that changed last: what became of each effect."""
    with _opened(inbox) as opened:
        found = opened.latest(status, limit=limit)
    columns = [("key", "left"), ("status", "left"), ("attempts", "right"), ("changed", "left"), ("topic", "left")]
    columns += [("group", "left"), ("tenant", "left"), ("result or last error", "fold")]
    print_list(found, columns, _row, "no keys", json=json, plain=_plain)


def _row(known: KeyStory) -> list[str | Text]:
    result = "" if known.result is None else _shown(known.result)
    told = result if known.status == "COMMITTED" else known.last_error or ""
    place = [known.topic, known.group, known.tenant]
    status = Text(known.status, _STYLES[known.status])
    return [
        Text(harmless(known.key), "cyan"),
        status,
        str(known.attempts),
        _time(known.changed_us),
        *place,
        harmless(told),
    ]


@app.verb("prune", "prune --json")
def prune(inbox: Home, *, json: Json = False) -> None:
    """Remove the keys whose retention is over. A key that may still come is removed, too: give inboxes a retention
    that is longer than a message can be on its way.
    """
    with _opened(inbox) as opened:
        count = opened.prune()
    if json:
        print_json({"pruned": count})
    else:
        say(plural(count, "key"), " removed")


@app.verb("show order-42", "show order-42 --topic invoices --json")
def show(
    key: Key, inbox: Home, *, tenant: Tenant = None, topic: Topic = None, group: Group = None, json: Json = False
) -> None:
    """Show the whole story of a key: attempts, owners, tokens, outcome, result."""
    with _opened(inbox) as opened:
        found = _found(opened, key, tenant, topic, group)
    if json:
        for known in found:
            print_json(_plain(known))
        return
    print_facts([(f"{known.key}", _facts(known)) for known in found])


def _plain(known: KeyStory) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(known)
    plain["story"] = [event._asdict() for event in known.story]
    return plain


def _shown(result: object) -> str:
    """Return a result as JSON, as ``--json`` prints it; ``-`` if there is none."""
    return "-" if result is None else msgspec.json.encode(result).decode()


def _time(at_us: int) -> str:
    return show_time(datetime.fromtimestamp(at_us / 1e6, UTC))


def _facts(known: KeyStory) -> list[tuple[str, str | Text]]:
    facts: list[tuple[str, str | Text]] = [
        ("status", Text(known.status + (" for good" if known.final else ""), _STYLES[known.status])),
        ("tenant, topic, group", f"{known.tenant or '-'}, {known.topic or '-'}, {known.group or '-'}"),
        ("effect id", known.effect_id),
        ("attempts", str(known.attempts)),
        ("owner", known.owner),
        ("token", str(known.token)),
        ("first seen", _time(known.first_us)),
        ("result", "erased" if known.erased else _shown(known.result)),
    ]
    if known.last_error is not None:
        facts.append(("last error", known.last_error))
    if known.lease_left_s is not None:
        left = f"{known.lease_left_s:.1f} s left" if known.lease_left_s > 0 else "ran out"
        facts.append(("lease", left))
    facts += [(_time(event.at_us), f"{event.what} {event.detail} (token {event.token})") for event in known.story]
    return facts


@app.verb("resolve order-42 committed", "resolve order-42 again --topic invoices")
def resolve(
    key: Key,
    to: Annotated[str, typer.Argument(metavar="DECISION", help="committed, failed or again.", show_default=False)],
    inbox: Home,
    *,
    tenant: Tenant = None,
    topic: Topic = None,
    group: Group = None,
    json: Json = False,
) -> None:
    """Decide about a key whose lease ran out, or that failed: committed, failed, or again."""
    with _opened(inbox) as opened:
        scope = _only(_found(opened, key, tenant, topic, group))
        decision: Any = to
        opened.resolve(key, to=decision, **scope)
    if json:
        print_json({"key": key, "resolved": to})
    else:
        say((key, "cyan"), f": {to}")


@app.verb("erase order-42", "erase anna@example.com --yes")
def erase(
    key: Key,
    inbox: Home,
    *,
    tenant: Tenant = None,
    topic: Topic = None,
    group: Group = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Erase what is known of a key but that it was there: it is still not run again."""
    with _opened(inbox) as opened:
        scope = _only(_found(opened, key, tenant, topic, group))
        if not yes:
            confirm(f"Erase the result and the reasons of {key!r}, for good?")
        opened.erase(key, **scope)
    if json:
        print_json({"key": key, "erased": True})
    else:
        say((key, "cyan"), ": erased; it is still not run again")
