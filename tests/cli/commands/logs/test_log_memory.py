"""What the shell tells and changes of a log's memory: run again, a file is stored once; find, set, info."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from oncelog import Database, LogSettings, Record, Window
from tests.cli.shell import shell


def orders(path: Path, count: int) -> Path:
    """Write a file of orders."""
    ids = pa.array([f"order-{number}" for number in range(count)])
    pq.write_table(pa.table({"id": ids, "value": pa.array([b"paid"] * count, pa.binary())}), path)
    return path


def test_a_file_of_150_000_rows_appended_twice_is_stored_once(url: str, db: Database, tmp_path: Path) -> None:
    """More rows than any default window had keys: the second run finds all of them there."""
    path = str(orders(tmp_path / "day.parquet", 150_000))
    db.log("orders", create=True)
    first, second = (shell("log", "append", "orders", path, "--json", url=url) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert (first.json["stored"], first.json["duplicates"], first.json["forgotten"]) == (150_000, 0, 0)
    assert (second.json["stored"], second.json["duplicates"]) == (0, 150_000)
    assert shell("log", "info", "orders", "--json", url=url).json["last_position"] == 149_999
    assert shell("log", "verify", "orders", url=url).code == 0


def test_a_bounded_window_says_that_it_forgot(url: str, db: Database, tmp_path: Path) -> None:
    """Anybody who asked for a window learns from the summary that a second run would store records a second time."""
    db.log("orders", LogSettings(window=Window(max_keys=100)), create=True)
    path = str(orders(tmp_path / "day.parquet", 1000))
    told = shell("log", "append", "orders", path, "--json", url=url).json
    assert (told["stored"], told["forgotten"]) == (1000, 900)
    again = shell("log", "append", "orders", path, url=url)
    assert "forgotten again by the window" in again.out.decode() + again.err.decode()


def test_find_tells_where_an_id_is(url: str, db: Database, tmp_path: Path) -> None:
    """An id that is there has its place; one that is not ends with another code."""
    path = str(orders(tmp_path / "day.parquet", 20))
    db.log("orders", create=True)
    shell("log", "append", "orders", path, url=url)
    found = shell("log", "find", "orders", "order-7", "--json", url=url)
    assert (found.code, found.json["found"], found.json["position"], found.json["entry"]) == (0, True, 7, 7)
    assert "position 7," in shell("log", "find", "orders", "order-7", url=url).out.decode()
    missing = shell("log", "find", "orders", "order-99", "--json", url=url)
    assert (missing.code, missing.json["found"]) == (1, False)


def test_find_says_that_the_id_of_an_event_needs_its_stream(url: str, db: Database) -> None:
    """Without its stream an event is not found, although it is there: the command says what to add."""
    db.streams("accounts", create=True).append("account-7", [Record(b"opened", id="e1")])
    unasked = shell("log", "find", "accounts", "e1", url=url)
    assert (unasked.code, "say --stream" in unasked.out.decode()) == (1, True)
    assert shell("log", "find", "accounts", "e1", "--stream", "account-7", url=url).code == 0


def test_set_changes_what_is_given_and_nothing_else(url: str, db: Database) -> None:
    """A window is bounded and unbounded again; what is not named stays."""
    log = db.log("orders", LogSettings(retention_s=60.0, on_conflict="original"), create=True)
    assert shell("log", "set", "orders", "--max-keys", "7", url=url).code == 0
    assert log.settings == LogSettings(window=Window(max_keys=7), retention_s=60.0, on_conflict="original")
    assert shell("log", "set", "orders", "--window", "1h", url=url).code == 0
    assert log.settings.window == Window(duration_s=3600.0, max_keys=7)
    assert shell("log", "set", "orders", "--unbounded", "--retention", "never", url=url).code == 0
    assert log.settings == LogSettings(on_conflict="original")
    refused = shell("log", "set", "orders", "--unbounded", "--window", "1h", url=url)
    assert refused.code == 2
    assert b"opposite" in refused.err


def test_info_says_what_is_remembered(url: str, db: Database, tmp_path: Path) -> None:
    """An operator sees that ids are remembered without bounds, since when, and what that takes."""
    db.log("orders", create=True)
    seen = shell("log", "info", "orders", url=url).out.decode()
    assert "since position 0" in seen
    known = shell("log", "info", "orders", "--json", url=url).json["memory"]
    assert set(known) == {"ids", "runs", "memory_bytes", "disk_bytes", "since"}
