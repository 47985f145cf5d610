"""``oncelog status`` and ``oncelog doctor``: what is here, and is anything wrong with the set-up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import typer
from rich.text import Text

import oncelog
from oncelog.cli.terminal.options import Json, MaybeUrl, Url, paragraphs
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import print_json, print_table, say
from oncelog.cli.terminal.quantities import show_bytes, show_count
from oncelog.errors import InvalidArgument, OncelogError
from oncelog.redaction import redacted

if TYPE_CHECKING:
    from oncelog.connect import Database

Verdict = Literal["ok", "note", "bad"]
_STYLES: dict[Verdict, str] = {"ok": "green", "note": "yellow", "bad": "bold red"}
_EXTRAS = {
    "fast": ("numba",),
    "object": ("obstore",),
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "client": ("grpc", "google.protobuf"),
    "server": ("starlette", "uvicorn", "jinja2", "prometheus_client"),
    "spark": ("pyspark", "pandas"),
    "tables": ("deltalake", "pyiceberg"),
    "sql": ("duckdb",),
}
_FREE_BYTES_MIN = 1 << 30
_JAVA_MIN = 17
_ANSWER_S = 20.0


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""


def doctor(url: MaybeUrl = None, *, json: Json = False) -> None:
    """Look for what is wrong with the set-up: Python, packages, Java, the folder or bucket, every log."""
    checks = list(_checks(url))
    if json:
        for check in checks:
            print_json(check)
    else:
        rows = [(c.what, Text(c.verdict, _STYLES[c.verdict]), c.found, c.advice) for c in checks]
        print_table([("what", "left"), ("", "left"), ("found", "fold"), ("do", "fold")], rows)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(ExitCode.FINDINGS)


def _checks(url: str | None) -> Iterator[Check]:
    yield _python()
    yield _system()
    for extra, modules in _EXTRAS.items():
        yield _extra(extra, modules)
    yield _java()
    if url is None:
        yield Check("database", "note", "none given", "name one: --url, or ONCELOG_URL")
        return
    yield from _database(url)


def _python() -> Check:
    import platform  # noqa: PLC0415  help does not wait for what only a doctor needs

    version = platform.python_version()
    return Check("Python", "ok" if sys.version_info >= (3, 11) else "bad", version, "")


def _system() -> Check:
    import platform  # noqa: PLC0415

    system = platform.system()
    verdict: Verdict = "ok" if system == "Linux" else "note"
    return Check(
        "system", verdict, f"{system} {platform.release()}", "" if system == "Linux" else "only Linux is tested"
    )


def _extra(extra: str, modules: tuple[str, ...]) -> Check:
    missing = [module for module in modules if not _is_installed(module)]
    if not missing:
        return Check(f"extra {extra}", "ok", "installed")
    return Check(f"extra {extra}", "note", f"without {', '.join(missing)}", f"pip install 'oncelog[{extra}]'")


def _is_installed(module: str) -> bool:
    import importlib.util  # noqa: PLC0415

    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def _java() -> Check:
    import shutil  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    found = shutil.which("java")
    advice = "Spark needs Java 17: apt-get install openjdk-17-jre-headless"
    if found is None:
        return Check("Java", "note", "not found", advice)
    try:
        told = subprocess.run(  # noqa: S603 (the Java of this user)
            [found, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", "bad", str(error), advice)
    version = told.partition('"')[2].partition('"')[0]
    major = version.partition(".")[0]
    is_new = major.isdecimal() and int(major) >= _JAVA_MIN
    return Check("Java", "ok" if is_new else "note", version or told.strip(), "" if is_new else advice)


def _database(url: str) -> Iterator[Check]:
    yield from _folder(url)
    try:
        with oncelog.connect(url) as db:
            names = db.logs()
            yield Check("database", "ok", f"{redacted(url)}: {show_count(len(names), 'log')}")
            for name in names:
                yield _log(db, name)
    except OncelogError as error:
        yield Check("database", "bad", f"{redacted(url)}: {error}", _remedy(url))


def _remedy(url: str) -> str:
    """Return what to look at when a database does not answer as it should."""
    kind = url.partition("://")[0].removeprefix("quorum:")
    if kind in ("s3", "gs", "az"):
        return "check the endpoint, the name of the bucket, and the credentials"
    return "check that the server runs, and the token" if kind == "oncelog" else "the message says what to do"


def _folder(url: str) -> Iterator[Check]:
    """Look at the folder of a database on a disk: may it be written, and is there room."""
    import shutil  # noqa: PLC0415

    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return
    there = folder = Path(unquote(parts.path))
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        yield Check(
            "folder", "bad", f"{there} cannot be written by this user", f"chown it, or choose another than {folder}"
        )
    elif there != folder:
        yield Check("folder", "note", f"{folder} is not there yet", "the first log makes it")
    else:
        yield Check("folder", "ok", str(folder))
    free = shutil.disk_usage(there).free
    yield Check(
        "disk",
        "ok" if free >= _FREE_BYTES_MIN else "note",
        f"{show_bytes(free)} free",
        "" if free >= _FREE_BYTES_MIN else "make room",
    )


def _log(db: Database, name: str) -> Check:
    try:
        info = db.log(name).info()
    except OncelogError as error:
        return Check(f"log {name}", "bad", str(error), f"oncelog log verify {name}")
    return Check(f"log {name}", "ok", f"{info.last_position + 1 - info.first_position:,} records")


def status(url: Url, *, json: Json = False) -> None:
    """Show what is here: logs with their records, queues with what waits, and dead letters."""
    with oncelog.connect(url) as db:
        logs = [_standing(name, partial(_of_log, db, name)) for name in db.logs() if not name.startswith("queue/")]
        queues = [_standing(name, partial(_of_queue, db, name)) for name in _queues(db)]
    if json:
        print_json({"url": url, "logs": logs, "queues": queues})
        return
    say((url, "cyan"), f": {show_count(len(logs), 'log')}, {show_count(len(queues), 'queue')}")
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


def _queues(db: Database) -> list[str]:
    try:
        return [name for name in db.queues() if not name.startswith("dlq.")]
    except InvalidArgument:  # in a bucket, queues need a state that was not named
        return []


def _of_queue(db: Database, name: str) -> dict[str, object]:
    queue = db.queue(name)
    groups = queue.stats().groups.values()
    waiting, leased = sum(g.new + g.waiting for g in groups), sum(g.leased for g in groups)
    return {"waiting": waiting, "in flight": leased, "dead": len(queue.dead_letters.list(limit=10_000))}


def _table(kind: str, rows: list[dict[str, object]], columns: tuple[str, ...]) -> None:
    headings = [(kind, "left"), *((column, "right") for column in columns), ("", "fold")]
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
    """Add the commands."""
    for command in (status, doctor):
        example = f"Example, with ONCELOG_URL set:\n\n  [cyan]oncelog {command.__name__}[/]"
        app.command(help=paragraphs(command.__doc__ or ""), epilog=example)(command)
