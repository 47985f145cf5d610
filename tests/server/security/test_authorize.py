"""Who calls: tokens, certificates, rates, failed logins."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from oncelog import limits
from oncelog.errors import NotAllowed, NotAuthenticated, NotFound, TooManyCalls
from oncelog.server.security import authorize, scopes, tokens
from oncelog.server.security.authorize import Authorizer, Credentials
from oncelog.server.security.tokens import TokenFile
from oncelog.testing.clock import SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    """Return a clock that the test moves."""
    return SimulatedClock()


def _bearer(secret: str) -> Credentials:
    return Credentials(f"Bearer {secret}", peer="10.0.0.1")


def test_a_token_is_known_until_it_expires_or_is_revoked(tmp_path: Path, clock: SimulatedClock) -> None:
    """Expiry is looked at in each call, and for streams that are open, too."""
    path = tmp_path / "tokens"
    secret = tokens.create(path, "importer", ["append:orders"], clock, expires_s=60)
    other = tokens.create(path, "other", ["append:orders"], clock)
    known = Authorizer(clock, TokenFile(path))
    principal = known.principal(_bearer(secret))
    assert principal.name == "importer"
    authorize.check(principal, "append", "log", "orders")
    with pytest.raises(NotAllowed):
        authorize.check(principal, "admin", "log", "orders")
    with pytest.raises(NotFound):
        authorize.check(principal, "append", "log", "payments")
    assert known.is_valid(principal)
    clock.advance(61)
    assert not known.is_valid(principal)
    with pytest.raises(NotAuthenticated):
        known.principal(_bearer(secret))
    second = known.principal(_bearer(other))
    tokens.revoke(path, "other")
    assert not known.is_valid(second)
    with pytest.raises(NotAuthenticated):
        known.principal(_bearer(other))


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic dXNlcg==", "Bearer once_x", "Bearer \ud800"])
def test_a_stranger_is_refused(tmp_path: Path, clock: SimulatedClock, header: str | None) -> None:
    """No header, or one that is no token, is nobody."""
    path = tmp_path / "tokens"
    tokens.create(path, "importer", ["append:orders"], clock)
    with pytest.raises(NotAuthenticated):
        Authorizer(clock, TokenFile(path)).principal(Credentials(header))


def test_a_certificate_is_known_by_one_exact_name(clock: SimulatedClock) -> None:
    """Two names that both match could mean two different rights: refused."""
    table = {"a.example": [scopes.parse("read:a")], "b.example": [scopes.parse("read:b")]}
    known = Authorizer(clock, certificates=table)
    assert known.principal(Credentials(sans=("x.example", "a.example"))).name == "a.example"
    for sans in ((), ("sub.a.example",), ("A.example",), ("a.example", "b.example")):
        with pytest.raises(NotAuthenticated):
            known.principal(Credentials(sans=sans))


def test_a_wrong_token_is_not_saved_by_a_certificate(tmp_path: Path, clock: SimulatedClock) -> None:
    """Who presents a revoked token is refused, whatever else the connection has."""
    path = tmp_path / "tokens"
    tokens.create(path, "importer", ["append:orders"], clock)
    known = Authorizer(clock, TokenFile(path), {"a.example": [scopes.parse("read:a")]})
    with pytest.raises(NotAuthenticated):
        known.principal(Credentials("Bearer once_wrong", ("a.example",)))


def test_one_token_cannot_take_all_calls(tmp_path: Path, clock: SimulatedClock) -> None:
    """Over its rate a token is told when to come again; the others are not touched."""
    path = tmp_path / "tokens"
    first = tokens.create(path, "first", ["append:orders"], clock)
    second = tokens.create(path, "second", ["append:orders"], clock)
    known = Authorizer(clock, TokenFile(path))
    for _ in range(limits.SERVER_CALLS_BURST):
        known.principal(_bearer(first))
    with pytest.raises(TooManyCalls) as refused:
        known.principal(_bearer(first))
    assert refused.value.retry_after_s > 0
    known.principal(_bearer(second))
    clock.advance(1)
    known.principal(_bearer(first))


def test_guessing_is_slow_and_one_line_a_minute(
    tmp_path: Path, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed logins are counted, summed into a line a minute, and refused faster than they are looked at."""
    path = tmp_path / "tokens"
    tokens.create(path, "importer", ["append:orders"], clock)
    known = Authorizer(clock, TokenFile(path))
    with caplog.at_level(logging.WARNING):
        for _ in range(limits.SERVER_FAILED_LOGINS_BURST):
            with pytest.raises(NotAuthenticated):
                known.principal(_bearer("once_guess"))
        with pytest.raises(TooManyCalls):
            known.principal(_bearer("once_guess"))
        assert len(caplog.records) == 1
        clock.advance(61)
        with pytest.raises(NotAuthenticated):
            known.principal(_bearer("once_guess"))
    assert [record.__dict__["count"] for record in caplog.records] == [1, limits.SERVER_FAILED_LOGINS_BURST + 1]
    assert known.failed_logins == limits.SERVER_FAILED_LOGINS_BURST + 2
    assert "once_guess" not in caplog.text


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "ipv4:10.0.0.1", "ipv6:%5B::1%5D"])
def test_a_new_connection_is_no_new_peer(
    tmp_path: Path, clock: SimulatedClock, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    """Each has a port of its own: who guesses by many connections is as slow, and fills the server's log no faster."""
    path = tmp_path / "tokens"
    tokens.create(path, "importer", ["append:orders"], clock)
    known = Authorizer(clock, TokenFile(path))
    refused = []
    with caplog.at_level(logging.WARNING):
        for port in range(50_000, 50_000 + 2 * limits.SERVER_FAILED_LOGINS_BURST):
            with pytest.raises((NotAuthenticated, TooManyCalls)) as caught:
                known.principal(Credentials("Bearer once_guess", peer=f"{host}:{port}"))
            refused.append(caught.type)
    assert refused.count(NotAuthenticated) == limits.SERVER_FAILED_LOGINS_BURST
    assert [record.__dict__["peer"] for record in caplog.records] == [host]


def test_without_tokens_the_server_is_open(clock: SimulatedClock) -> None:
    """On loopback without a setup everything works."""
    principal = Authorizer(clock).principal(Credentials())
    for verb in scopes.VERBS:
        authorize.check(principal, verb, "log", "orders")
    with pytest.raises(NotAllowed):
        authorize.check(principal, "append", "log", "_audit")
    assert authorize.visible(principal, "log", ["a", "queue/a/0"]) == ["a", "queue/a/0"]
