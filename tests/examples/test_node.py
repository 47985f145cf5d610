"""The Node example: another language speaks to a real server from wire.proto alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from tests.servers import Serving

_EXAMPLE = Path(__file__).parents[2] / "examples" / "node"


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node and npm")
def test_a_client_in_node_appends_retries_reads_and_follows(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """What the example prints is what a server promises: first positions for retries, in sessions too.

    It is a soak test because npm fetches the packages, as locked, from its registry.
    """
    folder = tmp_path / "node"
    shutil.copytree(_EXAMPLE, folder)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    server = serve()
    with resources.as_file(resources.files("oncelog.wire") / "wire.proto") as proto:
        command = ["node", "client.mjs", server.grpc, str(proto), "orders"]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert steps == [
        {"step": "append", "position": 0, "again": 0, "duplicate": True},
        {"step": "conflict", "code": 6, "kind": "IdConflict"},
        {"step": "session", "resumed": True, "before": [1, 2], "after": [1, 2]},
        {"step": "read", "values": ["paid", "a", "b"]},
        {"step": "tail", "value": "shipped"},
    ]
    assert server.stop() == 0, server.errors()


def test_the_lock_of_the_example_names_no_registry() -> None:
    """The packages are pinned by version and content; where they come from is the business of who installs them."""
    lock = (_EXAMPLE / "package-lock.json").read_text()
    found = json.loads(lock)["packages"]
    assert found["node_modules/@grpc/grpc-js"]["integrity"].startswith("sha512-")
    assert "resolved" not in lock
    assert "://" not in lock.replace("https://opencollective.com", "").replace("https://github.com", "")
