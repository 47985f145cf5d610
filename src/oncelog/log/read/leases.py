"""Leases: how a reader keeps what it has yet to read from being truncated away.

A lease is an object whose name says all: until when, and from which position on. A truncation announces itself in the
manifest, then looks for leases, then truncates; a reader writes its lease, then looks at the manifest, and stops a
truncation that was announced but not made. So whichever comes first, the other sees it.
"""

from __future__ import annotations

from typing import Self

import msgspec

from oncelog import arguments
from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, OncelogError, Unsupported
from oncelog.format.manifest import Manifest
from oncelog.limits import LEASE_S_MAX
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import LogHome

PREFIX = "leases/"
_PARTS = 3


class ReaderLease:
    """A reader's lease on everything from a position on. Used by one thread at a time."""

    def __init__(self, home: LogHome, manifests: Manifests, clock: Clock, duration_s: float) -> None:
        self._home = home
        self._manifests = manifests
        self._clock = clock
        self._duration_us = int(duration_s * 1e6)
        self._key: str | None = None
        self._renew_at_us = 0

    @classmethod
    def of(cls, name: str, home: LogHome, manifests: Manifests, clock: Clock, duration_s: float) -> Self:
        """Return a lease on a log, not held yet; ``InvalidArgument`` for a bad duration."""
        if manifests.whole is not manifests:
            message = f"log {name!r} shares its home with the log it conflicts with: read it without a lease"
            raise Unsupported(message)
        if not 0 < arguments.seconds("lease_s", duration_s) <= LEASE_S_MAX:
            message = f"lease_s is {duration_s}, must be more than 0 and at most {LEASE_S_MAX}"
            raise InvalidArgument(message)
        return cls(home, manifests, clock, duration_s)

    def hold(self, position: int) -> None:
        """Make sure that nothing from ``position`` on is truncated for the lease's duration from now."""
        if self._key is not None and self._clock.elapsed_us() < self._renew_at_us:
            return
        old = self._key
        until_us = self._clock.now_us() + self._duration_us
        self._key = f"{PREFIX}{until_us:020d}-{position:020d}-{self._clock.token(4).hex()}"
        self._home.create(self._key, [b"lease"])
        self._renew_at_us = self._clock.elapsed_us() + self._duration_us // 3
        self._manifests.update(lambda manifest: _stop_truncation(manifest, position))
        if old is not None:
            self._home.delete(old)

    def release(self) -> None:
        """Give the lease back."""
        if self._key is not None:
            try:
                self._home.delete(self._key)
            except OncelogError:
                return  # it runs out by itself
            self._key = None


def _stop_truncation(manifest: Manifest, position: int) -> Manifest:
    if manifest.truncating > max(position, manifest.first_position):
        return msgspec.structs.replace(manifest, truncating=0)
    return manifest


def held_from(home: LogHome, clock: Clock) -> int | None:
    """Return the first position that a living lease holds; leases that have run out are removed."""
    now_us = clock.now_us()
    held: list[int] = []
    for key in home.list(PREFIX):
        parts = key.removeprefix(PREFIX).split("-")
        if len(parts) != _PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
            continue
        if int(parts[0]) < now_us:
            home.delete(key)
        else:
            held.append(int(parts[1]))
    return min(held, default=None)
