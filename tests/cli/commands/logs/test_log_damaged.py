"""One log that is damaged does not hide the others."""

from __future__ import annotations

from pathlib import Path

from oncelog import Database
from tests.cli.conftest import Call


def test_list_shows_the_others(call: Call, db: Database, tmp_path: Path) -> None:
    """The list has every log that can be read, and says which cannot, and why."""
    for name in ("bad", "good", "ä" * 120):
        with db.log(name, create=True).writer() as writer:
            writer.append(b"v")
    for body in (tmp_path / "db" / "logs" / "bad" / "bodies").iterdir():
        body.chmod(0o600)
        body.write_bytes(b"nothing that was ever written")
    assert db.logs() == ["bad", "good", "ä" * 120]
    listed = call("log", "list", "--json")
    assert [line["name"] for line in listed.lines] == ["good", "ä" * 120]
    assert listed.code == 4
    assert b"bad" in listed.err
