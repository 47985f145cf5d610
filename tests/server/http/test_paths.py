"""Paths are split before they are decoded."""

from __future__ import annotations

import pytest

from oncelog.errors import InvalidArgument
from oncelog.server.http import paths, routes


@pytest.mark.parametrize(("path", "route", "names"), [
    (b"/v1/logs/shop%2Forders/records", "/v1/logs/{log}/records", {"log": "shop/orders"}),
    (b"/v1/logs/a%2Frecords%2F1", "/v1/logs/{log}", {"log": "a/records/1"}),
    (b"/v1/logs/a/records/1", "/v1/logs/{log}/records/{position}", {"log": "a", "position": "1"}),
    (b"/v1/logs/%C3%A4", "/v1/logs/{log}", {"log": "ä"}),
    (b"/v1/streams/l/subscribe", "/v1/streams/{log}/{stream}", {"log": "l", "stream": "subscribe"}),
    (b"/v1/streams/l/s/subscribe", "/v1/streams/{log}/{stream}/subscribe", {"log": "l", "stream": "s"}),
    (b"/v1/logs/%2F/records", "/v1/logs/{log}/records", {"log": "/"}),
])  # fmt: skip
def test_a_name_is_one_part_of_the_path(path: bytes, route: str, names: dict[str, str]) -> None:
    """Decoded first, log ``a/records/1`` would be record 1 of log ``a``."""
    found = routes.find("GET", paths.split(path))
    if isinstance(found, list):
        assert found, path
        found = routes.find(found[0], paths.split(path))
    assert not isinstance(found, list)
    assert found[0].template.text == route
    assert paths.names(found[1], {}) == names


@pytest.mark.parametrize(
    "path", [b"/", b"", b"/v1/logs/", b"/v1/logs//records", b"/v1/logs/a/records/", b"/v2/logs", b"/v1/logs/\xff"]
)
def test_what_is_no_route_is_none(path: bytes) -> None:
    """An empty name is none, and so is a path that is no ASCII."""
    assert routes.find("GET", paths.split(path)) == []


def test_a_name_may_come_in_the_query() -> None:
    """For proxies that decode ``%2F``. Two different names are an error, not a choice."""
    assert paths.names({"log": "-"}, {"log": "shop/orders"}) == {"log": "shop/orders"}
    assert paths.names({"log": "shop%2Forders"}, {"log": "shop/orders"}) == {"log": "shop/orders"}
    with pytest.raises(InvalidArgument):
        paths.names({"log": "other"}, {"log": "shop/orders"})
    with pytest.raises(InvalidArgument):
        paths.names({"log": "%FF"}, {})


def test_a_path_that_is_spelled_is_found_again() -> None:
    """The ``Location`` of a record leads to the record."""
    location = paths.spelled("v1", "logs", "a/b %2F ä", "records", 7)
    found = routes.find("GET", paths.split(location.encode()))
    assert not isinstance(found, list)
    assert paths.names(found[1], {}) == {"log": "a/b %2F ä", "position": "7"}
