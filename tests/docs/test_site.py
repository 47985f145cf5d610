"""The documentation builds as a site, without a broken link or a page that nothing leads to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import oncelog

ROOT = Path(__file__).parents[2]


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """A broken link, a missing page, or a page that is not in the navigation is an error; the reference names all."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = "".join(page.read_text() for page in (tmp_path / "reference").glob("*.html"))
    assert [name for name in oncelog.__all__ if name not in reference] == []
    assert "LogSettings" in (tmp_path / "reference" / "settings.html").read_text()
