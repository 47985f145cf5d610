"""Logs named together with their database: ``URL#NAME``."""

from __future__ import annotations

from oncelog.errors import InvalidArgument


def source(given: str, url: str | None) -> tuple[str, str]:
    """Return the database and the name of a log to read: ``URL#NAME``, or a name in the database of ``--url``."""
    place, hash, name = given.rpartition("#")
    if hash:
        return place, name
    if "://" in given:
        message = f"{given!r} is a database: say which log of it, as {given}#NAME"
        raise InvalidArgument(message)
    if url is None:
        message = f"{given!r}: say where it is, as URL#{given}, or by --url or ONCELOG_URL"
        raise InvalidArgument(message)
    return url, given


def target(given: str, name: str) -> tuple[str, str]:
    """Return the database and the name of a log to make: ``URL#NAME``, or a URL and the name it had."""
    place, hash, wanted = given.rpartition("#")
    if "://" not in given and not given.startswith(("./", "../", "/")):
        message = f"{given!r} is no place: say where the log goes to, as s3://bucket/shop, ./shop, or ./shop#NAME"
        raise InvalidArgument(message)
    return (place, wanted) if hash else (given, name)
