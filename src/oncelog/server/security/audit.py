"""The audit log: who did which admin verb to what, written before it is done.

An admin verb that cannot be audited is not done. The record says what was asked for; a second record says how it ended,
if the verb failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec

from oncelog.errors import OncelogError, Unavailable
from oncelog.server.security.authorize import Principal
from oncelog.types import Record

LOG = "_audit"
TIMEOUT_S = 5.0

REASON_MAX = 1000
"""Characters of the reason why an act failed that a line shows."""

Append = Callable[[str, Record], Awaitable[object]]
"""Appends one record to a log of this name, creating the log when it is not there; returns when it is durable."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log. It holds names and settings, never values of records nor tokens."""

    act: str
    kind: str
    name: str
    who: str = ""
    by: str = ""
    peer: str = ""
    details: Mapping[str, object] = {}
    failed: str | None = None


class AuditTrail:
    """Writes to the server's own audit log."""

    def __init__(self, append: Append, log: str = LOG) -> None:
        """Take what appends, and the name of the log: each server of a fleet has its own."""
        self._append = append
        self.log = log

    async def note(self, principal: Principal, peer: str, act: AuditLine) -> None:
        """Write that something is about to be done; ``Unavailable``, and it must not be done, if that fails."""
        line = msgspec.structs.replace(act, who=principal.name, by=principal.by, peer=peer)
        try:
            await self._append(self.log, Record(msgspec.json.encode(line), type=act.act))
        except (OncelogError, TimeoutError) as error:
            message = f"{act.act} of {act.kind} {act.name!r} was not done: it could not be written to {self.log!r}"
            raise Unavailable(message, outcome="not written") from error

    @asynccontextmanager
    async def noted(self, principal: Principal, peer: str, act: AuditLine) -> AsyncIterator[None]:
        """Write an act down before the body does it; if the body fails, write a second line that says why."""
        await self.note(principal, peer, act)
        try:
            yield
        except Exception as error:
            await self.failed(principal, peer, act, error)
            raise

    async def failed(self, principal: Principal, peer: str, act: AuditLine, error: Exception) -> None:
        """Write that an act failed. If the line cannot be written, the caller still learns the act's own error."""
        reason = str(error) if isinstance(error, OncelogError) else "the server failed: see its log"
        with suppress(OncelogError):
            await self.note(principal, peer, msgspec.structs.replace(act, failed=reason[:REASON_MAX]))
