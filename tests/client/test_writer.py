"""A writer over the wire: one answer for a call of several frames."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.writer import _Call
from oncelog.concurrency.pending import Pending, begun
from oncelog.errors import InvalidArgument, NotAllowed, OncelogError, Unavailable, WriterFenced

NOT_WRITTEN = Unavailable("draining")
UNKNOWN = Unavailable("cut", outcome="unknown")
REFUSED = InvalidArgument("bad")


def _settled(answer: object) -> Pending[Any]:
    pending: Pending[Any] = begun()
    if isinstance(answer, OncelogError):
        pending.set_exception(answer)
    else:
        pending.set_result(answer)
    return pending


def _error(*answers: object) -> OncelogError:
    sent: Any = [(None, _settled(one)) for one in answers]
    error = _Call[object](None, sent, None, list).pending().exception(0)  # type: ignore[arg-type]
    assert isinstance(error, OncelogError)
    return error


@pytest.mark.parametrize("answers", [(1, NOT_WRITTEN), (NOT_WRITTEN, 1), (NOT_WRITTEN, UNKNOWN), (1, NotAllowed("no"))])
def test_not_written_is_said_only_if_it_is_true_of_every_frame(answers: tuple[object, ...]) -> None:
    """A caller who believes it sends all records again."""
    error = _error(*answers)
    assert isinstance(error, Unavailable)
    assert error.outcome == "unknown"


def test_the_kind_of_an_error_stays() -> None:
    """A writer that was fenced stops; a call that is wrong is mended; what was not written at all is sent again."""
    fenced = _error(1, WriterFenced("taken"))
    assert isinstance(fenced, WriterFenced)
    assert fenced.outcome == "unknown"
    assert _error(1, REFUSED) is REFUSED
    assert _error(NOT_WRITTEN, NOT_WRITTEN) is NOT_WRITTEN
