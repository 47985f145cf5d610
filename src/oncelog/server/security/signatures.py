"""Signatures of webhooks: who holds the provider's secret may send. Over the raw body, compared in constant time.

- ``stripe``: header ``Stripe-Signature: t=<seconds>,v1=<hex>``; HMAC-SHA256 over ``<t>.<body>``.
- ``github``: header ``X-Hub-Signature-256: sha256=<hex>``; HMAC-SHA256 over the body. GitHub signs no time.
- ``hmac-sha256``: header ``Oncelog-Signature: t=<seconds>,v1=<hex>``, as Stripe's; for senders of one's own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal

from oncelog.clock import Clock
from oncelog.errors import NotAuthenticated

Scheme = Literal["stripe", "github", "hmac-sha256"]
_TIMED = {"stripe": "stripe-signature", "hmac-sha256": "oncelog-signature"}
_GITHUB = "x-hub-signature-256"
_VALUES_MAX = 16
"""A header with more parts than this is no signature of a provider."""


def check(
    scheme: Scheme, secrets: tuple[bytes, ...], headers: Mapping[str, str], body: bytes, *, clock: Clock, age_s: float
) -> None:
    """Raise ``NotAuthenticated`` unless one of the secrets signed this body, not longer ago than ``age_s``."""
    if scheme == "github":
        given, signed = [headers.get(_GITHUB, "").removeprefix("sha256=")], body
    else:
        given, signed = _timed(headers.get(_TIMED[scheme], ""), body, clock, age_s)
    expected = [hmac.new(secret, signed, hashlib.sha256).hexdigest() for secret in secrets]
    matches = [hmac.compare_digest(one.encode(), wanted.encode()) for one in given for wanted in expected]
    if not any(matches):
        message = "the signature does not fit the body: check the secret, and that no proxy changes the body"
        raise NotAuthenticated(message)


def _timed(header: str, body: bytes, clock: Clock, age_s: float) -> tuple[list[str], bytes]:
    """Return the signatures of a header and what they sign; refuse one that is too old, or from the future."""
    pairs = [part.strip().partition("=") for part in header.split(",")[:_VALUES_MAX]]
    times = [value for name, _, value in pairs if name == "t"]
    if len(times) != 1 or not times[0].isascii() or not times[0].isdecimal() or len(times[0]) > _VALUES_MAX:
        message = "the signature's header is missing, or has no time"
        raise NotAuthenticated(message)
    if abs(clock.now_us() - int(times[0]) * 1_000_000) > age_s * 1e6:
        message = f"the signature is not of the last {age_s:g} s: check the clock, or send the event again"
        raise NotAuthenticated(message)
    return [value for name, _, value in pairs if name == "v1"], times[0].encode() + b"." + body


def sign(secret: bytes, body: bytes, now_s: int) -> str:
    """Return the value of ``Oncelog-Signature`` (or ``Stripe-Signature``) for a body.

    >>> sign(b"secret", b"{}", 1_700_000_000)[:16]
    't=1700000000,v1='
    """
    made = hmac.new(secret, f"{now_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={now_s},v1={made}"
