"""The home of Spark in the cache: code is found there, so nobody else may have made it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncelog.spark.session import spark_home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for caches, which is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "oncelog"


def test_it_is_made_once_for_its_owner(cache: Path) -> None:
    """It is the same the second time, and in a folder that nobody else writes."""
    home = spark_home.made()
    assert home.parent == cache
    assert spark_home.made() == home
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_cache_that_others_can_write_is_not_used(cache: Path, mode: int) -> None:
    """Spark starts without it, a little later: it only saves time."""
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(PermissionError, match="others may write there"):
        spark_home.made()
    spark_home.use()
    assert "SPARK_HOME" not in os.environ


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_somebody_else_is_not_used(cache: Path) -> None:
    """What is in it would be run."""
    home = spark_home.made()
    os.chown(home, 65_534, -1)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        spark_home.made()
