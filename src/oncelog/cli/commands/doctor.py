"""``oncelog doctor``: is anything wrong with the set-up, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import typer
from rich.text import Text

import oncelog
from oncelog import inner, names, profiles
from oncelog.cli.terminal.options import Json, MaybeUrl
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import print_json, print_table
from oncelog.cli.terminal.plain import paragraphs
from oncelog.cli.terminal.quantities import show_bytes, show_count, show_duration
from oncelog.clock import SYSTEM
from oncelog.errors import InvalidArgument, OncelogError, Unsupported
from oncelog.redaction import redacted
from oncelog.types import moment

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
_BUCKETS = ("s3", "gs", "az")
_FREE_BYTES_MIN = 1 << 30
_PROBE_BYTES = 64 << 10
_JAVA_MIN = 17
_ANSWER_S = 20.0
_CONNECT_S = 5.0
_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time: this version did not exist then."""
_AHEAD = timedelta(minutes=1)


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""


def doctor(url: MaybeUrl = None, *, json: Json = False) -> None:
    """Look for what is wrong with the set-up: Python, packages, Java, clock, the folder or bucket, every log."""
    checks = list(_checks(url))
    if json:
        for check in checks:
            print_json(check)
    else:
        rows = [(c.what, Text(c.verdict, _STYLES[c.verdict]), c.found, c.advice) for c in checks]
        print_table([("what", "left"), ("verdict", "left"), ("found", "fold"), ("do", "fold")], rows)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(ExitCode.FINDINGS)


def _checks(url: str | None) -> Iterator[Check]:
    yield _python()
    yield _system()
    for extra, modules in _EXTRAS.items():
        yield _extra(extra, modules)
    yield _java()
    yield _clock()
    if url is None:
        yield Check("database", "note", "none given", "name one: --url, or ONCELOG_URL")
        return
    try:
        yield from _database(url)
    except OncelogError as error:
        told = isinstance(error, InvalidArgument | Unsupported)  # its message says what to do
        yield Check("database", "bad", f"{redacted(url)}: {error}", "" if told else _remedy(url))


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
    return Check(f"extra {extra}", "note", f"without {', '.join(missing)}", f'pip install "oncelog[{extra}]"')


def _is_installed(module: str) -> bool:
    import importlib.util  # noqa: PLC0415

    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is missing, or something else has taken its name
        return False


def _java() -> Check:
    """Look at the Java that Spark would start: the one of ``JAVA_HOME``, else the first of the path."""
    import shutil  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = "Spark needs Java 17: apt-get install openjdk-17-jre-headless"
    if home:
        advice += ", and let JAVA_HOME name it, or unset JAVA_HOME"
    if found is None:
        return Check("Java", "note", "not found", advice)
    try:
        told = subprocess.run(  # noqa: S603 (the Java of this user)
            [found, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", "note", f"{found} cannot be run: {_reason(error)}", advice)
    version = told.partition('"')[2].partition('"')[0]
    if not version:
        return Check("Java", "note", f"{found} does not tell its version", advice)
    major = version.partition(".")[0]
    is_new = major.isdecimal() and int(major) >= _JAVA_MIN
    return Check("Java", "ok" if is_new else "note", version, "" if is_new else advice)


def _clock() -> Check:
    now = moment(SYSTEM.now_us())
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < _EARLIEST:
        return Check("clock", "bad", f"{shown} is in the past", "set the clock of this machine, or let NTP set it")
    return Check("clock", "ok", shown)


def _database(url: str) -> Iterator[Check]:
    real = _real(url)
    if real.startswith(names.SERVER_SCHEMES):
        silent = _silent_server(real)
        if silent is not None:
            yield silent
            return
    if (folder := _folder_of(real)) is not None:
        checks = list(_folder(folder))
        yield from checks
        if checks[0].verdict == "bad" and not folder.is_dir():
            return
    with oncelog.connect(url) as db:
        listed = db.logs()
        yield Check("database", "ok", f"{redacted(url)}: {show_count(len(listed), 'log')}")
        if real.removeprefix("quorum:").partition("://")[0] in _BUCKETS:
            yield _bucket(db)
        for name in listed:
            yield _log(db, name)


def _real(url: str) -> str:
    """Return the URL that a profile stands for, or the one that was given."""
    if not url.startswith(profiles.SCHEME):
        return url
    return profiles.find(url.removeprefix(profiles.SCHEME), profiles.path()).url


def _remedy(url: str) -> str:
    """Return what to look at when a database does not answer as it should; mostly its message says it."""
    kind = url.partition("://")[0].removeprefix("quorum:")
    if kind in _BUCKETS:
        return "check the endpoint, the name of the bucket, and the credentials"
    return "check that the server runs, and the token" if url.startswith(names.SERVER_SCHEMES) else ""


def _silent_server(url: str) -> Check | None:
    """Say that nobody listens at any address of a server, without the patience of a client."""
    import socket  # noqa: PLC0415

    from oncelog.client import address  # noqa: PLC0415

    refused = []
    for target in address.targets(url):
        host, _, port = target.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            refused.append(f"{target}: {_reason(error)}")
        else:
            return None
    advice = "start it (oncelog serve), or check host and port"
    return Check("server", "bad", f"nobody answers at {', '.join(refused)}", advice)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _bucket(db: Database) -> Check:
    """Store a small object and remove it: tell whether writes are allowed, and whether creates are conditional."""
    try:
        inner.home(db, "~doctor").probe()
    except OncelogError as error:
        return Check("bucket", "bad", str(error), "let the credentials list, read, create and delete objects there")
    return Check("bucket", "ok", "takes objects, and keeps a second create from replacing the first")


def _folder_of(url: str) -> Path | None:
    """Return the folder of a database on a disk, as the URL names it."""
    parts = urlsplit(url.removeprefix("quorum:"))
    is_path = parts.scheme == "file" and not parts.netloc
    return Path(unquote(parts.path)) if is_path or (not parts.scheme and url) else None


def _folder(folder: Path) -> Iterator[Check]:
    """Look at the folder of a database on a disk: can it be written, and is there room."""
    import shutil  # noqa: PLC0415

    there = folder
    while not there.exists():
        there = there.parent
    found = _written(there, folder)
    yield found
    if found.verdict == "bad":
        return
    free = shutil.disk_usage(there).free
    is_enough = free >= _FREE_BYTES_MIN
    yield Check("disk", "ok" if is_enough else "note", f"{show_bytes(free)} free", "" if is_enough else "make room")


def _written(there: Path, folder: Path) -> Check:
    """Write and sync a file without a name where the folder is, or would be made."""
    import tempfile  # noqa: PLC0415

    if not there.is_dir():
        return Check("folder", "bad", f"{there} is a file", "move it away, or choose another folder")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Check("folder", "bad", f"{there} cannot be written: {_reason(error)}", _right(error, folder))
    if there != folder:
        return Check("folder", "note", f"{folder} is not there yet", "the first log makes it")
    return Check("folder", "ok", str(folder))


def _right(error: OSError, folder: Path) -> str:
    import errno  # noqa: PLC0415

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room"
    if error.errno == errno.EROFS:
        return "mount it writable, or choose another folder"
    return f"give this user the right to write there, or choose another folder than {folder}"


def _log(db: Database, name: str) -> Check:
    try:
        log = db.log(name)
        info = log.info()
        if (ahead := _ahead(log, info.first_position, info.last_position)) is not None:
            found = f"its last record is {show_duration(ahead.total_seconds())} ahead of this clock"
            return Check(f"log {name}", "note", found, "set the clock, here or where the log is written")
    except OncelogError as error:
        return Check(f"log {name}", "bad", str(error), f"oncelog log verify {name}")
    return Check(f"log {name}", "ok", show_count(info.last_position + 1 - info.first_position, "record"))


def _ahead(log: oncelog.Log, first: int, last: int) -> timedelta | None:
    """Return how far the last record's time is in the future, if it is more than clocks differ."""
    if last < first:
        return None
    with contextlib.suppress(StopIteration), log.read(start=last) as entries:
        ahead = next(iter(entries)).timestamp - moment(SYSTEM.now_us())
        return ahead if ahead > _AHEAD else None
    return None


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    example = "Example, with ONCELOG_URL set:\n\n  [cyan]oncelog doctor[/]"
    app.command(help=paragraphs(doctor.__doc__ or ""), epilog=example)(doctor)
