"""Sessions of the console: a signed cookie that is bound to a token, and ends with it.

The cookie holds the digest of the token and when the session ends, signed with the key of the server (or of the
fleet). So no server keeps a list of sessions, and a revoked token ends all of its sessions. Each session has a token
against forged requests (CSRF), derived from the same key.
"""

from __future__ import annotations

import base64
import hmac
from typing import NamedTuple

from oncelog.clock import Clock
from oncelog.errors import NotAllowed

COOKIE = "oncelog_session"
LIFETIME_S = 12 * 3600
CSRF_HEADER = "oncelog-csrf"
_TAG = "sha256"
_PARTS = 4
_ID_BYTES = 16


class BrowserSession(NamedTuple):
    """A session: its id, the digest of its token (empty where the server is open), and when it ends."""

    id: str
    digest: str
    expires_us: int


class BrowserSessions:
    """Makes and reads the cookies of one key."""

    def __init__(self, clock: Clock, key: bytes) -> None:
        """Take the key that signs; servers of one fleet share it."""
        self._clock = clock
        self._key = key

    def begin(self, digest: str) -> str:
        """Return the value of the cookie of a new session: its id is new at each login."""
        expires_us = self._clock.now_us() + LIFETIME_S * 1_000_000
        text = f"{self._clock.token(_ID_BYTES).hex()}.{digest}.{expires_us}"
        return f"{text}.{self._sign('session', text)}"

    def read(self, cookie: str) -> BrowserSession | None:
        """Return the session of a cookie; ``None`` for one that was changed, or is over."""
        parts = cookie.split(".")
        if len(parts) != _PARTS or not cookie.isascii():
            return None
        id, digest, expires, given = parts
        if not hmac.compare_digest(given, self._sign("session", f"{id}.{digest}.{expires}")):
            return None
        found = BrowserSession(id, digest, int(expires))
        return found if found.expires_us > self._clock.now_us() else None

    def csrf(self, session: BrowserSession) -> str:
        """Return what a form of this session carries, and no other site knows."""
        return self._sign("csrf", session.id)

    def check_csrf(self, session: BrowserSession, given: str | None) -> None:
        """Raise ``NotAllowed`` unless a request carries the session's own token."""
        if given is None or not hmac.compare_digest(given.encode(), self.csrf(session).encode()):
            message = "the request does not carry this session's token (CSRF): load the page again"
            raise NotAllowed(message)

    def _sign(self, purpose: str, text: str) -> str:
        made = hmac.new(self._key, f"{purpose}:{text}".encode(), _TAG).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")
