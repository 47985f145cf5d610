"""The checker of histories: each promise that is broken is seen, and a true history passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.testing.simulation.history import Attempt, RunHistory, SeenRecord, Violation
from oncelog.types import Ack


def seen(position: int, id: str | None = None, value: bytes = b"v") -> SeenRecord:
    """Return a record of segment 0."""
    return SeenRecord(position, 0, position, f"id-{position}" if id is None else id, value)


def acked(position: int, id: str | None = None, *, began_us: int = 0, ended_us: int = 0) -> Attempt:
    """Return an attempt that was acknowledged."""
    ack = Ack(position, 0, position, None)
    return Attempt("c", f"id-{position}" if id is None else id, b"v", began_us, ended_us, "acked", ack)


def history(*attempts: Attempt) -> RunHistory:
    """Return a history of attempts."""
    made = RunHistory()
    made.attempts += attempts
    return made


def test_a_true_history_passes() -> None:
    """Duplicates with one place, unknown outcomes that were stored and that were not, and a conflict are all true."""
    made = history(
        acked(0),
        acked(0),
        Attempt("c", "id-1", b"v", 0, 0, "unknown"),
        Attempt("c", "id-7", b"v", 0, 0, "unknown"),
        Attempt("c", "id-8", b"v", 0, 0, "not written"),
        Attempt("c", "id-0", b"w", 0, 0, "conflict"),
    )
    made.readers["r"] = [seen(0), seen(1)]
    made.check([seen(0), seen(1)])


WRONG: dict[str, Callable[[], tuple[RunHistory, list[SeenRecord]]]] = {
    "lost": lambda: (history(acked(0)), []),
    "twice": lambda: (history(acked(0)), [seen(0), seen(1, "id-0")]),
    "two places": lambda: (history(acked(0), acked(1, "id-0"), acked(1)), [seen(0), seen(1)]),
    "a gap": lambda: (history(acked(0), acked(2)), [seen(0), seen(2)]),
    "nobody offered": lambda: (history(acked(0)), [seen(0), seen(1)]),
    "other content": lambda: (
        history(acked(0), Attempt("c", "id-0", b"w", 0, 0, "unknown")),
        [seen(0, value=b"w")],
    ),
    "not written": lambda: (history(Attempt("c", "id-0", b"v", 0, 0, "not written")), [seen(0)]),
    "a conflict with nothing": lambda: (history(Attempt("c", "id-0", b"v", 0, 0, "conflict")), []),
    "in front": lambda: (
        history(acked(1, began_us=0, ended_us=5), acked(0, began_us=9, ended_us=10)),
        [seen(0), seen(1)],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_broken_promise_is_seen(what: str) -> None:
    """Each kind of violation has its own sentence."""
    made, log = WRONG[what]()
    with pytest.raises(Violation, match=what):
        made.check(log)


@pytest.mark.parametrize(
    ("records", "said"),
    [([seen(0), seen(2)], "skipped"), ([seen(1), seen(0)], "went back"), ([seen(3)], "not in the log")],
)
def test_a_reader_that_sees_what_is_not_true_is_seen(records: list[SeenRecord], said: str) -> None:
    """A reader that skips, goes back, or sees a record that is not there in the end."""
    made = history(acked(0), acked(1), acked(2))
    made.readers["r"] = records
    with pytest.raises(Violation, match=said):
        made.check([seen(0), seen(1), seen(2)])
