"""Who calls, and whether the caller may do this: gRPC and HTTP ask the same functions.

No I/O but a ``stat`` of the token file: it runs on the server's loop, at each call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from oncelog import limits
from oncelog.clock import Clock
from oncelog.errors import NotAuthenticated, OncelogError, TooManyCalls
from oncelog.server.security import scopes, tokens
from oncelog.server.security.rates import Rates
from oncelog.server.security.scopes import EVERYTHING, VERBS, Kind, Scope, Verb
from oncelog.server.security.token_object import TokenObject
from oncelog.server.security.tokens import TokenFile

_log = logging.getLogger("oncelog.server.security")
_SUMMED_US = 60_000_000
"""Failed logins of one peer are one line a minute."""


class Credentials(msgspec.Struct, frozen=True):
    """What a call brought: the ``Authorization`` header, the names (SANs) of a verified certificate, the peer."""

    authorization: str | None = None
    sans: tuple[str, ...] = ()
    peer: str = ""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and what this caller may do. ``digest`` is that of the token."""

    name: str
    by: Literal["token", "certificate", "loopback"]
    scopes: tuple[Scope, ...]
    digest: str | None = None
    expires_us: int | None = None


OPEN = Principal(name="anyone", by="loopback", scopes=(Scope(frozenset(VERBS), EVERYTHING),))
"""The caller of a server that asks nobody who they are."""


NOBODY = Principal(name="nobody", by="loopback", scopes=())
"""The caller of what everybody may call."""


class Authorizer:
    """Knows callers by their tokens and certificates. Used on the loop alone."""

    def __init__(
        self,
        clock: Clock,
        tokens: TokenFile | TokenObject | None = None,
        certificates: Mapping[str, Sequence[Scope]] | None = None,
    ) -> None:
        """Take the tokens and the table of certificates; without both, everybody may do everything."""
        self._clock = clock
        self._tokens = tokens
        self._certificates = dict(certificates or {})
        self._rates = Rates(clock, limits.SERVER_CALLS_PER_S, limits.SERVER_CALLS_BURST)
        self._attempts = Rates(clock, limits.SERVER_FAILED_LOGINS_PER_S, limits.SERVER_FAILED_LOGINS_BURST)
        self._failed: dict[str, tuple[int, int]] = {}
        self.failed_logins = 0

    @property
    def is_open(self) -> bool:
        """Whether the server asks nobody who they are."""
        return (self._tokens is None or not self._tokens.required) and not self._certificates

    @property
    def trouble(self) -> str | None:
        """What is wrong with the token file, if the tokens before it still hold."""
        return self._tokens.damaged if self._tokens is not None else None

    def tokens(self) -> list[tokens.Token]:
        """Return the tokens that are known, without their secrets, which are stored nowhere."""
        return self._tokens.all() if self._tokens is not None else []

    def principal(self, credentials: Credentials) -> Principal:
        """Return who calls. ``NotAuthenticated`` for a stranger, ``TooManyCalls`` for one who calls too often."""
        if self.is_open:
            return OPEN
        found = self._by_token(credentials) if credentials.authorization is not None else self._by_name(credentials)
        if isinstance(found, str):
            raise self._refused(credentials.peer, found)
        wait_s = self._rates.take(found.digest or found.name)
        if wait_s:
            message = f"{found.name!r} calls too often: at most {limits.SERVER_CALLS_PER_S} calls a second"
            raise TooManyCalls(message, retry_after_s=wait_s)
        return found

    def is_valid(self, principal: Principal) -> bool:
        """Tell whether a caller of a long stream is still one: the token was not revoked and did not expire."""
        if principal.digest is None:
            return True
        known = self._tokens.find(principal.digest) if self._tokens is not None else None
        return known is not None and not self._is_over(known.token.expires_us)

    def with_digest(self, sha256: str) -> Principal | None:
        """Return the caller whose token has this digest, for sessions that are bound to a token."""
        known = self._tokens.find(sha256) if self._tokens is not None else None
        if known is None or self._is_over(known.token.expires_us):
            return None
        return Principal(
            name=known.token.name, by="token", scopes=known.scopes, digest=sha256, expires_us=known.token.expires_us
        )

    def _by_token(self, credentials: Credentials) -> Principal | str:
        scheme, _, secret = (credentials.authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            return "the Authorization is no 'Bearer TOKEN'"
        return self.with_digest(tokens.digest(secret.strip())) or "the token is unknown, revoked or expired"

    def _by_name(self, credentials: Credentials) -> Principal | str:
        matching = [san for san in credentials.sans if san in self._certificates]
        if not matching:
            return "there is no token, and no certificate that is known: give a token (clients read ONCELOG_TOKEN)"
        if len(matching) > 1:
            return "the certificate has several names that are known: give it one"
        return Principal(name=matching[0], by="certificate", scopes=tuple(self._certificates[matching[0]]))

    def _is_over(self, expires_us: int | None) -> bool:
        return expires_us is not None and expires_us <= self._clock.now_us()

    def _refused(self, peer: str, why: str) -> OncelogError:
        """Count a failed login, and write a line a minute and peer: an attacker does not fill the disk.

        A peer is a host: each connection of it has a port of its own.
        """
        peer = peer.rpartition(":")[0] or peer
        self.failed_logins += 1
        wait_s = self._attempts.take(peer)
        now_us = self._clock.elapsed_us()
        since_us, count = self._failed.get(peer, (now_us - _SUMMED_US, 0))
        if now_us - since_us >= _SUMMED_US:
            _log.warning("failed logins", extra={"peer": peer, "count": count + 1, "reason": why})
            since_us, count = now_us, -1
        if peer in self._failed or len(self._failed) < limits.SERVER_PEERS_MAX:
            self._failed[peer] = (since_us, count + 1)
        else:
            self._failed.clear()
        return TooManyCalls("too many failed logins", retry_after_s=wait_s) if wait_s else NotAuthenticated(why)


def check(principal: Principal, verb: Verb, kind: Kind, name: str = "", *, making: bool = False) -> None:
    """Raise unless this caller may do this: ``NotAllowed``, or ``NotFound`` for a name that no scope covers.

    >>> check(OPEN, "append", "log", "orders")
    """
    refused = scopes.decide(principal.scopes, verb, kind, name, making=making)
    if refused is not None:
        raise refused


def may(principal: Principal, verb: Verb, kind: Kind, name: str, *, making: bool = False) -> bool:
    """Tell whether this caller may do this."""
    return scopes.decide(principal.scopes, verb, kind, name, making=making) is None


def visible(principal: Principal, kind: Kind, there: Sequence[str]) -> list[str]:
    """Return the names that this caller may look at."""
    if scopes.sees_everything(principal.scopes):
        return list(there)
    return [name for name in there if may(principal, "look", kind, name)]
