"""Where keys are kept: what the inbox asks of SQLite, PostgreSQL and Redis alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from oncelog.inbox.decisions import Identity, Status, Stored
from oncelog.inbox.steps import Steps


class KeyClaim(NamedTuple):
    """An attempt that wants a key. ``lease_us`` is ``None`` where the user's own transaction holds it."""

    identity: Identity
    nonce: str
    owner: str
    fingerprint: bytes | None
    lease_us: int | None
    retention_us: int | None


class HeldKey(NamedTuple):
    """A key that an attempt has got."""

    token: int
    attempts: int
    last_error: str | None


class AttemptOutcome(NamedTuple):
    """How an attempt ended. ``event`` is what the story says, ``final`` whether a failure is one for good."""

    status: Status
    result: bytes | None = None
    error: str | None = None
    final: bool = False
    event: str = "committed"


class KeyRow(NamedTuple):
    """A key among others. An erased one has no name any more, and is known by its digest alone."""

    digest: bytes
    identity: Identity
    stored: Stored


class Connection(Protocol):
    """One connection of the user's, whatever made it; used for one effect at a time.

    ``begin`` and ``commit`` take what is to be asked of the store with them, so that it need not be a round trip of its
    own. Where there are no transactions they do just that.
    """

    raw: Any
    """The connection itself."""

    def busy(self) -> bool:
        """Tell whether the user has begun a transaction."""
        ...

    def begin(self) -> Steps[None]:
        """Begin a transaction, or a part of the one that the user has begun."""
        ...

    def commit(self) -> Steps[None]:
        """Commit what was begun. ``InvalidArgument`` if the user has done so already."""
        ...

    def rollback(self) -> Steps[None]:
        """Take back what was begun."""
        ...

    def lost(self) -> bool:
        """Tell whether the connection is of no use any more."""
        ...

    def close(self) -> Steps[None]:
        """Close it."""
        ...

    # The store. What changes a key names the nonce that it expects there, and returns whether it was.

    def claim(self, claim: KeyClaim) -> Steps[HeldKey | Stored]:
        """Begin, and take a key that is absent; return what is stored if it is not."""
        ...

    def read(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key."""
        ...

    def look(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key, outside of any effect."""
        ...

    def claim_again(self, claim: KeyClaim, stored: Stored) -> Steps[HeldKey | None]:
        """Take a key over from the attempt that was seen there."""
        ...

    def finish(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[bool]:
        """Store how an attempt ended, and commit."""
        ...

    def note_failure(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[None]:
        """Store that an attempt failed which has left no trace: its transaction was taken back."""
        ...

    def settle(
        self, identity: Identity, stored: Stored, outcome: AttemptOutcome, retention_us: int | None
    ) -> Steps[bool]:
        """Store what somebody has decided about a key as it was seen."""
        ...

    def renew(self, claim: KeyClaim) -> Steps[bool]:
        """Have the lease again, from now."""
        ...

    def erase(self, identity: Identity, stored: Stored) -> Steps[bool]:
        """Forget all but that the key was there."""
        ...

    def expired(self, limit: int, after: bytes) -> Steps[list[KeyRow]]:
        """Return keys that need not be kept any longer, in the order of their digests, from behind one."""
        ...

    def forget(self, digests: Sequence[bytes]) -> Steps[int]:
        """Remove keys that need not be kept any longer; return how many."""
        ...

    def find(self, key: str, limit: int) -> Steps[list[KeyRow]]:
        """Return what is stored under a key, whatever its tenant, topic and group."""
        ...

    def latest(self, status: Status | None, limit: int) -> Steps[list[KeyRow]]:
        """Return the keys that changed last, the latest first; those with a status, if one is given."""
        ...
