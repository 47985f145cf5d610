"""Header fields and query fields."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from oncelog.errors import InvalidArgument
from oncelog.server.http import fields


@pytest.mark.parametrize(("header", "id"), [
    ('"order-42"', "order-42"), ("order-42", "order-42"), (" order-42 ", "order-42"), ('"a b"', "a b"), ("a b", "a b"),
    (r'"a\"b\\c"', 'a"b\\c'), ('""', ""), ("ä".encode().decode("latin-1"), "ä"),
])  # fmt: skip
def test_a_key_is_quoted_or_bare(header: str, id: str) -> None:
    """RFC 8941 says quoted, most clients send it bare: both are one id."""
    assert fields.key(header) == id


@pytest.mark.parametrize(
    "header", ["", " ", '"a', '"a" ', "a\tb", '"a\tb"', '"a"b"', r'"a\b"', "\xff", '"ä"', "a\x00b"]
)
def test_what_is_no_key_is_refused(header: str) -> None:
    """A key that was cut or mangled must not become another id."""
    if header == '"a" ':
        assert fields.key(header) == "a"
        return
    with pytest.raises(InvalidArgument):
        fields.key(header)


def test_two_headers_that_differ_are_refused() -> None:
    """One of them would be ignored in silence."""
    assert fields.record_id({"idempotency-key": '"ä"'.replace("ä", "a"), "oncelog-id": "a"}) == "a"
    assert fields.record_id({"oncelog-id": "%C3%A4%2F"}) == "ä/"
    assert fields.record_id({}) is None
    with pytest.raises(InvalidArgument):
        fields.record_id({"idempotency-key": "a", "oncelog-id": "b"})
    with pytest.raises(InvalidArgument):
        fields.record_id({"oncelog-id": "%FF"})


def test_nothing_of_the_transport_becomes_a_part_of_the_record() -> None:
    """A retry with another user agent, trace or encoding must not conflict with itself."""
    transport = {"user-agent": "x", "content-type": "application/json", "traceparent": "00-1", "accept-encoding": "br"}
    plain = fields.record(b"v", {"idempotency-key": "a"})
    assert fields.record(b"v", {"idempotency-key": '"a"'} | transport) == plain
    named = fields.record(
        b"v",
        {"oncelog-type": "paid", "oncelog-header-source": "%C3%A4", "oncelog-sequence": "7", "oncelog-tenant": "t"},
    )
    assert (named.type, named.headers, named.sequence, named.tenant) == ("paid", {"source": "ä".encode()}, 7, "t")


@pytest.mark.parametrize("given", ["", "-1", "1.5", "٣", "1:", "yesterday", "2026-01-31T12:00", "9" * 30])
def test_what_is_no_place_is_refused(given: str) -> None:
    """A time without a zone would mean another moment on another machine."""
    with pytest.raises(InvalidArgument):
        fields.start(given)


def test_places() -> None:
    """What ``Log.read`` takes, as text."""
    assert fields.start("earliest") == "earliest"
    assert fields.start("12") == 12
    assert fields.start("3:4") == (3, 4)
    assert fields.start("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(("headers", "expected"), [
    ({}, "any"), ({"if-match": '"3"'}, 3), ({"if-match": "*"}, "exists"), ({"if-none-match": "*"}, "no stream"),
])  # fmt: skip
def test_conditions_are_expected_versions(headers: dict[str, str], expected: object) -> None:
    """HTTP's own words for what a stream must be."""
    assert fields.expected_version(headers) == expected


@pytest.mark.parametrize("headers", [
    {"if-match": "3"}, {"if-match": '"x"'}, {"if-match": '"1", "2"'}, {"if-none-match": '"3"'},
    {"if-match": "*", "if-none-match": "*"}, {"if-match": '"-2"'},
])  # fmt: skip
def test_conditions_that_mean_nothing_are_refused(headers: dict[str, str]) -> None:
    """A condition that is passed over would write what must not be written."""
    with pytest.raises(InvalidArgument):
        fields.expected_version(headers)
