"""The database of a whole command line: ``--profile`` anywhere, ``--url`` before the command, ``ONCELOG_PROFILE``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from oncelog.errors import InvalidArgument
from oncelog.profiles import SCHEME

URL_VARIABLE = "ONCELOG_URL"
VARIABLE = "ONCELOG_PROFILE"
_FLAG = "--profile"
_URL_FLAGS = ("--url", "-u")


def taken(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return a command line without ``--profile``, and the profile that it names.

    >>> taken(["log", "--profile", "prod", "list"])
    (['log', 'list'], 'prod')
    """
    rest: list[str] = []
    profile: str | None = None
    given = list(arguments)
    while given:
        one = given.pop(0)
        if one == "--":
            return [*rest, one, *given], profile
        if one == _FLAG and not given:
            message = f"{_FLAG}: name a profile; oncelog profile list shows them"
            raise InvalidArgument(message)
        if one == _FLAG:
            profile = given.pop(0)
        elif one.startswith(f"{_FLAG}="):
            profile = one.removeprefix(f"{_FLAG}=")
        else:
            rest.append(one)
    return rest, profile


def _leading_url(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return a command line without a ``--url`` before its first word, and that URL."""
    first, *rest = arguments or [""]
    if first in _URL_FLAGS and rest:
        return rest[1:], rest[0]
    if first.startswith("--url="):
        return rest, first.removeprefix("--url=")
    return list(arguments), None


@contextlib.contextmanager
def chosen(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Have the database of a profile, or of a ``--url`` before the command, be that of ``ONCELOG_URL`` while it runs.

    A flag wins over a variable. Two flags, or two variables without a flag, are refused: the wrong database is worse
    than none.
    """
    rest, flag = taken(arguments)
    rest, url = _leading_url(rest)
    has_url = any(one in _URL_FLAGS or one.startswith("--url=") for one in rest)
    before, profile = os.environ.get(URL_VARIABLE), flag or os.environ.get(VARIABLE)
    if flag is not None and (has_url or url is not None):
        message = "--profile and --url name a database each: give one of them"
        raise InvalidArgument(message)
    if url is not None and has_url:
        message = "--url names a database before the command and behind it: give one of them"
        raise InvalidArgument(message)
    if flag is None and url is None and profile and before and not has_url and rest:
        message = f"{VARIABLE} and {URL_VARIABLE} name a database each: unset one of them, or give --profile or --url"
        raise InvalidArgument(message)
    if url is None and (not profile or has_url):
        yield rest
        return
    os.environ[URL_VARIABLE] = f"{SCHEME}{profile}" if url is None else url
    try:
        yield rest
    finally:
        del os.environ[URL_VARIABLE]
        if before is not None:
            os.environ[URL_VARIABLE] = before
