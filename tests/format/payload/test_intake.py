"""What users give is stored as they meant it, or refused by name before anything is written."""

import mmap
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.format.payload import columns, intake, plain, schema
from oncelog.types import Record
from tests.format.samples import plain_records, records

MAP = pa.map_(pa.string(), pa.binary())


def table(**arrays: Any) -> pa.RecordBatch:
    """Return a user's batch of these columns."""
    return pa.record_batch(arrays)


@given(record=records)
def test_good_records_pass_both_checks(record: Record) -> None:
    """What is within the limits is never refused, alone or in columns."""
    intake.check_record(record)
    intake.check_limits(columns.from_records([record]))


@given(given=st.lists(records | plain_records, max_size=8))
def test_many_records_become_what_each_becomes(given: list[Record]) -> None:
    """Checking by columns only saves time: what comes out is stored byte for byte as if each had been looked at."""
    found = plain.payload(given)
    is_plain = all((record.headers, record.producer, record.sequence) == (None, None, None) for record in given)
    assert (found is not None) == (is_plain and len(given) > 0)
    assert found is None or found.equals(columns.from_records(given))


BAD_SIZES = [
    ("value", Record(bytes(limits.VALUE_BYTES_MAX + 1))),
    ("id", Record(b"", id="")),
    ("id", Record(b"", id="x" * 256)),
    ("id", Record(b"", id="é" * 128)),
    ("stream", Record(b"", stream="x" * 1025)),
    ("type", Record(b"", type="✓" * 342)),
    ("producer", Record(b"", producer="x" * 1025)),
    ("tenant", Record(b"", tenant="x" * 1025)),
    ("headers", Record(b"", headers={str(number): b"" for number in range(65)})),
    ("headers", Record(b"", headers={"x" * 1025: b""})),
    ("headers", Record(b"", headers={"a": bytes(40_000), "b": bytes(25_536)})),
]


@pytest.mark.parametrize(
    ("column", "record"), BAD_SIZES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(BAD_SIZES)]
)
def test_limits_hold_for_records_and_columns(column: str, record: Record) -> None:
    """Each limit is the same for one record and for a table, and the message says where and what."""
    with pytest.raises(InvalidArgument, match=f"^{column}.*must"):
        intake.check_record(record)
    good = Record(b"", id="i", stream="", type="", headers={"a": b""}, producer="", tenant="")
    payload = columns.from_records([good, good, record, record])
    with pytest.raises(InvalidArgument, match=f"^{column}, row 2: .*must"):
        intake.check_limits(payload)
    with pytest.raises(InvalidArgument, match=f"^{column}, row 1: .*must"):
        intake.check_limits(payload.slice(1))
    intake.check_limits(payload.slice(0, 2))
    assert plain.payload([Record(b"", id="i", stream="", type="", tenant=""), record]) is None


def test_the_limit_itself_is_allowed() -> None:
    """Limits are the most that is accepted, not the first that is refused."""
    headers = {"x" * 1024: bytes(64 * 1024 - 1024 - 63)} | {chr(48 + number): b"" for number in range(63)}
    record = Record(bytes(limits.VALUE_BYTES_MAX), "x" * 255, "x" * 1024, "é" * 512, headers, "x" * 1024, 0, "x" * 1024)
    intake.check_record(record)
    intake.check_limits(columns.from_records([record]))


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("value: is str, must be bytes: encode it", {"value": "text"}),
        ("value: is int, must be bytes", {"value": 5}),
        ("value: is NoneType", {"value": None}),
        ("id: is bytes, must be str", {"id": b"x"}),
        ("stream: is int", {"stream": 1}),
        ("id: has a lone surrogate at character 1", {"id": "a\ud800"}),
        ("tenant: has a lone surrogate", {"tenant": "\udfff"}),
        ("headers: a name: has a lone surrogate", {"headers": {"\ud800": b""}}),
        ("headers: is list, must be a mapping", {"headers": [("a", b"")]}),
        ("headers: 'a' is str, must be bytes", {"headers": {"a": "b"}}),
        ("headers: a name: is int, must be str", {"headers": {1: b""}}),
        ("sequence: is str, must be int", {"sequence": "1"}),
        ("sequence: is bool, must be int", {"sequence": True}),
        ("sequence: is 9223372036854775808, must fit 64 bits", {"sequence": 1 << 63}),
    ],
)
def test_wrong_types_are_named(message: str, fields: dict[str, Any]) -> None:
    """A caller learns which field is wrong and what to do, before anything is written."""
    with pytest.raises(InvalidArgument, match=message):
        intake.check_record(Record(**{"value": b"", **fields}))
    assert plain.payload([Record(b""), Record(**{"value": b"", **fields})]) is None


@pytest.mark.parametrize("value", [bytearray(b"x"), memoryview(b"x"), np.arange(4).data])
def test_bytes_like_values_pass(value: Any) -> None:
    """Any bytes-like is a value; a large one is measured in bytes, not in items."""
    intake.check_record(Record(value))
    with pytest.raises(InvalidArgument):
        intake.check_record(Record(np.zeros(limits.VALUE_BYTES_MAX // 8 + 1).data))  # type: ignore[arg-type]


STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
STRINGS += [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
@pytest.mark.parametrize("name", ["id", "stream", "type", "producer", "tenant"])
def test_every_kind_of_string_becomes_string(name: str, kind: pa.DataType) -> None:
    """Tables from pandas, polars, Spark and DuckDB spell text differently; all are taken."""
    payload = intake.normalise(table(**{name: pa.array(["a", None, "é✓"], kind), "value": pa.array([b"", b"", b""])}))
    assert payload.schema.equals(schema.schema_of(schema.VALUE | schema.BITS[name]))
    assert payload[name].to_pylist() == ["a", None, "é✓"]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_text_is_a_value_by_its_utf_8(kind: pa.DataType) -> None:
    """A column of strings, as Spark and frames have them, becomes bytes that are the text in UTF-8."""
    payload = intake.normalise(table(value=pa.array(["a", "", "é✓", "long enough for a view of its own"], kind)))
    assert payload["value"].to_pylist() == [b"a", b"", "é✓".encode(), b"long enough for a view of its own"]


def test_categories_that_are_views_are_refused_by_name() -> None:
    """Arrow has no functions for a dictionary of views: that is an error that names the column, not one of Arrow's."""
    texts = pa.array(["a", "long enough for a view of its own"], pa.string_view())
    categories = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), texts)
    with pytest.raises(InvalidArgument, match="type: cannot become string"):
        intake.normalise(table(value=pa.array([b"", b"", b""]), type=categories))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_every_kind_of_binary_becomes_binary(kind: pa.DataType) -> None:
    """Values may come with 64-bit offsets."""
    payload = intake.normalise(table(value=pa.array([b"a", b""], kind)))
    assert payload.schema.equals(schema.schema_of(schema.VALUE))
    assert payload["value"].to_pylist() == [b"a", b""]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint32(), pa.int64(), pa.uint64()], ids=str)
def test_every_kind_of_integer_becomes_int64(kind: pa.DataType) -> None:
    """A sequence is taken from any integer column."""
    payload = intake.normalise(table(value=pa.array([b"a", b"b"]), sequence=pa.array([5, None], kind)))
    assert payload["sequence"].to_pylist() == [5, None]
    assert payload["sequence"].type == pa.int64()


def test_headers_of_any_map_of_text_to_bytes() -> None:
    """Maps come with other names inside and other widths."""
    wide = pa.map_(pa.large_string(), pa.large_binary())
    given_headers = pa.array([[("a", b"1")], None, []], wide)
    payload = intake.normalise(table(value=pa.array([b"", b"", b""]), headers=given_headers))
    assert payload["headers"].to_pylist() == [[("a", b"1")], None, []]
    assert payload.schema.equals(schema.schema_of(schema.VALUE | schema.HEADERS))


def test_tables_of_chunks_in_any_order() -> None:
    """A table of many chunks, with its columns in another order, is one payload in canonical order."""
    value = pa.chunked_array([[b"a"], [], [b"b", b"c"]], pa.binary())
    payload = intake.normalise(pa.table({"tenant": ["x", "y", "z"], "id": ["1", None, "3"], "value": value}))
    assert payload.schema.names == ["value", "id", "tenant"]
    assert payload["value"].to_pylist() == [b"a", b"b", b"c"]
    empty = intake.normalise(pa.table({"value": pa.chunked_array([], pa.binary())}))
    assert (empty.num_rows, empty.schema.names) == (0, ["value"])
    intake.check_limits(empty)


def test_slices_far_into_a_large_column_are_taken() -> None:
    """A part of a table of more than 2 GiB is judged by its own size; the whole of it is refused by name."""
    memory = pa.py_buffer(mmap.mmap(-1, 3 << 30))  # never touched, so it takes no memory
    offsets = pa.py_buffer(np.array([0, 0, (3 << 30) - 5, 3 << 30], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 3, [None, offsets, memory])
    payload = intake.normalise(table(value=column.slice(2, 1)))
    assert payload["value"].to_pylist() == [bytes(5)]
    with pytest.raises(InvalidArgument, match="must have at most 2147483647: append in parts"):
        intake.normalise(table(value=column))


def test_canonical_columns_are_not_copied() -> None:
    """The common case costs nothing: a batch of the right types is taken as it is."""
    given_batch = table(value=pa.array([b"a" * 100] * 10), id=pa.array([str(row) for row in range(10)]))
    payload = intake.normalise(given_batch)
    for name in ("value", "id"):
        assert payload[name].buffers()[2].address == given_batch[name].buffers()[2].address


def test_all_null_columns_are_dropped() -> None:
    """A column without a value in it is one that was not given."""
    payload = intake.normalise(
        table(value=pa.array([b"a"]), id=pa.nulls(1, pa.string()), headers=pa.nulls(1), sequence=pa.nulls(1))
    )
    assert payload.schema.names == ["value"]


VALUES = pa.array([b"a", b"b"])
TEXTS = pa.array([[("a", "b")], None], pa.map_("string", "string"))


@pytest.mark.parametrize(
    ("message", "given_table"),
    [
        ("value: missing", table(id=pa.array(["x"]))),
        ("other: unknown column", table(value=VALUES, other=VALUES)),
        ("start: unknown column", table(value=VALUES, start=pa.array([True, False]))),
        ("value: is there 2 times", pa.record_batch([VALUES, VALUES], names=["value", "value"])),
        ("value: is int64, must be binary or string", table(value=pa.array([1]))),
        ("value: is null, must be binary or string", table(value=pa.nulls(2))),
        ("value, row 1: is null", table(value=pa.array([b"a", None]))),
        ("value, row 3: is null", pa.table({"value": pa.chunked_array([[b"a", b"b"], [b"c", None]])})),
        ("id: is int64, must be string", table(value=VALUES, id=pa.array([1, 2]))),
        ("id: is binary, must be string", table(value=VALUES, id=VALUES)),
        ("type: is dictionary", table(value=VALUES, type=pa.array([1, 2]).dictionary_encode())),
        ("sequence: is double, must be int64", table(value=VALUES, sequence=pa.array([1.0, 2.0]))),
        ("sequence: is bool", table(value=VALUES, sequence=pa.array([True, False]))),
        ("sequence, row 1: does not fit", table(value=VALUES, sequence=pa.array([1, 1 << 63], pa.uint64()))),
        ("headers: is map<string, string>", table(value=VALUES, headers=TEXTS)),
        ("headers: is string", table(value=VALUES, headers=pa.array(["a", "b"]))),
    ],
)  # fmt: skip
def test_wrong_tables_are_named(message: str, given_table: pa.Table | pa.RecordBatch) -> None:
    """Each refusal names the column, the rule and, where there is one, the first row that breaks it."""
    with pytest.raises(InvalidArgument, match=message):
        intake.normalise(given_table)


@pytest.mark.parametrize("other", [{"value": [b"a"]}, [Record(b"a")], pa.array([b"a"]), None])
def test_only_tables_are_tables(other: Any) -> None:
    """Something else is an error that says what to give."""
    with pytest.raises(InvalidArgument, match="must be a pyarrow Table or RecordBatch"):
        intake.normalise(other)


def forged(kind: pa.DataType, offsets: list[int], data: bytes) -> pa.Array:
    """Return an array whose buffers nobody checked."""
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    )


def test_invalid_arrow_data_is_refused() -> None:
    """Text that is not UTF-8 could never be read again, and wild offsets would read other memory."""
    values = pa.array([b"", b"", b""])
    text = forged(pa.string(), [0, 1, 2, 4], b"a\xffbc")
    with pytest.raises(InvalidArgument, match="id, row 1: not a valid string"):
        intake.normalise(table(value=values, id=text))
    with pytest.raises(InvalidArgument, match="value, row 1: not a valid binary"):
        intake.normalise(table(value=forged(pa.binary(), [0, 2, 1, 3], b"abcd")))
    with pytest.raises(InvalidArgument, match="id, row 1: not a valid string"):
        intake.normalise(table(value=values, id=forged(pa.string(), [0, 2, 1, 3], b"abcd")))


def test_text_in_slices_is_checked_where_it_is() -> None:
    """Only the rows given are judged: a slice without the bad row is good, and non-ASCII text is text."""
    text = forged(pa.string(), [0, 1, 2, 4], b"a\xff" + "é".encode())
    good = intake.normalise(table(value=pa.array([b""]), id=text.slice(2, 1)))
    assert good["id"].to_pylist() == ["é"]
    with pytest.raises(InvalidArgument):
        intake.normalise(table(value=pa.array([b""]), id=text.slice(1, 1)))


def test_header_rules_of_columns() -> None:
    """A header without bytes, or a name twice, cannot become a mapping: the row is named."""
    values = pa.array([b"", b"", b""])
    with pytest.raises(InvalidArgument, match="headers, row 2: a header is null"):
        intake.check_limits(
            intake.normalise(table(value=values, headers=pa.array([[("a", b"")], None, [("b", None)]], MAP)))
        )
    twice = pa.array([[("a", b""), ("b", b"")], [("a", b"")], [("a", b"1"), ("c", b""), ("a", b"2")]], MAP)
    with pytest.raises(InvalidArgument, match="headers, row 2: has the name 'a' twice"):
        intake.check_limits(intake.normalise(table(value=values, headers=twice)))
    with pytest.raises(InvalidArgument, match="headers, row 1: has the name 'a' twice"):
        intake.check_limits(intake.normalise(table(value=values, headers=twice)).slice(1))
    intake.check_limits(intake.normalise(table(value=values, headers=twice)).slice(0, 2))


def test_null_ids_among_ids_are_within_the_limits() -> None:
    """A record without an id is not one with an empty id."""
    intake.check_limits(columns.from_records([Record(b"", id="a"), Record(b""), Record(b"", id="b" * 255)]))
