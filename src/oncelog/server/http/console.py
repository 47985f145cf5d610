"""The console of a server: the pages of ``oncelog.console``, with what only a server knows, for people with a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from oncelog.console import render
from oncelog.console.app import build
from oncelog.console.source import Answer, Failed, NotedAct, Other, Source, Verifying
from oncelog.console.viewer import COOKIE, Kind, Verb, Viewer
from oncelog.errors import CorruptionError, OncelogError
from oncelog.inbox.inbox import Inbox
from oncelog.log.jobs.verify import Verification
from oncelog.server.ring import Answered
from oncelog.server.security import authorize
from oncelog.server.security.audit import AuditLine
from oncelog.server.security.authorize import Credentials, Principal
from oncelog.server.security.sessions import BrowserSession
from oncelog.settings import LogSettings
from oncelog.shapes import UNREADABLE
from oncelog.types import moment

if TYPE_CHECKING:
    from oncelog.server.http.app import App

_log = logging.getLogger(__name__)

AUDIT_ROWS = 50
VERIFIED_MAX = 100
"""Verifications whose results are kept."""
_WORDS = {"IdConflict": "conflict"}
"""What people call an outcome that a ring names by its error."""


def console_app(app: App) -> ASGIApp:
    """Return the console of a server."""
    return build(ServerSource(app), ServerGate(app), app.server.read)


class ServerViewer:
    """A person with a session of a token."""

    def __init__(self, principal: Principal, csrf: str) -> None:
        self.principal = principal
        self.name = principal.name
        self.csrf = csrf

    def may(self, verb: Verb, kind: Kind, name: str) -> bool:
        """Return whether the scopes of the token cover this."""
        if verb == "make":
            return authorize.may(self.principal, "admin", kind, name, making=True)
        return authorize.may(self.principal, verb, kind, name)

    def visible(self, kind: Kind, names: Sequence[str]) -> Sequence[str]:
        """Return the names that the scopes of the token cover."""
        return authorize.visible(self.principal, kind, names)


class ServerGate:
    """Sessions that are bound to a token, and end with it."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def needs_token(self) -> bool:
        """Whether a person must have a token."""
        return not self._app.authorizer.is_open

    def viewer(self, request: Request) -> Viewer | None:
        """Return who asks; a server without tokens asks nobody who they are."""
        session = self._app.sessions.read(request.cookies.get(COOKIE, ""))
        if session is None:
            return None
        principal = self._principal(session)
        return ServerViewer(principal, self._app.sessions.csrf(session)) if principal is not None else None

    def _principal(self, session: BrowserSession) -> Principal | None:
        if self._app.authorizer.is_open:
            return authorize.OPEN
        return self._app.authorizer.with_digest(session.digest)

    def login(self, request: Request, secret: str) -> str | None:
        """Return a session for a token that is known."""
        if self._app.authorizer.is_open:
            return self._app.sessions.begin("")
        peer = request.client.host if request.client is not None else ""
        try:
            principal = self._app.authorizer.principal(Credentials(f"Bearer {secret}", (), peer))
        except OncelogError:
            return None
        return self._app.sessions.begin(principal.digest or "")

    def logout(self, request: Request) -> None:
        """Do nothing: the cookie is removed, and the session ends with its time or its token."""


class ServerSource(Source):
    """A database as its server knows it."""

    acts = True
    live_answers = True

    def __init__(self, app: App) -> None:
        settings = app.server.settings
        inboxes = {name: Inbox(url) for name, url in settings.inboxes.items()}
        super().__init__(app.server.database, inboxes=inboxes, reports=settings.reports, clock=app.server.clock)
        self.queue_state = settings.queue_state
        self._app = app
        self._verifying: dict[str, Verifying] = {}
        self._following: set[asyncio.Task[None]] = set()

    async def rest(self, seconds: float) -> bool:
        """Wait, or end a live page when the server begins to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._app.server.draining.wait()
        except TimeoutError:
            return True
        return False

    def answers(self, name: str, limit: int, *, id: str | None = None) -> list[Answer]:
        """Return the latest answers from the ring of the log's seat."""
        seat = self._app.server.seats.get(name)
        if seat is None:
            return []
        return [_answer(one) for one in seat.ring.latest(limit, id=id)]

    @contextlib.asynccontextmanager
    async def noted(self, request: Request, viewer: Viewer, act: NotedAct) -> AsyncIterator[Failed]:
        """Write the act to the audit log before the body does it, and once more if the body fails."""
        assert isinstance(viewer, ServerViewer)
        peer = request.client.host if request.client is not None else ""
        line = AuditLine(**act._replace(act=f"console.{act.act}")._asdict())
        async with self._app.audit.noted(viewer.principal, peer, line):
            yield partial(self._app.audit.failed, viewer.principal, peer, line)

    def delete_log(self, name: str) -> None:
        """Delete a log: its seat lets go of the writer first."""
        asyncio.run_coroutine_threadsafe(self._app.server.delete_log(name), self._app.server.loop).result()

    def configure(self, name: str, settings: LogSettings) -> None:
        """Store other settings; the writer that is open ends, and the next one keeps to them."""
        super().configure(name, settings)
        self._app.server.seats.renew(name)

    def verify(self, name: str, failed: Failed) -> None:
        """Begin to verify a log, as one of the jobs of the server."""
        asyncio.run_coroutine_threadsafe(self._begin(name, failed), self._app.server.loop).result()

    async def _begin(self, name: str, failed: Failed) -> None:
        self._app.server.check_serving()
        now = self._verifying.get(name)
        if now is not None and not now.ended:
            return
        while len(self._verifying) >= VERIFIED_MAX:
            del self._verifying[next(iter(self._verifying))]
        self._verifying[name] = Verifying(0, 0)
        task = asyncio.create_task(self._follow(name, failed))
        self._following.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._following.discard)

    async def _follow(self, name: str, failed: Failed) -> None:
        """Keep what a page shows of a verification up to date until it has ended. The answer to the person who began
        it was given long before: what went wrong is written to the audit, too, and before a page shows it.
        """
        job = self._app.server.jobs.follow((name, "verify"), lambda tell: self.log(name).verify(tell))
        try:
            async for one in job:
                if one.ended and not one.result.ok:
                    await failed(_damage(name, one.result))
                self._verifying[name] = Verifying(one.done, one.total, one.result if one.ended else None)
        except OncelogError as error:
            await failed(error)
            self._verifying[name] = Verifying(0, 0, error=str(error))
        except Exception as error:  # noqa: BLE001 (a page that says so, and not one that waits for ever)
            _log.exception("the verification of %r failed", name)
            await failed(error)
            self._verifying[name] = Verifying(0, 0, error="the server failed: see its log")

    def verifying(self, name: str) -> Verifying | None:
        """Return how far the latest verification of a log is."""
        return self._verifying.get(name)

    def server(self) -> dict[str, list[dict[str, object]]]:
        """Return connections, tokens and the end of the audit log."""
        peers = Counter(
            answer.peer for seat in self._app.server.seats.all() for answer in seat.ring.latest(1000) if answer.peer
        )
        return {
            "Connections: peers of recent answers": [
                {"peer": peer, "answers noted": n} for peer, n in peers.most_common(100)
            ],
            "Logs with an open writer": [
                {"log": seat.name, "answers noted": seat.ring.count, "waiting": seat.desk.waiting}
                for seat in self._app.server.seats.all()
                if seat.writer is not None
            ],
            "Tokens": [
                {"name": token.name, "allows": ", ".join(token.allow), "expires": render.day_time(token.expires_us)}
                for token in self._app.authorizer.tokens()
            ],
            "Audit, the latest": self._audit(),
        }

    def _audit(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        with contextlib.suppress(OncelogError):  # nothing was audited yet
            for entry in self.latest(self._app.audit.log, AUDIT_ROWS):
                act = _act(entry.value)
                kept = {key: act.get(key, "") for key in ("who", "act", "kind", "name", "details", "peer", "failed")}
                kept["details"] = render.plain(kept["details"]) if kept["details"] else ""
                rows.append({"when": f"{entry.timestamp:%Y-%m-%d %H:%M:%S}", **kept})
        return rows


def _damage(name: str, result: Verification) -> CorruptionError:
    """Return what the audit says of a log that is damaged: how much, and the first error with its place."""
    errors = [one for one in result.findings if one.severity == "error"]
    found = "1 error" if len(errors) == 1 else f"{len(errors):,} errors, the first"
    return CorruptionError(f"{name} is damaged: {found} at {errors[0].where}: {errors[0].what}")


def _act(value: bytes) -> dict[str, Any]:
    """Return what was done; nothing for a record that somebody else wrote, which cannot be read."""
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except UNREADABLE:
        return {}


def _answer(one: Answered) -> Answer:
    at, word = moment(one.time_us), _WORDS.get(one.outcome, one.outcome)
    refused = Other(at, one.peer, *one.refused) if one.refused is not None else None
    return Answer(at, one.id, one.peer, word, one.position, refused)
