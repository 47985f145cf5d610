"""How a command ends: its exit code, and one line that says why."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

import typer

from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    LeaseLost,
    LogBusy,
    OncelogError,
    TooSlow,
    Unavailable,
    WriterFenced,
)


class ExitCode(IntEnum):
    """What scripts may rely on."""

    OK = 0
    FINDINGS = 1  # the command did its work, and something was found, or refused
    USAGE = 2  # the call is wrong, and will stay wrong
    TRY_AGAIN = 3
    CORRUPTION = 4
    INTERRUPTED = 130


_CODES: dict[tuple[type[Exception], ...], ExitCode] = {
    (AppendErrors, typer.Abort): ExitCode.FINDINGS,
    (LogBusy, Unavailable, WriterFenced, LeaseLost, TooSlow): ExitCode.TRY_AGAIN,
    (CorruptionError,): ExitCode.CORRUPTION,
    (OncelogError, typer.TyperException): ExitCode.USAGE,
    (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError): ExitCode.USAGE,
    (OSError,): ExitCode.TRY_AGAIN,
    (ModuleNotFoundError,): ExitCode.USAGE,
}
EXPECTED = tuple(kind for kinds in _CODES for kind in kinds)
"""What ends a command with a line on stderr. Anything else is a bug, and shows where."""

_EXTRAS = {
    "deltalake": "tables",
    "google": "client",
    "grpc": "client",
    "jinja2": "server",
    "obstore": "object",
    "pandas": "spark",
    "prometheus_client": "server",
    "psycopg": "postgres",
    "py4j": "spark",
    "pyiceberg": "tables",
    "pyspark": "spark",
    "redis": "redis",
    "starlette": "server",
    "uvicorn": "server",
}
"""Which extra of Oncelog brings a package."""


def fail(error: Exception, *, as_json: bool) -> ExitCode:
    """Say on stderr, in one line, what went wrong; return the exit code that stands for it."""
    from oncelog.cli.terminal.output import json_line, note  # noqa: PLC0415 (help does not wait for Rich)

    code = next(code for kinds, code in _CODES.items() if isinstance(error, kinds))
    if isinstance(error, typer.Abort) and isinstance(error.__context__, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    message = _message(error)
    if as_json:
        line = {"error": type(error).__name__, "message": message, "exit_code": int(code), **_details(error)}
        sys.stderr.write(json_line(line))
    else:
        note(("error:", "bold red"), " ", message)
    return code


def _details(error: Exception) -> dict[str, object]:
    """Return what an error of Oncelog's own carries: the first position there is, the holder's pid."""
    carried = vars(error) if isinstance(error, OncelogError) else {}
    return {
        name: value
        for name, value in carried.items()
        if not name.startswith("_") and isinstance(value, str | int | float | None)
    }


def _message(error: Exception) -> str:
    if isinstance(error, typer.Abort):
        return "stopped: nothing was done"
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _one_line(error.format_message()) + hint
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise error
        return f'{package} is not installed, and this command needs it: pip install "oncelog[{_EXTRAS[package]}]"'
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return _one_line(str(error))


def _one_line(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines())


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Note each SIGINT, which raises ``KeyboardInterrupt`` as ever. An import, and a callback of a library, that are
    interrupted may turn it into another error: the note tells such an error from a bug.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (a handler gets it)
        seen.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, say: nohup
        yield seen
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def silence_stdout() -> None:
    """Let nothing more be written to a pipe whose reader has gone; the interpreter would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
