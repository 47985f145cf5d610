"""From a path or a URL to a database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import oncelog


@pytest.mark.parametrize("name", ["shop", "a shop", "50% off", "what?", "number #1", "ä"])
def test_a_path_means_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A relative path, a ``Path`` and the URL of one folder are one database, whatever characters its name has."""
    monkeypatch.chdir(tmp_path)
    with oncelog.connect(Path(name)) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"paid")
    for same in (f"./{name}", name, str(tmp_path / name), (tmp_path / name).as_uri(), Path(name)):
        with oncelog.connect(same) as db:
            assert [entry.value for entry in db.log("orders").read()] == [b"paid"]
    assert (tmp_path / name / "logs").is_dir()


def test_a_path_is_taken_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its folder later goes on with the database that it opened."""
    monkeypatch.chdir(tmp_path)
    with oncelog.connect("shop") as db:
        (tmp_path / "elsewhere").mkdir()
        os.chdir(tmp_path / "elsewhere")
        db.log("orders", create=True)
        assert db.url == (tmp_path / "shop").as_uri()
    assert not (tmp_path / "elsewhere" / "shop").exists()
