"""A test that hangs fails alone, and the run goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import threading

def test_hangs():
    threading.Event().wait()

def test_passes():
    pass
"""


def test_a_test_that_hangs_fails_alone(tmp_path: Path) -> None:
    """The next test of the same worker passes, and the hanging test shows where its threads stand."""
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(TESTS)
    arguments = ["-n1", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *arguments, str(tmp_path)]
    limit = {**os.environ, "ONCELOG_TEST_LIMIT_S": "3"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=limit)
    assert "1 failed, 1 passed" in done.stdout
    assert "out of its time" in done.stdout
    assert "most recent call first" in done.stdout
