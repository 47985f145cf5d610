"""Who looks at the console, and what that person may see and do."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Literal, Protocol

from starlette.requests import Request

from oncelog.clock import Clock

Verb = Literal["look", "read", "admin", "make"]
"""``make`` is to create and to delete: what an administrator may do to a log, but not to the log of a queue."""

Kind = Literal["server", "log", "queue"]

COOKIE = "oncelog_console"


class Viewer(Protocol):
    """A person with a session."""

    @property
    def name(self) -> str:
        """What the audit calls the person."""
        ...

    @property
    def csrf(self) -> str:
        """A value that every form of this session carries: another web page cannot know it."""
        ...

    def may(self, verb: Verb, kind: Kind, name: str) -> bool:
        """Return whether the person may look (counts and times), read (ids and values), or change something."""
        ...

    def visible(self, kind: Kind, names: Sequence[str]) -> Sequence[str]:
        """Return the names that the person may look at. There may be 100,000: it is called in a thread."""
        ...


class ViewerGate(Protocol):
    """Knows the sessions."""

    @property
    def needs_token(self) -> bool:
        """Whether a person logs in with a token."""
        ...

    def viewer(self, request: Request) -> Viewer | None:
        """Return who asks, or ``None`` for a request without a valid session."""
        ...

    def login(self, request: Request, secret: str) -> str | None:
        """Return a new session for a token (or the key of the link), or ``None`` if it is not valid. A server that
        asks nobody who they are takes any.
        """
        ...

    def logout(self, request: Request) -> None:
        """End the session of a request."""
        ...


class LocalViewer:
    """The one person that ``oncelog console`` was started by: sees everything."""

    name = "local"

    def __init__(self, csrf: str) -> None:
        self.csrf = csrf

    def may(self, verb: Verb, kind: Kind, name: str) -> bool:  # noqa: ARG002 (it is the same for all)
        """Return whether it is looking or reading."""
        return verb in ("look", "read")

    def visible(self, kind: Kind, names: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 (it is the same for all)
        """Return all names."""
        return names


class KeyGate:
    """The gate of ``oncelog console``: it admits a browser that has the key in the printed link, and no other user."""

    needs_token = False

    def __init__(self, clock: Clock) -> None:
        self.key = clock.token(18).hex()
        self._session = clock.token(18).hex()
        self._viewer = LocalViewer(clock.token(18).hex())

    def viewer(self, request: Request) -> Viewer | None:
        """Return the local person, if the cookie is the session's."""
        given = request.cookies.get(COOKIE, "")
        return self._viewer if hmac.compare_digest(given.encode(), self._session.encode()) else None

    def login(self, request: Request, secret: str) -> str | None:  # noqa: ARG002 (the key decides)
        """Return the session, if the key is the one of the link."""
        return self._session if hmac.compare_digest(secret.encode(), self.key.encode()) else None

    def logout(self, request: Request) -> None:
        """Do nothing: the session ends with the process."""
