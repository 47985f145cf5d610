"""The commands of the first pages run as they stand, in a fresh folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import TIMEOUT_S, environment

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = [
    pytest.param(script, id=f"{page}:{number}")
    for page in ("install.md", "start.md", "tutorial-loader.md", "quorum.md")
    for number, script in enumerate(
        re.findall(r"^```bash\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    )
    if "file:///tmp/" in script
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_commands_run_as_they_stand(script: str, tmp_path: Path) -> None:
    """A stranger who copies the commands sees no error, and a second append stores nothing."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("/tmp/", f"{tmp_path}/")],
        cwd=tmp_path,
        env=environment(None) | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("0 stored" in done.stdout) == ("0 stored" in script)


def test_every_first_page_has_commands() -> None:
    """The test above runs the commands of each page."""
    assert len({str(script.id).partition(":")[0] for script in SCRIPTS}) == 4
