"""What ``cat`` and ``tail`` write: from where to where, in which form, and into what."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Database, LogSettings, Record
from tests.cli.conftest import Call
from tests.cli.shell import keys


@pytest.fixture
def orders(db: Database) -> str:
    """Return the name of a log of ten records in two segments, six and four, stored at two moments."""
    log = db.log("orders", LogSettings(seal="off"), create=True)
    for numbers in (range(6), range(6, 10)):
        with log.writer() as writer:
            writer.append_many([Record(b"v%d" % number, id=str(number)) for number in numbers])
    return "orders"


SPANS: list[tuple[str, list[int]]] = [
    ("", list(range(10))),
    ("--from earliest --to latest", list(range(10))),
    ("--from latest", []),
    ("--from 4", [4, 5, 6, 7, 8, 9]),
    ("--from 4 --to 7", [4, 5, 6]),
    ("--from 7 --to 4", []),
    ("--to 1000", list(range(10))),
    ("--from 10", []),
    ("--from 1:1", [7, 8, 9]),
    ("--from 0:5 --to 1:0", [5]),
    ("--from 4 --limit 2", [4, 5]),
    ("--from 4 --to 5 --limit 2", [4]),
    ("--limit 0", []),
    ("--from 2000-01-01", list(range(10))),
    ("--from 2000-01-01T00:00:00+02:00 --to 2000-01-02", []),
    ("--from 2999-01-01", []),
]


@pytest.mark.parametrize(("span", "positions"), SPANS, ids=[span or "all" for span, _ in SPANS])
def test_a_span_is_what_it_says(orders: str, call: Call, span: str, positions: list[int]) -> None:
    """From a place on, up to another and not including it, in each way to name a place."""
    seen = call("log", "cat", orders, "--json", *span.split())
    assert (seen.code, seen.err) == (0, b"")
    assert keys(seen.lines, "position") == [(position,) for position in positions]


def test_a_moment_divides_the_log(orders: str, db: Database, call: Call) -> None:
    """What was stored before a moment and what was stored from it on are the whole log."""
    second = next(iter(db.log(orders).read(start=6))).timestamp
    before = call("log", "cat", orders, "--json", "--to", second.isoformat())
    after = call("log", "cat", orders, "--json", "--from", second.isoformat())
    later = call("log", "cat", orders, "--json", "--from", (second + timedelta(microseconds=1)).isoformat())
    assert keys(before.lines, "position") == [(number,) for number in range(6)]
    assert keys(after.lines, "position") == [(number,) for number in range(6, 10)]
    assert later.lines == []


def test_json_has_stable_keys(db: Database, call: Call) -> None:
    """A program finds the same keys in every record; the others are there if the record has them."""
    with db.log("orders", create=True).writer() as writer:
        writer.append(b"a")
        writer.append(b"\xff", id="1", type="t", headers={"h": b"\xfe"})
    first, second = call("log", "cat", "orders", "--json").lines
    assert list(first) == ["position", "segment", "entry", "timestamp", "id", "value"]
    assert list(second) == ["position", "segment", "entry", "timestamp", "id", "type", "value_base64", "headers"]
    assert (first["id"], second["value_base64"], second["headers"]) == (None, "/w==", {"h": {"base64": "/g=="}})
    assert first["timestamp"].endswith("Z")
    chosen = call("log", "cat", "orders", "--json", "--columns", "stream,id").lines
    assert chosen == [{"stream": None, "id": None}, {"stream": None, "id": "1"}]


def test_text_has_columns_and_raw_has_none(db: Database, call: Call) -> None:
    """Text separates columns by tabs and records by lines; raw separates nothing."""
    with db.log("orders", create=True).writer() as writer:
        writer.append_many([Record(b"a\xff", id="1"), Record(b"b")])
    assert call("log", "cat", "orders").out == b"a\xff\nb\n"
    assert call("log", "cat", "orders", "--columns", "position, id,value").out == b"0\t1\ta\xff\n1\t\tb\n"
    assert call("log", "cat", "orders", "--format", "raw").out == b"a\xffb"


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_columns_come_out_as_columns(orders: str, call: Call, tmp_path: Path, form: str) -> None:
    """A file is what its name says, and holds what was asked for; a pipe gets the same."""
    file = tmp_path / f"orders.{form}"
    done = call("log", "cat", orders, "--columns", "id,value", "--output", str(file), "--json")
    assert done.json == {"log": "orders", "records": 10, "output": str(file), "bytes": file.stat().st_size}
    piped = call("log", "cat", orders, "--columns", "id,value", "--format", form).out
    if form == "parquet":
        tables = [pq.read_table(file), pq.read_table(pa.BufferReader(piped))]
    else:
        tables = [pa.ipc.open_file(str(file)).read_all(), pa.ipc.open_stream(piped).read_all()]
    for table in tables:
        assert table.column_names == ["id", "value"]
        assert table.column("value").to_pylist() == [b"v%d" % number for number in range(10)]


def test_a_file_is_there_only_when_it_is_whole(
    orders: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that fails leaves what was there before, and nothing beside it."""
    target = tmp_path / "out"
    target.mkdir()
    file = target / "orders.jsonl"
    file.write_text("the export of yesterday")

    def full(_: object, __: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("oncelog.cli.records.sinks.RowSink.write", full)
        done = call("log", "cat", orders, "--output", str(file))
    assert (done.code, done.err) == (3, b"error: No space left on device\n")
    assert [path.name for path in target.iterdir()] == ["orders.jsonl"]
    assert file.read_text() == "the export of yesterday"
    assert call("log", "cat", orders, "--output", str(file)).code == 0
    assert len(file.read_text().splitlines()) == 10


@pytest.mark.parametrize(
    ("arguments", "positions"),
    [("", range(10)), ("-n 3", [7, 8, 9]), ("-n 0", []), ("--from 8", [8, 9]), ("--from 2 --limit 2", [2, 3])],
)
def test_tail_begins_where_it_is_told(orders: str, call: Call, arguments: str, positions: list[int]) -> None:
    """The last ten, the last few, or from a place on."""
    seen = call("log", "tail", orders, "--json", *arguments.split())
    assert keys(seen.lines, "position") == [(position,) for position in positions]


def test_an_empty_log_is_no_error(db: Database, call: Call) -> None:
    """Nothing is written, in any form, and a file of a table is a table without rows."""
    db.log("orders", create=True)
    for form in ("text", "jsonl", "raw"):
        assert call("log", "cat", "orders", "--format", form) == (0, b"", b"")
        assert call("log", "tail", "orders", "--format", form) == (0, b"", b"")
    piped = call("log", "cat", "orders", "--format", "parquet").out
    assert pq.read_table(pa.BufferReader(piped)).num_rows == 0


@pytest.mark.parametrize("command", ["cat", "tail"])
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_a_column_that_is_named_twice_is_refused(call: Call, orders: str, command: str, format: str) -> None:
    """A line of JSON cannot have it twice: that was a traceback."""
    result = call("log", command, orders, "--columns", "id,position,id", "--format", format)
    assert (result.code, result.out) == (2, b"")
    assert b"'id' is there 2 times" in result.err
