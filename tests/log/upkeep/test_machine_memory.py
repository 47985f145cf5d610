"""How much memory a process may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.log.upkeep import machine_memory
from oncelog.log.upkeep.machine_memory import memory_bytes


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    memory_bytes.cache_clear()
    yield
    memory_bytes.cache_clear()


@pytest.mark.parametrize(("told", "expected"), [("max\n", None), ("1048576\n", 1 << 20), ("", None), (None, None)])
def test_the_limit_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, expected: int | None
) -> None:
    """A container has less than its machine."""
    path = tmp_path / "memory.max"
    monkeypatch.setattr(machine_memory, "_LIMITS", (path,))
    whole = memory_bytes()
    assert whole > 1 << 28
    memory_bytes.cache_clear()
    if told is not None:
        path.write_text(told)
    assert memory_bytes() == (expected or whole)


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known, and nothing is raised."""

    def unknown(_: str) -> int:
        raise ValueError

    monkeypatch.setattr("os.sysconf", unknown)
    assert memory_bytes() == 0
