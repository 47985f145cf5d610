"""What the README shows of the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import oncelog
from oncelog.cli.terminal.outcome import ExitCode
from tests.cli.shell import TIMEOUT_S, environment

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.split("## From the shell\n")[1].split("\n## ")[0]


def test_commands_run_as_they_stand(tmp_path: Path) -> None:
    """Anybody who copies the commands gets what the comments beside them say."""
    (snippet,) = re.findall(r"^```bash\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    script = snippet.replace("file:///tmp/shop", f"file://{tmp_path}/shop")
    assert script != snippet
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment(None) | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    promised = re.findall(r"# (orders: .*)", snippet)
    assert len(promised) == 2
    assert [said for said in promised if said not in done.stdout] == []
    with oncelog.connect(f"file://{tmp_path}/shop") as db:
        assert [entry.id for entry in db.log("orders").read()] == ["42", "43"]
    assert (tmp_path / "orders.parquet").exists()


def test_exit_codes_are_those_there_are() -> None:
    """A script is written by this line."""
    (line,) = re.findall(r"^Exit codes: (.*)$", SECTION, re.MULTILINE)
    assert [int(code) for code in re.findall(r"\b(\d+) ", line)] == [int(code) for code in ExitCode]
