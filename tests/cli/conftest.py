"""A database for a shell to work on, and a shell without a process for breadth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import Database
from oncelog.cli import run
from tests.cli.shell import Outcome

Call = Callable[..., Outcome]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a database that is not there yet."""
    return f"file://{tmp_path}/db"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    """Return the same database, to see what the shell did."""
    with oncelog.connect(url) as opened:
        yield opened


@pytest.fixture
def call(url: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return what runs a command line in this process, on the database of the test."""
    monkeypatch.setenv("ONCELOG_URL", url)
    monkeypatch.setenv("NO_COLOR", "1")

    def called(*arguments: str) -> Outcome:
        capfdbinary.readouterr()
        code = run(arguments)
        return Outcome(code, *capfdbinary.readouterr())

    return called
