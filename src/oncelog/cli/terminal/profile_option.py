"""``--profile``, anywhere on a command line, and ``ONCELOG_PROFILE``: the database by its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from oncelog.errors import InvalidArgument
from oncelog.profiles import SCHEME

URL_VARIABLE = "ONCELOG_URL"
VARIABLE = "ONCELOG_PROFILE"
_FLAG = "--profile"


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


@contextlib.contextmanager
def chosen(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Have the database of a profile be that of ``ONCELOG_URL``, for as long as a command runs.

    A flag wins over a variable. Two flags, or two variables without a flag, are refused: the wrong database is worse
    than none.
    """
    rest, flag = taken(arguments)
    has_url = any(one in ("--url", "-u") or one.startswith("--url=") for one in rest)
    before, profile = os.environ.get(URL_VARIABLE), flag or os.environ.get(VARIABLE)
    if flag is not None and has_url:
        message = "--profile and --url name a database each: give one of them"
        raise InvalidArgument(message)
    if flag is None and profile and before and not has_url and rest:
        message = f"{VARIABLE} and {URL_VARIABLE} name a database each: unset one of them, or give --profile or --url"
        raise InvalidArgument(message)
    if not profile or has_url:
        yield rest
        return
    os.environ[URL_VARIABLE] = SCHEME + profile
    try:
        yield rest
    finally:
        del os.environ[URL_VARIABLE]
        if before is not None:
            os.environ[URL_VARIABLE] = before
