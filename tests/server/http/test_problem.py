"""Errors as problems: what each proves, and what a client never sees."""

from __future__ import annotations

import json

import pytest

from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    IdConflict,
    InvalidArgument,
    LeaseLost,
    LogBusy,
    NotAuthenticated,
    NotFound,
    OncelogError,
    PartialOverlap,
    TooManyCalls,
    Unavailable,
    Unsupported,
    WriterFenced,
    WrongExpectedVersion,
)
from oncelog.log.producer_sessions import ProducerTaken
from oncelog.server.http import problem
from oncelog.server.http.problem import HttpRefusal
from oncelog.wire.failures import LogMoved

CASES: list[tuple[OncelogError, int, str | None]] = [
    (InvalidArgument("m"), 400, "not written"),
    (IdConflict("m", position=3), 422, "not written"),
    (PartialOverlap("m", known=["a"], new=["b"]), 422, "not written"),
    (NotAuthenticated("m"), 401, "not written"),
    (NotFound("m"), 404, "not written"),
    (NotFound("m", first=7), 410, "not written"),
    (WrongExpectedVersion("m", expected=1, actual=2), 412, "not written"),
    (LeaseLost("m"), 409, None),
    (HttpRefusal(413, "m"), 413, "not written"),
    (TooManyCalls("m", retry_after_s=3), 429, "not written"),
    (CorruptionError("m"), 500, None),
    (Unsupported("m"), 501, "not written"),
    (Unavailable("m"), 503, "not written"),
    (LogBusy("m", pid=9), 503, "not written"),
    (WriterFenced("m"), 503, "not written"),
    (Unavailable("m", outcome="unknown"), 504, "unknown"),
    (WriterFenced("m", outcome="unknown"), 504, "unknown"),
    (AppendErrors("m", results=[]), 207, None),
]


@pytest.mark.parametrize(("error", "status", "outcome"), CASES, ids=str)
def test_every_error_has_its_status_and_proves_what_it_proves(
    error: OncelogError, status: int, outcome: str | None
) -> None:
    """Only what is known not to be written says so."""
    response = problem.response(error)
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["status"], body.get("outcome")) == (status, status, outcome)
    assert response.media_type == "application/problem+json"
    assert body["detail"] == "m"


def test_a_problem_has_the_fields_of_its_error() -> None:
    """A program decides by them."""
    assert problem.of(IdConflict("m", position=3))["position"] == 3
    overlap = problem.of(PartialOverlap("m", known=["a"], new=["b"]))
    assert (overlap["known"], overlap["new"]) == (["a"], ["b"])
    wrong = problem.of(WrongExpectedVersion("m", expected="no stream", actual=2))
    assert (wrong["expected"], wrong["actual"]) == ("no stream", 2)
    assert problem.response(Unavailable("m", retry_after_s=2.6)).headers["retry-after"] == "3"
    assert "www-authenticate" in problem.response(NotAuthenticated("m")).headers


def test_what_may_be_sent_again_is_said() -> None:
    """Without an id a second attempt may be a second record."""
    unknown = Unavailable("m", outcome="unknown")
    for retry in ("same id", "unsafe"):
        assert json.loads(bytes(problem.response(unknown, retry=retry).body))["retry"] == retry


def test_a_question_has_no_outcome() -> None:
    """A GET writes nothing, and says nothing about writing."""
    assert "outcome" not in json.loads(bytes(problem.response(NotFound("m"), writes=False).body))


@pytest.mark.parametrize("writes", [True, False])
def test_of_a_bug_a_client_sees_nothing_but_that_there_is_one(*, writes: bool) -> None:
    """Neither text nor trace; and whether something was written is not known."""
    response = problem.unexpected(ValueError("secret-detail"), writes=writes)
    assert b"secret-detail" not in bytes(response.body)
    body = json.loads(bytes(response.body))
    assert (body["status"], body.get("outcome")) == ((504, "unknown") if writes else (500, None))


@pytest.mark.parametrize("error", [LogMoved("m"), ProducerTaken("m")])
def test_errors_of_a_room_are_named_as_clients_know_them(error: OncelogError) -> None:
    """A client that asks for WriterFenced finds it, whichever kind of it the server tells apart inside."""
    assert problem.of(error)["type"] == "urn:oncelog:error:WriterFenced"
