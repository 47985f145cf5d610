"""What Spark says when a query fails, in one line: Oncelog's own error where one is at the bottom of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncelog import errors
from oncelog.errors import InvalidArgument, OncelogError, Unavailable

_OURS = re.compile(r"^\s*(?:oncelog\.errors\.)(?P<kind>\w+): (?P<message>.+)$", re.MULTILINE)
OURS = "oncelog: "
"""What an error begins with that Oncelog has a task of Spark's raise for a row."""

_RAISED = re.compile(rf"\[USER_RAISED_EXCEPTION\] {OURS}(?P<message>.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CLASS = re.compile(r"^\[(?P<name>[A-Z_.]+)\]\s*")
_JAVA = re.compile(r"^[\w.$]+(?:Exception|Error): ")
_MISSING = re.compile(r"^java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError): (?P<name>\S+)")
_PYTHON = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Invalid)\b.*)$", re.MULTILINE)
_CALL = {"AnalysisException", "ParseException", "IllegalArgumentException", "PySparkTypeError", "PySparkValueError"}


@contextmanager
def told(log_file: Path | None = None) -> Iterator[None]:
    """Raise what Spark raises as an error of Oncelog's: the one that made it fail, or ``InvalidArgument`` for a wrong
    call, or ``Unavailable``.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 (as in session)
    from pyspark.errors import PySparkException  # noqa: PLC0415 (as in session)

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise explained(type(error).__name__, said(error), log_file) from error


def said(error: Exception) -> str:
    """Return what Spark, or a driver behind it, said: an exception of Java comes with the call it was raised in."""
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        origin: Any = getattr(error, "_origin", None)
        cause = origin.getCause() if origin is not None and "FAILED_JDBC" in str(error) else None
        first, *rest = str(error).split("\n")
        why = "" if cause is None else f": {_JAVA.sub('', str(cause.toString())).splitlines()[0]}"
        return "\n".join([first.split(" SQLSTATE")[0].rstrip(".") + why, *rest]) if why else str(error)
    text = str(java.toString())
    missing = _MISSING.match(text)
    return f"there is no class {missing['name']}" if missing else _JAVA.sub("", text)


def explained(kind: str, text: str, log_file: Path | None = None) -> OncelogError:
    r"""Return an error for what Spark said.

    >>> explained("X", "[FAILED] it\n  oncelog.errors.IdConflict: id is taken\n at y")
    InvalidArgument('id is taken')
    >>> explained("X", "[STREAM_FAILED] the disk is full")
    Unavailable('Spark failed: the disk is full')
    >>> explained("X", "the Python worker:\nTraceback (most recent call last):\n  File x\nKeyError: 'n'")
    Unavailable("Spark failed: the Python worker: KeyError: 'n'")
    """
    ours = None
    for ours in _OURS.finditer(text):  # noqa: B007 (the last is the one that was raised)
        pass
    if ours is not None:
        known = getattr(errors, ours["kind"], OncelogError)
        return _made(known if issubclass(known, OncelogError) else OncelogError, ours["message"].strip())
    raised = _RAISED.search(text)
    if raised is not None:
        return InvalidArgument(raised["message"])
    line = _CLASS.sub("", text.strip().split("\n", maxsplit=1)[0]).split(" SQLSTATE")[0]
    if kind in _CALL:
        return InvalidArgument(line)
    raised_in_python = _PYTHON.findall(text) if line.endswith(":") else []
    line = f"{line} {raised_in_python[-1]}" if raised_in_python else line
    more = f"; all of it is in {log_file}" if log_file is not None and log_file.is_file() else ""
    return Unavailable(f"Spark failed: {line}{more}")


def _made(kind: type[OncelogError], message: str) -> OncelogError:
    """Return an error of a kind, or of the nearest above it that needs a message only: more has not come with it."""
    for one in kind.__mro__:
        if issubclass(one, OncelogError):
            try:
                return one(message)
            except TypeError:
                continue
    return OncelogError(message)
