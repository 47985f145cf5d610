"""``oncelog top``: what happens now, in a server or in a plain database."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer

import oncelog
from oncelog.cli.terminal.options import Json, MaybeUrl
from oncelog.cli.terminal.output import broken, console, print_json
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import duration_s
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, NotAuthenticated, OncelogError, Unavailable
from oncelog.log.info import LogInfo
from oncelog.names import SERVER_SCHEMES
from oncelog.redaction import harmless_line

_HELP = """Watch a server, or the logs of a plain database: records, duplicates, conflicts, queues, twice a second.

On a server (http://host:7677, or oncelog://host:7676) all is counted by the server. The first is cheaper: one request
for all logs. On a plain database (file:///…, s3://…) the ends of the logs and the groups of the queues are looked at:
duplicates and conflicts are known to the process that writes, and shown as -. The token of a server is read from
ONCELOG_TOKEN. Ctrl-C ends it."""
_EXAMPLES = """Examples:

  [cyan]oncelog top http://127.0.0.1:7677[/]
  [cyan]oncelog top file:///var/lib/shop --every 5s[/]
  [cyan]oncelog top http://127.0.0.1:7677 --json --count 1[/]"""
_TIMEOUT_S = 5.0
_METRICS_BYTES_MAX = 64 << 20
_ROWS_MAX = 40
_COUNTED = {
    "oncelog_records_stored_total": "records",
    "oncelog_duplicates_total": "duplicates",
    "oncelog_conflicts_total": "conflicts",
    "oncelog_pending_records": "pending",
    "oncelog_remembered_ids": "ids",
}
_RATED = ("records", "duplicates", "conflicts")
_FIGURES = ("records", *(f"{rated}/s" for rated in _RATED), "pending", "ids")
_STATES = ("new", "waiting", "leased", "dying")
_NAME_WIDTH = 12
_GAP = 2


class LogSample(msgspec.Struct, kw_only=True):
    """What was seen of a log; what is ``None`` only its writer knows."""

    records: float = 0.0
    duplicates: float | None = None
    conflicts: float | None = None
    pending: float | None = None
    ids: float | None = None


class TopSample(msgspec.Struct, kw_only=True):
    """What was seen at one moment."""

    source: str
    at_us: int
    logs: dict[str, LogSample] = {}
    queues: dict[str, dict[str, float]] = {}


class ShownSample(msgspec.Struct, kw_only=True):
    """A sample, with what happened a second since the one before."""

    source: str
    logs: dict[str, dict[str, float | None]]
    queues: dict[str, dict[str, float]]


def top(
    at: Annotated[
        str | None, typer.Argument(metavar="URL", help="A server or a database; or by --url.", show_default=False)
    ] = None,
    *,
    url: MaybeUrl = None,
    every: Annotated[
        float, typer.Option(parser=duration_s, metavar="DURATION", help="How often.", show_default="500 ms")
    ] = 0.5,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many looks.")] = None,
    json: Json = False,
) -> None:
    """Watch what happens."""
    if (watched := at or url) is None:
        message = "name a server or a database: URL, --url or ONCELOG_URL"
        raise InvalidArgument(message)
    look = source(watched)
    shows = _printing() if json else _live()
    before = look()
    pause = threading.Event()
    left = count
    try:
        while left is None or left > 0:
            pause.wait(every)
            now = look()
            shows(rates(before, now))
            before, left = now, left if left is None else left - 1
    except KeyboardInterrupt:
        pass
    finally:
        shows(None)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top", help=paragraphs(_HELP), epilog=_EXAMPLES)(top)


def _printing() -> Callable[[ShownSample | None], None]:
    return lambda shown: print_json(shown) if shown is not None else None


def _live() -> Callable[[ShownSample | None], None]:
    """Return what draws a sample over the one before."""
    from rich.live import Live  # noqa: PLC0415 (help need not wait for it)

    live = Live(console=console(), auto_refresh=False, screen=sys.stdout.isatty())
    live.start()

    def show(shown: ShownSample | None) -> None:
        if shown is None:
            live.stop()
        else:
            live.update(page(shown, live.console.width), refresh=True)

    return show


def page(shown: ShownSample, width: int) -> Any:
    """Return a sample as tables for a terminal of that width, the busiest logs first. No number is cut."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    busiest = sorted(shown.logs.items(), key=lambda item: -(item[1]["records/s"] or 0))
    parts: list[Any] = [Text(harmless_line(shown.source), "bold"), _table("log", _FIGURES, busiest[:_ROWS_MAX], width)]
    if len(busiest) > _ROWS_MAX:
        parts.append(Text(f"and {len(busiest) - _ROWS_MAX} more logs", "dim"))
    if shown.queues:
        queues = sorted(shown.queues.items())[:_ROWS_MAX]
        parts += [Text(), _table("queue and group", _STATES, queues, width)]
    return Group(*parts)


_Row = tuple[str, Mapping[str, float | None]]


def _table(what: str, figures: Sequence[str], rows: Sequence[_Row], width: int) -> Any:
    """Return a line a name, with as many of its figures as leave room for the name, the first ones first."""
    from rich.table import Table  # noqa: PLC0415 (help need not wait for it)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    table.add_column(what, overflow="fold")
    columns: list[list[str]] = []
    for figure in figures:
        cells = [_number(values.get(figure)) for _, values in rows]
        left = width - _GAP - max(len(text) for text in (figure, *cells))
        if left < _NAME_WIDTH:
            break
        width = left
        table.add_column(figure, justify="right", no_wrap=True)
        columns.append(cells)
    for number, (name, _) in enumerate(rows):
        table.add_row(broken(Text(harmless_line(name), "cyan"), width), *(cells[number] for cells in columns))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def rates(before: TopSample, now: TopSample) -> ShownSample:
    """Return what happened between two looks, a second."""
    passed_s = max(1e-6, (now.at_us - before.at_us) / 1e6)
    logs: dict[str, dict[str, float | None]] = {}
    for name, sample in now.logs.items():
        earlier = before.logs.get(name, LogSample())
        shown: dict[str, float | None] = {"records": sample.records, "pending": sample.pending, "ids": sample.ids}
        for field in _RATED:
            value = getattr(sample, field)
            since = getattr(earlier, field) or 0.0 if name in before.logs else value
            shown[f"{field}/s"] = None if value is None else max(0.0, value - since) / passed_s
        logs[name] = shown
    return ShownSample(source=now.source, logs=logs, queues=now.queues)


# Where samples come from.


def source(url: str) -> Callable[[], TopSample]:
    """Return what looks: at a server's metrics, or at a database."""
    if urlsplit(url).scheme in ("http", "https"):
        return lambda: of_metrics(url, _fetched(f"{url.rstrip('/')}/metrics"))
    database = oncelog.connect(url)
    return lambda: _of_database(url, database)


def _fetched(url: str) -> str:
    headers = {"authorization": f"Bearer {token}"} if (token := os.environ.get("ONCELOG_TOKEN")) else {}
    import http.client  # noqa: PLC0415 (help does not wait for it)
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (http and https alone: see source)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            return str(response.read(_METRICS_BYTES_MAX).decode())
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            message = f"{url}: the server wants a token with the verb look on *: set ONCELOG_TOKEN"
            raise NotAuthenticated(message) from None
        message = f"{url}: the server answered {error.code}"
        raise InvalidArgument(message) from None
    except (http.client.HTTPException, UnicodeDecodeError) as error:
        message = f"{url}: the answer is not that of a server of Oncelog ({type(error).__name__})"
        raise InvalidArgument(message) from None
    except OSError as error:
        message = f"{url}: no answer ({getattr(error, 'reason', error)})"
        raise Unavailable(message) from None


def of_metrics(url: str, text: str) -> TopSample:
    """Return what a server's metrics say."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    found = TopSample(source=url, at_us=SYSTEM.elapsed_us(), logs={}, queues={})
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                _add(found, sample.name, sample.labels, sample.value)
    except (ValueError, KeyError) as error:
        message = f"{url}: these are not the metrics of a server of Oncelog: {error!r}"
        raise InvalidArgument(message) from error
    return found


def _add(found: TopSample, name: str, labels: Mapping[str, str], value: float) -> None:
    if name in _COUNTED:
        log = found.logs.setdefault(labels["log"], LogSample(duplicates=0.0, conflicts=0.0, pending=0.0, ids=0.0))
        setattr(log, _COUNTED[name], value)
    elif name == "oncelog_queue_messages":
        group = found.queues.setdefault(f"{labels['queue']} · {labels['group']}", {})
        group[labels["state"]] = value


def _of_database(url: str, database: oncelog.Database) -> TopSample:
    """Return where the logs of a database end, and how far the groups of its queues are. What cannot be read is left
    out.
    """
    found = TopSample(source=url, at_us=SYSTEM.elapsed_us(), logs={}, queues={})
    is_served = database.url.startswith(SERVER_SCHEMES)
    for name in database.logs():
        with contextlib.suppress(OncelogError):
            log = database.log(name)
            found.logs[name] = _of_info(log.info()) if is_served else LogSample(records=float(log.end_position()))
    with contextlib.suppress(OncelogError):
        for name in database.queues():
            with contextlib.suppress(OncelogError):
                _add_groups(found, database.queue(name))
    return found


def _of_info(info: LogInfo) -> LogSample:
    """Return what a server tells of a log. What its writer counts is not known while no writer is open."""
    counters, memory = info.counters, info.memory
    return LogSample(
        records=float(info.last_position + 1),
        duplicates=None if counters is None else float(counters.duplicates),
        conflicts=None if counters is None else float(counters.conflicts),
        pending=None if counters is None else float(info.window.get("pending") or 0),
        ids=float(memory.ids) if memory is not None else None if counters is None else info.window.get("keys"),
    )


def _add_groups(found: TopSample, queue: oncelog.Queue) -> None:
    for group, stats in queue.stats().groups.items():
        found.queues[f"{queue.name} · {group}"] = {state: float(getattr(stats, state)) for state in _STATES}
