"""The decision records are numbered, complete, and listed."""

from __future__ import annotations

from pathlib import Path

import pytest

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))


def test_the_index_lists_every_record_in_order() -> None:
    """A record that the index does not name is found by nobody."""
    listed = [
        line.rsplit("(", 1)[1].rstrip(")")
        for line in (DECISIONS / "README.md").read_text().splitlines()
        if "](" in line
    ]
    assert listed == [record.name for record in RECORDS]
    assert [int(name[:4]) for name in listed] == list(range(1, len(listed) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_question_evidence_decision_and_cost(record: Path) -> None:
    """A decision without its evidence, or without its cost, is undone by accident."""
    text = record.read_text()
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert all(f"\n**{part}.** " in text for part in ("Question", "Seen", "Decision", "Cost"))
