"""What the pages of the server say: every curl runs as it stands, every route and every metric is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from oncelog.server.http.routes import ROUTES
from tests.servers import Serving

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LIVE_S = 3


def _commands() -> list[tuple[str, str, str]]:
    """Return each command of the page with the status and the text that the comment below it promises."""
    lines = [line for block in BLOCKS for line in block.splitlines()]
    found = []
    for command, comment in zip(lines[::2], lines[1::2], strict=True):
        match = re.fullmatch(r"# (\d{3})(?: (.*))?", comment)
        assert match is not None, (command, comment)
        found.append((command, match[1], match[2] or ""))
    return found


def test_every_command_answers_as_the_page_says(tmp_path: Path) -> None:
    """Anybody who pastes them, one after the other, sees what the comments say."""
    server = Serving(f"file://{tmp_path}/shop")
    try:
        for command, status, text in _commands():
            assert "http://127.0.0.1:7677" in command
            limit = f"--max-time {LIVE_S}" if " -N " in command else ""
            script = command.replace("127.0.0.1:7677", server.http) + f" -s {limit} -w '\\n%{{http_code}}'"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
            body, _, code = done.stdout.rpartition("\n")
            assert (code, text in body) == (status, True), (command, code, body)
    finally:
        server.end()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_on_the_page(route: object) -> None:
    """A route that nobody can find is none."""
    found = next(one for one in ROUTES if one is route)
    assert f"`{found.method} {found.template.text}`" in PAGE
