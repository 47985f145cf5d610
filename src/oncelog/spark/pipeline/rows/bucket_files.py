"""Files of a source in a bucket, for a reading as a whole: Spark needs a jar for a bucket, and this does not."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import unquote

from oncelog.errors import InvalidArgument
from oncelog.storage.bucket.paths import bucket_of, plain


def url_of(path: str) -> str | None:
    """Return a path in a bucket as one of its URLs; ``None`` for a path that is in none.

    >>> url_of("s3a://shop/in/"), url_of("/in")
    ('s3://shop/in', None)
    """
    return plain(path).rstrip("/") if re.match(r"(s3[an]?|gs|az)://", path) else None


def listed(url: str, pattern: str | None, after: str | None, before: str | None) -> list[str]:
    """Return the files below a URL, without hidden ones, that were changed after and before a time in UTC.

    ``InvalidArgument`` if there are none at all: a pattern, or the name of a file, is no folder in a bucket, and a run
    that reads nothing would look like one that is done.
    """
    first = datetime.min.replace(tzinfo=UTC) if after is None else _moment(after)
    last = datetime.max.replace(tzinfo=UTC) if before is None else _moment(before)
    below = list(_below(url))
    if not below:
        message = (
            f"there are no files below {url}: in a bucket, source.path is a folder, not a file or a pattern; "
            "the option pathGlobFilter chooses files by their names"
        )
        raise InvalidArgument(message)
    return [
        f"{url}/{name}"
        for name, changed in below
        if first < changed < last and (pattern is None or fnmatch.fnmatch(name.rpartition("/")[2], pattern))
    ]


def folders(url: str, column: str) -> list[tuple[str, str]]:
    """Return the values of a partition below a URL, with the folder of each."""
    found = {}
    for name, _ in _below(url):
        parts = name.split("/")[:-1]
        for depth, part in enumerate(parts, start=1):
            if part.startswith(f"{column}="):
                found["/".join(parts[:depth])] = unquote(part.partition("=")[2])
    return [(value, folder) for folder, value in sorted(found.items())]


def _below(url: str) -> Iterator[tuple[str, datetime]]:
    place = bucket_of(url)
    assert place is not None
    bucket, prefix = place
    start = f"{prefix}/" if prefix else ""
    for path, changed in bucket.dated(start):
        name = path[len(start) :]
        if not any(part.startswith((".", "_")) and "=" not in part for part in name.split("/")):
            yield name, changed


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
