"""Tests of one group share what is started once: a session of Spark, a fleet of servers."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_one(number):
    Path(__file__).with_name(f"by-{os.environ['PYTEST_XDIST_WORKER']}").touch()
"""


def test_a_group_runs_in_one_worker(tmp_path: Path) -> None:
    """A pytest that hides groups from xdist fails no test: it starts all of it in every worker, which takes minutes."""
    (tmp_path / "test_one.py").write_text(TESTS)
    arguments = ["-n2", "--dist", "loadgroup", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *arguments, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "8 passed" in done.stdout
    assert len(list(tmp_path.glob("by-*"))) == 1
