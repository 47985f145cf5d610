"""The latest answers of a log."""

from __future__ import annotations

from oncelog.server.ring import Answered, AnswerRing, RefusedAppend, RingBudget


def test_the_oldest_answers_leave_first_and_the_count_goes_on() -> None:
    """A ring keeps so many; answers to one id are found, the newest first."""
    ring = AnswerRing(RingBudget(1 << 20), answers_max=3)
    for number in range(5):
        ring.add(Answered(number, f"id-{number % 2}", "peer", "stored", number))
    assert [one.position for one in ring.latest()] == [4, 3, 2]
    assert [one.position for one in ring.latest(id="id-0")] == [4, 2]
    assert ring.count == 5


def test_rings_share_their_bytes() -> None:
    """Rings of many logs stay within one budget; a log's own oldest answers make room."""
    budget = RingBudget(10_000)
    rings = [AnswerRing(budget) for _ in range(5)]
    for number in range(1_000):
        rings[number % 5].add(Answered(number, "x" * 50, "peer", "stored", number))
    assert budget.used_bytes <= 10_000
    for ring in rings:
        ring.clear()
    assert budget.used_bytes == 0


def test_content_that_was_refused_counts_against_the_budget() -> None:
    """Conflicts with large values push older answers out; they do not grow the server."""
    budget = RingBudget(20_000)
    ring = AnswerRing(budget)
    refused = RefusedAppend(b"x" * 2048, 2048, "digest", {"h": b"y" * 100}, {"type": "t"})
    for number in range(100):
        ring.add(Answered(number, "id", "peer", "conflict", 0, refused))
    assert budget.used_bytes <= 20_000
    assert len(ring.latest()) < 10
