"""What a page of another site can make a browser send."""

from __future__ import annotations

import pytest

from oncelog.server.http import guard
from oncelog.server.http.problem import HttpRefusal

OWN = {"host": "127.0.0.1:7677"}


def _check(headers: dict[str, str], *, ambient: bool = True, loopback: bool = True) -> None:
    guard.check(
        OWN | headers, scheme="http", origins=frozenset({"https://shop.example"}), ambient=ambient, loopback=loopback
    )


@pytest.mark.parametrize("headers", [
    {}, {"host": "localhost:7677"}, {"host": "[::1]:7677"}, {"origin": "http://127.0.0.1:7677"},
    {"origin": "https://shop.example"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"},
])  # fmt: skip
def test_own_requests_pass(headers: dict[str, str]) -> None:
    """curl, the console, and pages that are listed."""
    _check(headers)


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:8000"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"host": "evil.example:7677"}, {"host": ""},
    {"host": "[::1"}, {"origin": "https://127.0.0.1:7677"},
])  # fmt: skip
def test_foreign_requests_are_refused(headers: dict[str, str]) -> None:
    """Another page, another port's page, and a foreign name that points here (DNS rebinding)."""
    with pytest.raises(HttpRefusal) as refused:
        _check(headers)
    assert refused.value.status == 403


def test_a_token_is_no_ambient_right() -> None:
    """A foreign page has no token: a request with one comes from who was given it."""
    _check({"origin": "https://other.example", "host": "shop.example"}, ambient=False)


def test_only_listed_pages_may_read_the_answer() -> None:
    """Never all of them, never with credentials."""
    origins = frozenset({"https://shop.example"})
    allowed = guard.cors({"origin": "https://shop.example"}, origins)
    assert allowed["access-control-allow-origin"] == "https://shop.example"
    assert "access-control-allow-credentials" not in allowed
    assert guard.cors({"origin": "https://evil.example"}, origins) == {}
    assert guard.preflight({"origin": "https://evil.example", "access-control-request-method": "POST"}, origins) is None
