"""``oncelog queue info`` and ``oncelog queue set``: how a queue is kept, and a change of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from oncelog.cli.commands.queues.options import QueueName, State, opened_queue
from oncelog.cli.terminal.options import Json, Url
from oncelog.cli.terminal.output import print_facts, print_json, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import duration_s, show_duration
from oncelog.errors import InvalidArgument

_FOR_EVER = -1
_AS_STORED = "as it is"


def _attempts(text: Any) -> int:
    """Return a number of attempts; ``never`` is no bound."""
    if str(text) == "never":
        return _FOR_EVER
    if not (str(text).isascii() and str(text).isdecimal()):
        message = f"{text!r}: write a whole number, or never"
        raise typer.BadParameter(message)
    return int(text)


def _or_never(text: Any) -> float:
    """Return seconds; ``never`` as less than none."""
    return _FOR_EVER if str(text) == "never" else duration_s(text)


def _option(*names: str, parser: Any = None, metavar: str, help: str) -> Any:
    return typer.Option(*names, parser=parser, metavar=metavar, help=help, show_default=_AS_STORED)


MaxAttempts = Annotated[
    Any, _option("--max-attempts", parser=_attempts, metavar="N", help="Deliver so often at most; or never give up.")
]
Backoff = Annotated[
    Any, _option("--backoff", parser=duration_s, metavar="DURATION", help="Rest after the first failed delivery.")
]
MaxBackoff = Annotated[
    Any,
    _option("--max-backoff", parser=duration_s, metavar="DURATION", help="The longest rest: each doubles the last."),
]
Jitter = Annotated[
    float | None, _option("--jitter", metavar="SHARE", help="Take a random part of a rest away, up to this share.")
]
AckTimeout = Annotated[
    Any, _option("--ack-timeout", parser=duration_s, metavar="DURATION", help="How long a delivery is its consumer's.")
]
Gate = Annotated[
    Any, _option("--gate", parser=duration_s, metavar="DURATION", help="How long the outcome of a send is kept.")
]
Trim = Annotated[
    Any, _option("--trim", parser=_or_never, metavar="DURATION", help="How often consumers remove what is settled.")
]


def info(name: QueueName, url: Url, *, state: State = None, json: Json = False) -> None:
    """Show how a queue is kept: partitions, retries, timeouts, groups, dead letters."""
    with opened_queue(url, name, state) as queue:
        settings, stats, letters = queue.settings, queue.stats(), len(queue.dead_letters.list())
    if json:
        known = {"name": name, "partitions": stats.partitions, "sent": sum(stats.ends), "dead_letters": letters}
        print_json({**known, "groups": list(stats.groups), "settings": settings})
        return
    retry = settings.retry
    backoff = f"{show_duration(retry.backoff_s)}, doubled each time, at most {show_duration(retry.max_backoff_s)}"
    attempts = "for ever" if retry.max_attempts is None else f"{retry.max_attempts:,}"
    facts: list[tuple[str, str | Text]] = [
        ("partitions", str(stats.partitions)),
        ("sent", f"{sum(stats.ends):,}"),
        ("groups", ", ".join(stats.groups) or "none yet"),
        ("dead letters", Text(f"{letters:,}", "red" if letters else "")),
        ("max attempts", attempts),
        ("backoff", f"{backoff}, up to {retry.jitter:.0%} shorter at random"),
        ("ack timeout", show_duration(settings.ack_timeout_s)),
        ("outcome of a send kept", show_duration(settings.gate_s)),
        ("trimmed", "never" if settings.trim_s is None else f"every {show_duration(settings.trim_s)}"),
    ]
    print_facts([(name, facts)])


def set_(
    name: QueueName,
    url: Url,
    *,
    max_attempts: MaxAttempts = None,
    backoff: Backoff = None,
    max_backoff: MaxBackoff = None,
    jitter: Jitter = None,
    ack_timeout: AckTimeout = None,
    gate: Gate = None,
    trim: Trim = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Change the settings of a queue. Deliveries that begin after this keep to them."""
    retry = _given(backoff_s=backoff, max_backoff_s=max_backoff, jitter=jitter)
    if max_attempts is not None:
        retry["max_attempts"] = None if max_attempts == _FOR_EVER else max_attempts
    given = _given(ack_timeout_s=ack_timeout, gate_s=gate)
    if trim is not None:
        given["trim_s"] = None if trim == _FOR_EVER else trim
    if not retry and not given:
        message = "say what to change: see oncelog queue set --help"
        raise InvalidArgument(message)
    with opened_queue(url, name, state) as queue:
        before = queue.settings
        given["retry"] = msgspec.structs.replace(before.retry, **retry)
        queue.configure(msgspec.structs.replace(before, **given))
        after = queue.settings
    if json:
        print_json({"queue": name, "settings": after})
    else:
        say((name, "cyan"), " has these settings now" if after != before else " had these settings already")


def _given(**values: Any) -> dict[str, Any]:
    """Return the values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def add_to(app: Verbs) -> None:
    """Add the commands."""
    app.verb("info emails", "info emails --json | jq .settings")(info)
    examples = ("set emails --max-attempts 5 --backoff 2s", "set emails --ack-timeout 5m", "set emails --trim never")
    app.verb(*examples)(set_)
