"""The operators' tutorial runs as it stands, from the first token to the copy; its alerts name real metrics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.shell import environment
from tests.server.http.test_console import quiet_port

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorial-operator.md").read_text()


def test_commands_run_as_they_stand(tmp_path: Path) -> None:
    """Who copies the commands has a server, one record for two attempts, and a copy that remembers its id."""
    blocks = [
        block for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "/tmp/" in block
    ]
    assert len(blocks) == 3
    grpc = quiet_port()
    http = quiet_port(grpc + 1)
    script = "\n".join(blocks).replace("/tmp/", f"{tmp_path}/").replace("7676", str(grpc)).replace("7677", str(http))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        cwd=tmp_path,
        env=environment(None) | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "2 stored" in done.stdout
    assert "0 stored, 2 duplicates" in done.stdout
    assert (tmp_path / "first-server" / "backup").is_dir()


def test_alerts_name_metrics_that_are_documented() -> None:
    """An alert on a metric that nobody exports never fires; the page of metrics is held against the server's own."""
    rules = re.findall(r"^ +expr: (.*)$", PAGE, re.MULTILINE)
    named = {name.removesuffix("_bucket") for rule in rules for name in re.findall(r"oncelog_\w+", rule)}
    documented = set(re.findall(r"oncelog_\w+", (DOCS / "monitoring.md").read_text()))
    assert len(named) >= 5
    assert named <= documented
