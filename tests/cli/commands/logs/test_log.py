"""Every command as a process: what it does, what it prints for people, and what for programs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from oncelog import Database, LogSettings, Record, Window
from tests.cli.shell import keys, shell


def fill(db: Database, name: str, count: int, settings: LogSettings | None = None) -> None:
    """Make a log of records with ids ``0``, ``1``, … ."""
    with db.log(name, settings, create=True).writer() as writer:
        writer.append_many([Record(f"value {number}".encode(), id=str(number)) for number in range(count)])


def test_version_is_that_of_the_package() -> None:
    """The installed script, as users call it, is this shell."""
    script = Path(sys.executable).with_name("oncelog")
    said = subprocess.run([script, "--version"], capture_output=True, check=True).stdout
    assert said.decode() == f"oncelog {importlib.metadata.version('oncelog')}\n"


def test_create_stores_the_settings(db: Database, url: str) -> None:
    """A log made in a shell is the one that was asked for, and asking again changes nothing."""
    asked = ("log", "create", "orders", "--window", "1h30m", "--max-keys", "1000", "--segment-size", "1MiB", "--json")
    first, second = shell(*asked, url=url), shell(*asked, url=url)
    assert (first.code, second.code) == (0, 0)
    assert (first.json["created"], second.json["created"]) == (True, False)
    settings = db.log("orders").settings
    assert settings == LogSettings(window=Window(duration_s=5400, max_keys=1000), segment_bytes=1 << 20)


def test_append_stores_and_a_second_run_does_not(db: Database, url: str, tmp_path: Path) -> None:
    """The promise of the whole system, from a shell: a file that is appended again adds nothing."""
    db.log("orders", create=True)
    file = tmp_path / "day.jsonl"
    file.write_text('{"order": {"id": 1}}\n{"order": {"id": 2}}\n')
    counted = []
    for _ in range(2):
        done = shell("log", "append", "orders", str(file), "--id-field", "order.id", "--json", url=url)
        assert (done.code, done.err) == (0, b"")
        counted.append(tuple(done.json[key] for key in ("attempts", "stored", "duplicates", "last_position")))
    assert counted == [(2, 2, 0, 1), (2, 0, 2, 1)]
    assert [(entry.id, entry.value) for entry in db.log("orders").read()] == [
        ("1", b'{"order": {"id": 1}}'),
        ("2", b'{"order": {"id": 2}}'),
    ]


def test_rows_in_conflict_are_named(db: Database, url: str) -> None:
    """What was put aside is listed beside its log, and the log's own page says how to look at it."""
    log = db.log("orders", create=True)
    db.log("other", create=True)
    for value in (b"paid", b"open"):
        table = pa.table({"id": ["1", "2"], "value": pa.array([value, b"same"], pa.binary())})
        with log.writer() as writer:
            writer.ingest([log.stage([table])], None, on_conflict="quarantine", on_replay="error", timeout_s=None)
    listed = shell("log", "list", "--json", url=url)
    assert [found["name"] for found in listed.lines] == ["orders", "conflicts.orders", "other"]
    assert b"oncelog log cat conflicts.orders" in b"".join(shell("log", "info", "orders", url=url).err.splitlines())
    assert b"conflict" not in shell("log", "info", "other", url=url).err
    assert shell("log", "cat", "conflicts.orders", url=url).out == b"open\n"


def test_append_reads_stdin(db: Database, url: str) -> None:
    """Lines that are piped in are values, the last also without a newline; the summary is one line for people."""
    db.log("orders", create=True)
    done = shell("log", "append", "orders", url=url, given=b"a\n\nc")
    assert (done.code, done.err) == (0, b"")
    assert done.out.startswith(b"orders: 3 records read, 3 stored (")
    assert [entry.value for entry in db.log("orders").read()] == [b"a", b"", b"c"]


def test_list_shows_each_log(db: Database, url: str) -> None:
    """People get a table that no pipe cuts off, programs an object a log."""
    assert shell("log", "list", url=url).out == f"no logs at {url}\n".encode()
    fill(db, "a" * 200, 3)
    fill(db, "orders", 1234)
    table = shell("log", "list", url=url).out.decode().splitlines()
    assert [line.split()[:2] for line in table] == [["log", "records"], ["a" * 200, "3"], ["orders", "1,234"]]
    assert keys(shell("log", "list", "--json", url=url).lines, "name", "records") == [("a" * 200, 3), ("orders", 1234)]


def test_info_shows_positions_and_settings(db: Database, url: str) -> None:
    """An operator sees where a log begins and ends, and what it promises."""
    fill(db, "orders", 1234)
    seen = shell("log", "info", "orders", url=url)
    assert seen.code == 0
    facts = dict(line.split(maxsplit=1) for line in seen.out.decode().splitlines() if len(line.split()) > 1)
    assert facts["positions"].strip() == "0 to 1,233"
    assert facts["window"].strip() == "an id is remembered as long as its record is in the log"
    known = shell("log", "info", "orders", "--json", url=url).json
    assert (known["first_position"], known["last_position"], known["epoch"]) == (0, 1233, 1)
    assert known["settings"]["window"]["max_keys"] is None


def test_cat_writes_values_into_a_pipe(db: Database, url: str) -> None:
    """In a pipe there is nothing but the values: what comes after it in the pipe reads them."""
    fill(db, "orders", 3)
    seen = shell("log", "cat", "orders", "--from", "1", url=url)
    assert seen == (0, b"value 1\nvalue 2\n", b"")


def test_tail_shows_the_newest(db: Database, url: str) -> None:
    """Without -f it shows the end and ends itself."""
    fill(db, "orders", 30)
    seen = shell("log", "tail", "orders", "-n", "2", "--json", url=url)
    assert keys(seen.lines, "position", "id", "value") == [(28, "28", "value 28"), (29, "29", "value 29")]


def test_verify_finds_a_sound_log_sound(db: Database, url: str) -> None:
    """A log nobody touched has no findings."""
    fill(db, "orders", 10)
    seen = shell("log", "verify", "orders", "--json", url=url)
    assert (seen.code, seen.err) == (0, b"")
    assert keys([seen.json], "log", "ok", "records", "findings") == [("orders", True, 10, [])]


def test_seal_makes_files(db: Database, url: str) -> None:
    """What is sealed is told, and is a file that others can read."""
    fill(db, "orders", 10, LogSettings(seal="off"))
    seen = shell("log", "seal", "orders", "--json", url=url)
    assert keys([seen.json], "log", "files", "records") == [("orders", 1, 10)]
    assert [file.records for file in db.log("orders").files()] == [10]


def test_snapshot_is_stored(db: Database, url: str) -> None:
    """The snapshot is there afterwards, up to the end of the log."""
    fill(db, "orders", 10)
    seen = shell("log", "snapshot", "orders", "--json", url=url)
    assert seen.json["position"] == 10
    assert db.log("orders").info().snapshots[seen.json["snapshot"]] == 10


def test_truncate_removes_the_oldest(db: Database, url: str) -> None:
    """Records before a position go, and the answer says where the log begins now."""
    with db.log("orders", LogSettings(idempotence="off"), create=True).writer() as writer:
        writer.append_many([Record(b"x")] * 10)
    seen = shell("log", "truncate", "orders", "--before", "4", "--yes", "--json", url=url)
    assert (seen.code, seen.json) == (0, {"log": "orders", "removed": 4, "first_position": 4, "held_by": None})
    assert [entry.position for entry in db.log("orders").read()] == [4, 5, 6, 7, 8, 9]


def test_truncate_says_what_held_it_back(db: Database, url: str) -> None:
    """What the window still needs stays, and people learn why."""
    fill(db, "orders", 10)
    seen = shell("log", "truncate", "orders", "--before", "4", "--yes", url=url)
    assert seen == (0, b"orders: 0 records removed, begins at 0; the rest is held by the window\n", b"")


def test_retain_keeps_to_the_settings(db: Database, url: str) -> None:
    """A log that may keep nothing keeps nothing that is closed."""
    with db.log(
        "orders", LogSettings(idempotence="off", retention_bytes=0, seal="off"), create=True
    ).writer() as writer:
        writer.append_many([Record(b"x")] * 10)
    first = db.log("orders").info().first_position
    seen = shell("log", "retain", "orders", "--json", url=url)
    assert keys([seen.json], "removed", "first_position") == [(10 - first, 10)]


def test_delete_deletes(db: Database, url: str) -> None:
    """A log that is deleted is gone, and the others are not."""
    fill(db, "orders", 3)
    fill(db, "clicks", 3)
    seen = shell("log", "delete", "orders", "--yes", "--json", url=url)
    assert (seen.code, seen.json) == (0, {"log": "orders", "deleted": True, "records": 3})
    assert db.logs() == ["clicks"]


def test_append_makes_the_log_if_asked_to(tmp_path: Path) -> None:
    """A loader needs one command; without ``--create`` a misspelt name stays an error."""
    (tmp_path / "day.jsonl").write_text('{"id": "o-1"}\n')
    given = ("log", "append", "orders", "--id-field", "id", str(tmp_path / "day.jsonl"))
    url = (tmp_path / "shop").as_uri()
    assert shell(*given, url=url).code == 2
    assert shell(*given, "--create", "--json", url=url).json["stored"] == 1
    assert shell(*given, "--create", "--json", url=url).json["duplicates"] == 1
