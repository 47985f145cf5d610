"""``oncelog sql``: a log is a table, to its newest durable record, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import oncelog
from tests.cli.shell import shell


def make(folder: Path) -> str:
    """Make a log of which some records are sealed and some are not."""
    with oncelog.connect(folder.as_uri()) as db:
        log = db.log("shop/orders", create=True)
        for number in range(2):
            with log.writer() as w:
                for total in range(5):
                    w.append(b'{"total": %d}' % (10 * number + total), id=f"o-{number}-{total}")
            if number == 0:
                log.seal()
    return folder.as_uri()


def test_a_query_sees_sealed_and_new_records_and_may_scan_a_log_twice(tmp_path: Path) -> None:
    """A join of a log with itself reads it twice; every record is there once."""
    query = (
        """select count(*) as n, sum((decode(a.value)::json ->> '$.total')::int) as total """
        """from "shop/orders" a join "shop/orders" b using (position)"""
    )
    done = shell("sql", query, "--json", url=make(tmp_path))
    assert done.code == 0, done.err.decode()
    assert done.json == {"n": 10, "total": 70}


def test_a_query_reads_no_file_of_the_machine(tmp_path: Path) -> None:
    """A query may come from somebody else: DuckDB's functions that read files are off."""
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nxyzzy\n")
    done = shell("sql", f"select * from read_csv('{secret}')", url=make(tmp_path / "shop"))
    assert done.code == 2
    assert "xyzzy" not in (done.out + done.err).decode()


def test_a_wrong_query_is_told_as_one(tmp_path: Path) -> None:
    """DuckDB's own words reach the user, without a traceback."""
    done = shell("sql", "select nothing from nowhere", url=make(tmp_path))
    assert done.code == 2
    assert "nowhere" in done.err.decode()
    assert "Traceback" not in done.err.decode()
