"""The list of guards fits the sources: a guard that has moved would be taken out of nothing."""

from __future__ import annotations

import pytest

from tests.guards import GUARDS, ROOT, Guard


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.promise)
def test_every_guard_is_there_and_its_test_too(guard: Guard) -> None:
    """The text stands in its module, and the test in its file."""
    assert guard.text in (ROOT / "src" / "oncelog" / guard.module).read_text()
    file, *names = guard.test.split("::")
    name = names[-1].partition("[")[0]
    places = [ROOT / file, *(ROOT / "src" / "oncelog" / "testing").rglob("*.py")]
    assert any(f"def {name}(" in place.read_text() for place in places)
