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
    """DuckDB's own words reach the user, without a traceback; also of bytes that are no text."""
    done = shell("sql", "select '\udcff'", url=make(tmp_path))
    assert (done.code, b"is not UTF-8" in done.err) == (2, True)
    done = shell("sql", "select nothing from nowhere", url=tmp_path.as_uri())
    assert done.code == 2
    assert "nowhere" in done.err.decode()
    assert "Traceback" not in done.err.decode()


def test_a_query_that_asks_for_nothing_or_for_no_log(tmp_path: Path) -> None:
    """An empty query, a statement without an answer, and a mistyped name are each one line, with the log that was
    probably meant.
    """
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        db.log("orders", create=True)
    for query in ("", "/* nothing */", "  "):
        done = shell("sql", query, url=url)
        assert (done.code, b"asks for nothing" in done.err) == (2, True), (query, done.err)
    done = shell("sql", "select * from ordres", url=url)
    assert (done.code, b"did you mean 'orders'?" in done.err) == (2, True)


def test_names_in_any_case_and_numbers_of_any_size(tmp_path: Path) -> None:
    """SQL does not tell ORDERS from orders; a number that JSON's readers could not hold is text."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db, db.log("orders", create=True).writer() as writer:
        writer.append(b"paid", id="x" * 255, headers={"trace": b"\xff", "kind": b"a"})
    query = "select count(*) n, 9223372036854775807::hugeint * 4 large, any_value(headers) h, min(id) i from ORDERS"
    told = shell("sql", query, "--json", url=url).json
    assert (told["n"], told["large"], told["i"]) == (1, "36893488147419103228", "x" * 255)
    assert shell("sql", query, url=url).code == 0


def test_a_column_that_was_asked_for_is_shown_and_damage_is_4(tmp_path: Path) -> None:
    """A column of nulls is an answer. A damaged file is told in one line, as by every other command that meets it."""
    url = tmp_path.as_uri()
    with oncelog.connect(url) as db:
        with db.log("orders", create=True).writer() as writer:
            writer.append(b"paid", id="1")
        db.log("orders").seal()
    assert shell("sql", "select id, producer from orders", url=url).out.split() == [b"id", b"producer", b"1"]
    (file,) = (tmp_path / "logs" / "orders" / "sealed").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    done = shell("sql", "select count(id) from orders", url=url)
    assert (done.code, done.err.count(b"\n"), b"Traceback" in done.err) == (4, 1, False)
    assert file.name.encode() in done.err
