"""Signatures of webhooks: real forms of the providers, and what a forger would try."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from oncelog.errors import NotAuthenticated
from oncelog.server.security import signatures
from oncelog.server.security.signatures import Scheme
from oncelog.testing.clock import SimulatedClock

BODY = b'{"id": "evt_1", "type": "charge.succeeded"}'
SECRET = b"whsec_test"


def _now_s(clock: SimulatedClock) -> int:
    return clock.now_us() // 1_000_000


def _check(
    scheme: Scheme,
    headers: dict[str, str],
    clock: SimulatedClock,
    body: bytes = BODY,
    secrets: tuple[bytes, ...] = (SECRET,),
) -> None:
    signatures.check(scheme, secrets, headers, body, clock=clock, age_s=300)


def test_githubs_own_example_is_accepted() -> None:
    """The values are those that GitHub's documentation gives for testing an implementation."""
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    secret = (b"It's a Secret to Everybody",)
    _check("github", {"x-hub-signature-256": header}, SimulatedClock(), b"Hello, World!", secret)
    with pytest.raises(NotAuthenticated):
        _check("github", {"x-hub-signature-256": header}, SimulatedClock(), b"Hello, World?", secret)


@pytest.mark.parametrize(("scheme", "name"), [("stripe", "stripe-signature"), ("hmac-sha256", "oncelog-signature")])
def test_a_timed_signature_holds_for_its_body_and_its_time(scheme: Scheme, name: str) -> None:
    """A body that was changed, another secret, and a recording that is played again later are refused."""
    clock = SimulatedClock()
    header = signatures.sign(SECRET, BODY, _now_s(clock))
    _check(scheme, {name: header}, clock)
    _check(scheme, {name: header}, clock, secrets=(b"old", SECRET))
    _check(scheme, {name: f"{header},v1=00,v0=ignored"}, clock)
    for headers, body, secrets in (
        ({name: header}, BODY + b" ", (SECRET,)),
        ({name: header}, BODY, (b"other",)),
        ({}, BODY, (SECRET,)),
        ({name: header.partition(",")[2]}, BODY, (SECRET,)),
        ({name: header.replace("v1", "v0")}, BODY, (SECRET,)),
        ({name: f"t=1,{header}"}, BODY, (SECRET,)),
        ({name: "t=²,v1=00"}, BODY, (SECRET,)),
        ({name: "t=1" + "0" * 500 + ",v1=00"}, BODY, (SECRET,)),
    ):
        with pytest.raises(NotAuthenticated):
            _check(scheme, headers, clock, body, secrets)
    clock.advance(299)
    _check(scheme, {name: header}, clock)
    clock.advance(2)
    with pytest.raises(NotAuthenticated, match="last 300 s"):
        _check(scheme, {name: header}, clock)


def test_a_signature_is_the_hmac_that_others_compute() -> None:
    """``sign`` is for senders in Python; others write this line."""
    expected = hmac.new(SECRET, b"17." + BODY, hashlib.sha256).hexdigest()
    assert signatures.sign(SECRET, BODY, 17) == f"t=17,v1={expected}"
