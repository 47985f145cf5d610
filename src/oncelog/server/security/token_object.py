"""Tokens as an object in the database, which all its servers share.

They are versions of one small object, created one after the other and never overwritten or deleted. So a database that
ever had a token asks its callers for one for ever, also when the last token was revoked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import msgspec

from oncelog.errors import CorruptionError, OncelogError, Unavailable
from oncelog.format import frame
from oncelog.server.security import tokens
from oncelog.server.security.tokens import KnownToken, Token
from oncelog.shapes import prepare
from oncelog.storage.base import LogHome

HOME = "~tokens"
"""The key of the home: no log's name becomes it."""

_KIND, _FORMAT = b"OLto", 1
_log = logging.getLogger("oncelog.server.security")


class TokenObject:
    """The tokens of a database as they were at the last ``look``. Safe to share between threads.

    Invariant: ``_known`` is the content of the last version that could be read, never nothing in its place.
    """

    def __init__(self, home: LogHome) -> None:
        """Keep a home; nothing is asked of it yet."""
        self._home = home
        self._looking = threading.Lock()
        self._version = 0
        self._was_read = False
        self._known: Mapping[str, KnownToken] = {}
        self.damaged: str | None = None

    def __str__(self) -> str:
        """Tell where the tokens are."""
        return self._home.location("tokens")

    # For servers: what was seen at the last look.

    @property
    def required(self) -> bool:
        """Whether callers need a token: the database has, or had, one."""
        return self._version > 0

    def find(self, sha256: str) -> KnownToken | None:
        """Return the token with this digest."""
        return self._known.get(sha256)

    def all(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        return [known.token for known in self._known.values()]

    def look(self) -> None:
        """Read the newest version, if there is a new one: one request when there is none.

        What cannot be read leaves the tokens as they were, and is said so. The first time it is raised: a server starts
        with good tokens or not, and never takes "could not be read" for "nobody needs a token".
        """
        with self._looking:
            try:
                version = self._newest(self._version)
                if version != self._version:
                    self._known, self._version = tokens.by_digest(self._read(version)), version
                self._was_read, self.damaged = True, None
            except OncelogError as error:
                if not self._was_read:
                    raise
                if self.damaged is None:
                    _log.error("tokens stay as they were", extra={"reason": str(error)})
                self.damaged = str(error)

    # For operators.

    def stored(self) -> list[Token]:
        """Return the tokens as they are stored now."""
        version = self._newest(0)
        return self._read(version) if version else []

    def change(self, change: Callable[[list[Token]], list[Token]]) -> None:
        """Store changed tokens as the next version; on top of another's if that was quicker."""
        while True:
            version = self._newest(0)
            after = change(self._read(version) if version else [])
            if self._created(version + 1, frame.wrap(_KIND, _FORMAT, msgspec.msgpack.encode(after))):
                return

    def _created(self, version: int, data: bytes) -> bool:
        """Create a version. If the answer is lost, read the version and compare: the digests of its tokens tell whose
        it is.
        """
        try:
            if self._home.create(_key(version), [data]):
                return True
        except Unavailable as error:
            if error.outcome != "unknown" or not self._home.exists(_key(version)):
                raise
        return bool(self._home.read(_key(version)).to_pybytes() == data)

    def _newest(self, version: int) -> int:
        while self._home.exists(_key(version + 1)):
            version += 1
        return version

    def _read(self, version: int) -> list[Token]:
        key = _key(version)
        found = frame.unpack(frame.unwrap(_KIND, _FORMAT, self._home.read(key), key), list[Token], key)
        try:
            tokens.by_digest(found)
        except OncelogError as error:
            message = f"{key}: a token has a scope that is none: {error}"
            raise CorruptionError(message) from error
        return found


def _key(version: int) -> str:
    return f"tokens/{version:020d}"


prepare(list[Token])
