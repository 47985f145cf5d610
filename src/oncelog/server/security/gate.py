"""The gate of gRPC: every call is judged, and written to the audit log, by the same functions as a call over HTTP."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from oncelog.errors import NotAuthenticated
from oncelog.server.security import authorize, verbs
from oncelog.server.security.audit import AuditLine, AuditTrail
from oncelog.server.security.authorize import Authorizer, Credentials, Principal
from oncelog.server.security.scopes import Kind

if TYPE_CHECKING:
    from oncelog.server.call import Caller

_DETAILS = ("before", "kind", "by", "remove", "create", "partitions", "force", "producer", "group", "positions", "all")
"""Fields of requests that the audit log shows: none of them is a value, an id or a secret."""


class Gate:
    """Knows who calls a method, and what it needs."""

    def __init__(self, authorizer: Authorizer, audit: AuditTrail) -> None:
        self._authorizer = authorizer
        self._audit = audit

    def admit(self, call: Caller, method: str, name: str | None, request: Any = None) -> Principal:
        """Return who calls; raise unless the caller may call this method on the log or queue of this name."""
        principal = self._principal(call)
        if method in verbs.LISTING:
            return principal
        need = verbs.need(method, request) if request is not None else verbs.METHODS[method]
        kind: Kind = "server" if name is None else need.kind
        authorize.check(principal, need.verb, kind, name or "", making=need.making)
        return principal

    def _principal(self, call: Caller) -> Principal:
        authorization = None if call.bearer is None else f"Bearer {call.bearer}"
        return self._authorizer.principal(Credentials(authorization, call.certificate_names, call.peer))

    def noted(
        self, principal: Principal, call: Caller, method: str, name: str | None, request: Any
    ) -> AbstractAsyncContextManager[None]:
        """Write an admin verb to the audit log before the body does it, and once more if the body fails;
        ``Unavailable``, and the body is not run, if the first line cannot be written.
        """
        need = verbs.need(method, request)
        if not need.audited:
            return nullcontext()
        details = {field: _shown(request, field) for field in _DETAILS if hasattr(request, field)}
        act = AuditLine(act=method, kind=need.kind, name=name or "", details=details)
        return self._audit.noted(principal, call.peer, act)

    def check_still(self, principal: Principal) -> None:
        """Raise ``NotAuthenticated`` if the caller of a long stream is none any more."""
        if not self._authorizer.is_valid(principal):
            message = "the token was revoked, or has expired"
            raise NotAuthenticated(message)

    def visible(self, call: Caller, kind: Kind, names: list[str]) -> list[str]:
        """Return the names that the caller may look at."""
        return authorize.visible(self._principal(call), kind, names)


def _shown(request: Any, field: str) -> Any:
    value = getattr(request, field)
    return value if isinstance(value, str | int | float | bool) else list(value)
