"""The page of a report: whatever text gets into it, nothing runs and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from oncelog.spark.report import page
from oncelog.spark.report.page import Figure, Section

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_the_policy_allows_the_pages_own_style_and_nothing_else() -> None:
    """The policy names the style by its hash: an edit of the style that forgets the policy would show no style."""
    text = page.page(HOSTILE, HOSTILE, [Figure(HOSTILE, 1)], [Section(HOSTILE, HOSTILE, "")], HOSTILE)
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    assert found[1].startswith("default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() in found[1]
    assert text.index("Content-Security-Policy") < text.index("<title>"), "it holds for what comes after it"
    assert "<script" not in text
    assert "<img" not in text
    assert ' style="' not in text, "the policy would take it away"


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The name under which a report is written first cannot be guessed, and a link there is not followed."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".report.html.new").symlink_to(precious)
    page.write(tmp_path / "report.html", "<p>done</p>")
    assert precious.read_text() == "precious"
    assert (tmp_path / "report.html").read_text() == "<p>done</p>"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".report.html.new", "precious", "report.html"]
