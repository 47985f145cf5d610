"""Commands begin quickly: what only draws, converts or computes is not loaded for a list of logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from tests.cli.shell import environment

_RUN = """
import sys
from oncelog.cli import run
code = run(sys.argv[1:])
print(sorted({"pydantic", "pyarrow.compute", "rich.markdown", "asyncio"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("command", [["log", "list"], ["log", "list", "--json"], ["log", "info", "orders"]])
def test_usual_commands_load_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    """To load pydantic takes longer than to list logs; Typer does so for each value unless it is spared."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log("orders", create=True)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *command, "--url", tmp_path.as_uri()],
        env=environment(None),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"
    assert "orders" in done.stdout


def test_a_first_append_computes_nothing_in_columns(tmp_path: Path) -> None:
    """A fresh process that appends one record does not wait for ``pyarrow.compute``."""
    program = f"""
import sys, oncelog
with oncelog.connect({str(tmp_path)!r}) as db, db.log("a", create=True).writer() as w:
    w.append(b"x", id="1")
assert "pyarrow.compute" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
