"""Sessions of the console: signed, bound to a token, over in time."""

from __future__ import annotations

import pytest

from oncelog.errors import NotAllowed
from oncelog.server.security import sessions
from oncelog.server.security.sessions import BrowserSessions
from oncelog.testing.clock import SimulatedClock


def test_a_session_is_read_by_any_server_of_the_fleet_until_it_is_over() -> None:
    """The key is shared, the list of sessions is nowhere."""
    clock = SimulatedClock()
    cookie = BrowserSessions(clock, b"k" * 32).begin("d" * 64)
    found = BrowserSessions(clock, b"k" * 32).read(cookie)
    assert found is not None
    assert found.digest == "d" * 64
    assert BrowserSessions(clock, b"x" * 32).read(cookie) is None
    clock.advance(sessions.LIFETIME_S + 1)
    assert BrowserSessions(clock, b"k" * 32).read(cookie) is None


def test_a_cookie_that_was_changed_is_none() -> None:
    """Nobody writes themselves a longer session, or another token's."""
    mine = BrowserSessions(SimulatedClock(), b"k" * 32)
    cookie = mine.begin("d" * 64)
    id, digest, expires, signature = cookie.split(".")
    for forged in (
        f"{id}.{digest}.{int(expires) + 1}.{signature}",
        f"{id}.{'e' * 64}.{expires}.{signature}",
        f"{id}.{digest}.{expires}.",
        f"{id}.{digest}.{signature}",
        cookie + "ä",
        "",
    ):
        assert mine.read(forged) is None, forged


def test_a_login_has_an_id_of_its_own() -> None:
    """A session id that somebody planted before the login is worth nothing after it."""
    mine = BrowserSessions(SimulatedClock(), b"k" * 32)
    assert mine.begin("d" * 64) != mine.begin("d" * 64)


def test_a_form_needs_the_token_of_its_own_session() -> None:
    """Another site can send a form, but does not know this."""
    mine = BrowserSessions(SimulatedClock(), b"k" * 32)
    first, second = (mine.read(mine.begin("d" * 64)) for _ in range(2))
    assert first is not None
    assert second is not None
    mine.check_csrf(first, mine.csrf(first))
    for given in (None, "", mine.csrf(second), "ä"):
        with pytest.raises(NotAllowed):
            mine.check_csrf(first, given)
