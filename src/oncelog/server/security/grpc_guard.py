"""The question that gRPC asks for every call, answered by the same function as for HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncelog.server.security import authorize, verbs
from oncelog.server.security.authorize import Authorizer, Credentials

if TYPE_CHECKING:
    from oncelog.server.call import Call


def guard(authorizer: Authorizer) -> Callable[[Call, str, str | None], None]:
    """Return what raises unless a caller may call a method on the log or queue of this name."""

    def check(call: Call, method: str, name: str | None) -> None:
        authorization = None if call.bearer is None else f"Bearer {call.bearer}"
        principal = authorizer.principal(Credentials(authorization, call.certificate_names, call.peer))
        need = verbs.METHODS[method]
        if name is not None and method not in verbs.LISTING:
            authorize.check(principal, need.verb, need.kind, name, making=need.making)
        elif method not in verbs.LISTING:
            authorize.check(principal, need.verb, "server")

    return check
