"""A staged file: written beside a log, and not a part of the log yet."""

from __future__ import annotations

import msgspec

from oncelog.format import identities as identities_format
from oncelog.format.identities import Identities
from oncelog.storage.base import LogHome


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A file that may be adopted: its key, what is in it, and the key of its identities (``None``: no record has an
    id). ``digest`` is a sum over its rows: the same whatever their order, and however they are spread over files.
    ``labels`` are as a segment has them.
    """

    key: str
    records: int
    size_bytes: int
    checksum: int
    identities: str | None = None
    ids: int = 0
    digest: int = 0
    labels: int = -1


def read_identities(home: LogHome, key: str) -> Identities:
    """Return the identities beside a file, checked."""
    return identities_format.decode(home.read(key), key)
