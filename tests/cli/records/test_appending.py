"""What ``append`` takes: every form of input, good and bad, and what becomes of it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Database, LogSettings, Record, limits
from tests.cli.conftest import Call
from tests.cli.shell import Outcome

BAD_LINES: list[tuple[str, str]] = [
    ("nonsense", "JSON is malformed"),
    ('"text"', "Expected `object`"),
    ("{}", "needs a value, or a value_base64"),
    ('{"value": "a", "value_base64": "YQ=="}', "needs a value, or a value_base64"),
    ('{"value": 7}', "$.value"),
    ('{"vlaue": "a"}', "vlaue"),
    ('{"value": "a", "id": ""}', "id: is empty"),
    ('{"value": "a", "id": "%s"}' % ("x" * 256), "must have at most 255"),
    ('{"value_base64": "!"}', "base64"),
    ('{"value": "a", "headers": {"k": 1}}', "$.headers"),
    ('{"value": "a", "id": "\\udc00"}', "surrogate"),
    ('{"value": "a", "sequence": 9223372036854775808}', "$.sequence"),
]
BAD_DOCUMENTS: list[tuple[str, str]] = [
    ("nonsense", "JSON is malformed"),
    ("7", "has no 'order.id'"),
    ('{"order": 7}', "has no 'order.id'"),
    ('{"order": {"id": null}}', "has no 'order.id'"),
    ('{"order": {"id": 1.5}}', "'order.id' is 1.5: an id is a string or a whole number"),
    ('{"order": {"id": {}}}', "an id is a string"),
    ('{"order": {"id": ""}}', "id: is empty"),
    ('{"order": ' + "[" * 100_000, "recursion"),
]


def write(path: Path, *objects: Any) -> str:
    """Write objects as JSON lines; return the file's name."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(objects))
    return str(path)


def values(db: Database, name: str = "orders") -> list[bytes]:
    """Return the values in a log."""
    return [entry.value for entry in db.log(name).read()]


def refusals(done: Outcome) -> list[tuple[int, str]]:
    """Return the lines that were refused, and why."""
    return [(line["number"], line["reason"]) for line in done.errors]


def test_a_spelled_record_is_stored_whole(db: Database, call: Call, tmp_path: Path) -> None:
    """Each field of a JSON line arrives where it belongs, bytes that are no text too."""
    db.log("orders", create=True)
    line = {
        "value_base64": base64.b64encode(b"\xff\x00").decode(),
        "id": "a",
        "stream": "s",
        "type": "t",
        "tenant": "x",
        "headers": {"plain": "text", "bytes": {"base64": base64.b64encode(b"\xfe").decode()}},
    }
    done = call("log", "append", "orders", "--format", "jsonl", write(tmp_path / "f", line, {"value": "ü"}))
    assert done.code == 0
    first, second = db.log("orders").read()
    assert (first.value, first.id, first.stream, first.type, first.tenant) == (b"\xff\x00", "a", "s", "t", "x")
    assert first.headers == {"plain": b"text", "bytes": b"\xfe"}
    assert (second.value, second.id) == ("ü".encode(), None)


@pytest.mark.parametrize(("line", "why"), BAD_LINES, ids=[line[:40] for line, _ in BAD_LINES])
def test_a_bad_line_is_refused_alone(db: Database, call: Call, tmp_path: Path, line: str, why: str) -> None:
    """Of three lines the bad one in the middle is refused with its number and the reason; its neighbours are stored."""
    db.log("orders", create=True)
    file = tmp_path / "f"
    file.write_text(f'{{"value": "before"}}\n{line}\n{{"value": "after"}}\n')
    done = call("log", "append", "orders", "--format", "jsonl", "--json", str(file))
    assert done.code == 1
    assert [(number, why in reason) for number, reason in refusals(done)] == [(2, True)], done.err
    assert values(db) == [b"before", b"after"]


@pytest.mark.parametrize(("line", "why"), BAD_DOCUMENTS, ids=[line[:40] for line, _ in BAD_DOCUMENTS])
def test_a_document_without_its_id_is_refused_alone(
    db: Database, call: Call, tmp_path: Path, line: str, why: str
) -> None:
    """A document in which no id can be found is not stored without one."""
    db.log("orders", create=True)
    file = tmp_path / "f"
    file.write_text(f'{{"order": {{"id": 1}}}}\n{line}\n{{"order": {{"id": "2"}}}}\n')
    done = call("log", "append", "orders", "--id-field", "order.id", "--json", str(file))
    assert [(number, why in reason) for number, reason in refusals(done)] == [(2, True)], done.err
    assert [entry.id for entry in db.log("orders").read()] == ["1", "2"]


def test_a_field_can_be_the_value(db: Database, call: Call, tmp_path: Path) -> None:
    """Text becomes its bytes, anything else its JSON."""
    db.log("orders", create=True)
    file = write(tmp_path / "f", {"k": 1, "v": "text"}, {"k": 2, "v": {"a": [1, None]}}, {"k": 3, "v": 7}, {"k": 4})
    done = call("log", "append", "orders", "--value-field", "v", "--id-field", "k", "--json", file)
    assert refusals(done) == [(4, "has no 'v'")]
    assert values(db) == [b"text", b'{"a":[1,null]}', b"7"]


def test_lines_in_a_content_log_are_stored_once(db: Database, call: Call, tmp_path: Path) -> None:
    """Where a log takes content for ids, the same file again adds nothing, lines or not."""
    db.log("orders", LogSettings(idempotence="content"), create=True)
    file = tmp_path / "f"
    file.write_bytes(b"a\nb\na\n")
    first, second = (call("log", "append", "orders", "--json", str(file)).json for _ in range(2))
    assert (first["stored"], first["duplicates"]) == (2, 1)
    assert (second["stored"], second["duplicates"]) == (0, 3)


def test_a_conflict_that_the_log_allows_is_no_refusal(db: Database, call: Call, tmp_path: Path) -> None:
    """With on_conflict "original" other content under an id is counted, and the exit code is 0."""
    db.log("orders", LogSettings(on_conflict="original"), create=True)
    file = write(tmp_path / "f", {"k": 1, "v": 1}, {"k": 1, "v": 2})
    done = call("log", "append", "orders", "--id-field", "k", "--json", file)
    assert (done.code, done.json["stored"], done.json["conflicts"], done.json["refused"]) == (0, 1, 1, 0)


def test_a_line_too_long_is_refused_without_being_kept(db: Database, call: Call, tmp_path: Path) -> None:
    """A line longer than a value may be is refused by its number, wherever the pieces it is read in end."""
    db.log("orders", create=True)
    file = tmp_path / "f"
    file.write_bytes(b"before\n" + b"x" * (limits.VALUE_BYTES_MAX + 9_000_000) + b"\nafter\n" + b"y" * (17 << 20))
    done = call("log", "append", "orders", "--json", str(file))
    assert [number for number, _ in refusals(done)] == [2, 4]
    assert values(db) == [b"before", b"after"]


def test_many_lines_keep_their_numbers(db: Database, call: Call, tmp_path: Path) -> None:
    """A bad line far into the input is named right, although the input is taken in batches."""
    db.log("orders", create=True)
    lines = [b'{"value":"%d"}' % number for number in range(150_000)]
    lines[140_000] = b"bad"
    file = tmp_path / "f"
    file.write_bytes(b"\n".join(lines))
    done = call("log", "append", "orders", "--format", "jsonl", "--json", str(file))
    assert [number for number, _ in refusals(done)] == [140_001]
    assert (done.json["stored"], done.json["last_position"]) == (149_999, 149_998)


@pytest.mark.parametrize("form", ["parquet", "arrow", "arrow stream"])
def test_columns_are_appended(db: Database, call: Call, tmp_path: Path, form: str) -> None:
    """A table's rows are records: by name if its columns have a log's names, else by the names given."""
    db.log("orders", create=True)
    table = pa.table({"key": [1, 2, 1], "payload": ["a", "b", "other"], "rest": [0.5, 0.5, 0.5]})
    file = tmp_path / f"t.{form.split(maxsplit=1)[0]}"
    if form == "parquet":
        pq.write_table(table, file)
    else:
        make = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with make(str(file), table.schema) as writer:
            writer.write_table(table)
    refused = call("log", "append", "orders", str(file))
    assert refused.code == 2
    assert b"--value-field and --id-field name the columns to take" in refused.err
    done = call("log", "append", "orders", str(file), "--value-field", "payload", "--id-field", "key", "--json")
    assert (done.code, [line["number"] for line in done.errors]) == (1, [2])
    assert [(entry.id, entry.value) for entry in db.log("orders").read()] == [("1", b"a"), ("2", b"b")]


def test_a_bad_row_is_refused_alone(db: Database, call: Call, tmp_path: Path) -> None:
    """A row without a value does not keep the others of its table out."""
    db.log("orders", create=True)
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"value": pa.array([b"a", None, b"c"]), "id": ["1", "2", "x" * 300]}), file)
    done = call("log", "append", "orders", "--json", str(file))
    assert [(line["place"], line["number"]) for line in done.errors] == [("row", 1), ("row", 2)]
    assert values(db) == [b"a"]


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_a_file_that_is_not_what_it_is_named_is_2(db: Database, call: Call, tmp_path: Path, name: str) -> None:
    """Nothing is stored from a file that cannot be read, and the message names it."""
    db.log("orders", create=True)
    (tmp_path / name).write_bytes(b"nonsense, and more of it")
    done = call("log", "append", "orders", str(tmp_path / name))
    assert (done.code, done.out) == (2, b"")
    assert str(tmp_path / name).encode() in done.err
    assert values(db) == []


@pytest.mark.parametrize("form", ["jsonl", "arrow", "parquet"])
def test_what_cat_writes_can_be_appended(db: Database, call: Call, tmp_path: Path, form: str) -> None:
    """A log copied through a file is the same log: values, ids, headers, everything that was given.

    The file's name alone decides the form, on both ways.
    """
    records = [
        Record(b"\xff", id="1", stream="s", type="t", headers={"a": b"\x80", "b": b"text"}, tenant="x"),
        Record("ü\n\0".encode(), headers={}),
        Record(b"", id="3"),
    ]
    with db.log("orders", create=True).writer() as writer:
        writer.append_many(records)
    db.log("copy", create=True)
    file = str(tmp_path / f"orders.{form}")
    assert call("log", "cat", "orders", "--output", file).code == 0
    assert call("log", "append", "copy", file).code == 0
    given = [
        Record(entry.value, entry.id, entry.stream, entry.type, entry.headers, None, None, entry.tenant)
        for entry in db.log("copy").read()
    ]
    assert given == records


def test_documents_without_an_id_field_are_refused(db: Database, call: Call, tmp_path: Path) -> None:
    """A file of JSON lines has ids somewhere: they are not stored as mere lines, and the message says what helps."""
    db.log("orders", create=True)
    file = write(tmp_path / "day.jsonl", {"id": "1", "paid": True})
    done = call("log", "append", "orders", file)
    assert done.code == 1
    assert b"unknown field `paid`; --id-field takes any document" in done.err
    assert values(db) == []
    assert call("log", "append", "orders", "--format", "lines", file).code == 0
    assert values(db) == [b'{"id":"1","paid":true}']


def test_an_empty_input_is_no_error(db: Database, call: Call, tmp_path: Path) -> None:
    """A day without orders is a day like any other."""
    db.log("orders", create=True)
    (tmp_path / "f").touch()
    done = call("log", "append", "orders", "--json", str(tmp_path / "f"))
    assert (done.code, done.json["attempts"], done.json["last_position"]) == (0, 0, -1)
