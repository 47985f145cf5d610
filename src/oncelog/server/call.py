"""One call, as the server sees who makes it."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """Who calls: the address, the bearer token and the names in the certificate, as far as there are any.

    A user's text must never show the token: ``repr`` does not.
    """

    peer: str = ""
    bearer: str | None = None
    certificate_names: tuple[str, ...] = ()
    handed_on: bool = False
    """Whether another server of the fleet has handed this call on."""

    def __repr__(self) -> str:
        """Show who calls, without the secret."""
        return f"Call(peer={self.peer!r}, certificate_names={self.certificate_names!r})"
