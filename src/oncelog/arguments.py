"""Numbers that callers give: a time to wait, a count, a position. Everything else is ``InvalidArgument``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from oncelog.errors import InvalidArgument
from oncelog.types import Record

SECONDS_MAX = 1e9
"""For ever, in practice; more than this is as much."""


def seconds(name: str, value: object) -> float:
    """Return a time to wait; infinity is as long as can be.

    >>> seconds("wait_s", float("inf"))
    1000000000.0
    """
    if type(value) is float and 0 <= value <= SECONDS_MAX:
        return value
    if not isinstance(value, int | float | np.integer | np.floating) or not value >= 0:
        message = f"{name} is {value!r}, must be a number of seconds, 0 or more"
        raise InvalidArgument(message)
    return min(float(value), SECONDS_MAX)


def count(name: str, value: object) -> int:
    """Return a whole number, 0 or more.

    >>> count("limit", 5)
    5
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or value.__index__() < 0:
        message = f"{name} is {value!r}, must be a whole number, 0 or more"
        raise InvalidArgument(message)
    return value.__index__()


def listed(records: object) -> list[Record]:
    """Return the records that were given as a list, or as anything that yields them."""
    if isinstance(records, str | bytes | Record) or not isinstance(records, Iterable):
        message = f"records: is {type(records).__name__}, must be a list of Record"
        raise InvalidArgument(message)
    listed = list(records)
    if set(map(type, listed)) <= {Record}:
        return listed
    for row, record in enumerate(listed):
        if not isinstance(record, Record):
            message = f"records: number {row} is {type(record).__name__}, must be a Record"
            raise InvalidArgument(message)
    return listed
