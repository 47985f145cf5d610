"""Buckets by the URLs that programs know them by, Spark among them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # without a bucket, no client of buckets is needed
    from oncelog.storage.bucket.bucket import Bucket

_BUCKET = re.compile(r"(?P<scheme>s3[an]?|gs|az)://(?P<name>[^/]+)/?(?P<prefix>.*)")


def plain(path: str) -> str:
    """Return a path with one name for S3, of the three that Spark has: a file has one path, whichever way it is read.

    >>> plain("s3a://shop/in/a.json"), plain("file:/in/a.json")
    ('s3://shop/in/a.json', 'file:/in/a.json')
    """
    return re.sub("^s3[an]://", "s3://", path)


def bucket_of(path: str) -> tuple[Bucket, str] | None:
    """Return the bucket that a path is in, and the prefix there; ``None`` for a path that is in none."""
    found = _BUCKET.fullmatch(path)
    if found is None:
        return None
    from oncelog.storage.bucket.bucket import Bucket  # noqa: PLC0415 (as above)

    return Bucket.connect(plain(f"{found['scheme']}://{found['name']}"), {}), found["prefix"].strip("/")
