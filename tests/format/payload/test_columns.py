"""Payloads keep every field of every record, on the way in, side by side, and on the way out."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidArgument
from oncelog.format.payload import columns, schema
from oncelog.types import EPOCH, Entry, Record, micros, moment
from tests.format.samples import records

TIME_US = 1_700_000_000_123_456


def back(entry: Entry) -> Record:
    """Return what a user had given for an entry."""
    return Record(
        entry.value, entry.id, entry.stream, entry.type, entry.headers, entry.producer, entry.sequence, entry.tenant
    )


@given(rows=st.lists(records, max_size=20))
def test_entries_are_the_records(rows: list[Record]) -> None:
    """Every field comes back as it was given, with its place beside it; unicode, empty and absent stay apart."""
    entries = columns.entries(columns.from_records(rows), 100, 7, 40, TIME_US)
    assert [back(entry) for entry in entries] == rows
    assert [(entry.position, entry.segment, entry.entry) for entry in entries] == [
        (100 + row, 7, 40 + row) for row in range(len(rows))
    ]
    assert all(entry.timestamp == moment(TIME_US) for entry in entries)


@given(rows=st.lists(records, min_size=1, max_size=20), data=st.data())
def test_entries_of_a_slice(rows: list[Record], data: st.DataObject) -> None:
    """A reader that starts in the middle of a block gets the records from there."""
    start = data.draw(st.integers(0, len(rows)))
    payload = columns.from_records(rows).slice(start)
    assert [back(entry) for entry in columns.entries(payload, 0, 0, 0, 0)] == rows[start:]


def test_columns_that_are_not_used_are_not_stored() -> None:
    """What nobody gave costs nothing: a plain log stores values and nothing else."""
    assert columns.from_records([Record(b"a"), Record(b"b")], [True, True]).schema.names == ["value"]
    assert columns.from_records([Record(b"a", sequence=0), Record(b"b", headers={})]).schema.names == [
        "value",
        "headers",
        "sequence",
    ]
    assert columns.from_records([Record(b"a"), Record(b"b")], [True, False]).schema.names == ["value", "start"]


def test_values_may_be_any_bytes() -> None:
    """A value read from a socket need not be copied into bytes first."""
    rows = [Record(bytearray(b"a")), Record(memoryview(b"b"))]  # type: ignore[arg-type]
    assert columns.from_records(rows)["value"].to_pylist() == [b"a", b"b"]


def test_masks_and_schemas_name_each_other() -> None:
    """The mask in a block's header is all there is to know its schema by."""
    for mask in range(1, schema.ALL_BITS + 1, 2):
        assert schema.mask_of(schema.schema_of(mask)) == mask
    assert list(schema.BITS) == [
        "value", "id", "stream", "type", "headers", "producer", "sequence", "tenant", "start",
    ]  # fmt: skip
    assert list(schema.BITS.values()) == [1, 2, 4, 8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([]),
        pa.schema([("id", pa.string())]),
        pa.schema([("value", pa.binary())]),
        pa.schema([("id", pa.string()), pa.field("value", pa.binary(), nullable=False)]),
        pa.schema([pa.field("value", pa.binary(), nullable=False), ("other", pa.string())]),
        pa.schema([pa.field("value", pa.binary(), nullable=False), ("id", pa.large_string())]),
    ],
)
def test_other_schemas_have_no_mask(other: pa.Schema) -> None:
    """A batch in another order or of other types would be stored under a wrong description."""
    with pytest.raises(InvalidArgument, match="not a payload"):
        schema.mask_of(other)


@given(groups=st.lists(st.lists(records, min_size=1, max_size=4), min_size=1, max_size=5), data=st.data())
def test_concat_keeps_rows_and_starts(groups: list[list[Record]], data: st.DataObject) -> None:
    """Groups with different columns commit as one block, and no batch begins where it did not."""
    starts = [data.draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group))) for group in groups]
    payload = columns.concat([columns.from_records(group, bits) for group, bits in zip(groups, starts, strict=True)])
    flat = [record for group in groups for record in group]
    expected = [bit for bits in starts for bit in bits]
    assert [back(entry) for entry in columns.entries(payload, 0, 0, 0, 0)] == flat
    assert ("start" in payload.schema.names) == (not all(expected))
    if "start" in payload.schema.names:
        assert payload["start"].to_pylist() == expected
    assert schema.mask_of(payload.schema)


def test_concat_of_slices() -> None:
    """Parts of larger tables are joined as the rows they are."""
    payload = columns.from_records([Record(b"%d" % row, id=str(row)) for row in range(10)])
    joined = columns.concat([payload.slice(2, 3), payload.slice(7, 1), columns.from_records([Record(b"x")])])
    assert joined["id"].to_pylist() == ["2", "3", "4", "7", None]


@given(rows=st.lists(records, max_size=10))
def test_view_is_the_entries(rows: list[Record]) -> None:
    """Reading columns and reading entries are two faces of the same records."""
    payload = columns.from_records(rows, [False] * len(rows))
    view = columns.view(payload, 100, 7, 40, TIME_US)
    view.validate(full=True)
    assert view.schema.equals(schema.READ_SCHEMA)
    for found, entry in zip(view.to_pylist(), columns.entries(payload, 100, 7, 40, TIME_US), strict=True):
        headers = found.pop("headers")
        assert (None if headers is None else dict(headers)) == entry.headers
        assert all(getattr(entry, name) == value for name, value in found.items())


def test_view_shares_the_payloads_buffers() -> None:
    """Reading columns copies no value."""
    payload = columns.from_records([Record(b"a" * 100, id="i", headers={"h": b"x"}, sequence=1)] * 100)
    view = columns.view(payload, 0, 0, 0, 0)
    for name in payload.schema.names:
        before = [part.address for part in payload[name].buffers() if part]
        assert [part.address for part in view[name].buffers() if part] == before


def test_view_of_some_columns_in_the_order_asked() -> None:
    """A reader that wants two columns gets two; a misspelt one is named."""
    payload = columns.from_records([Record(b"a", id="i")])
    for names in (["value", "id"], ("id", "value"), ["id"], ["id", "position"]):
        found = columns.view(payload, 5, 0, 0, 0, names)
        assert found.schema.equals(schema.read_schema(tuple(names)))
        assert found.num_rows == 1
    view = columns.view(payload, 5, 0, 0, 0, ["value", "position", "tenant"])
    assert view.to_pylist() == [{"value": b"a", "position": 5, "tenant": None}]
    with pytest.raises(InvalidArgument, match="no column 'valeu'"):
        columns.view(payload, 5, 0, 0, 0, ["valeu"])
    with pytest.raises(InvalidArgument, match="no column 'start'"):
        columns.view(payload, 5, 0, 0, 0, ["start"])


@pytest.mark.parametrize("as_arrow", [False, True])
def test_each_row_may_have_its_own_time(as_arrow: bool) -> None:  # noqa: FBT001
    """Rows of gathered blocks and sealed files keep the time at which each was stored."""
    times = np.array([TIME_US, TIME_US + 1, -1], np.int64)
    given_times = pa.array(times).cast(schema.READ_SCHEMA.field("timestamp").type) if as_arrow else times
    payload = columns.from_records([Record(b"a")] * 3)
    expected = [EPOCH + timedelta(microseconds=int(time_us)) for time_us in times]
    assert [entry.timestamp for entry in columns.entries(payload, 0, 0, 0, given_times)] == expected
    assert columns.view(payload, 0, 0, 0, given_times)["timestamp"].to_pylist() == expected


def test_times_survive_to_the_microsecond() -> None:
    """A timestamp is the same in a block, an entry and a table."""
    when = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
    payload = columns.from_records([Record(b"a")])
    assert columns.entries(payload, 0, 0, 0, micros(when))[0].timestamp == when
    assert columns.view(payload, 0, 0, 0, micros(when))["timestamp"][0].as_py() == when
