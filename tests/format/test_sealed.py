"""Files that are made to be adopted, and the identities beside them: lean, quick to make, and read as any other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import CorruptionError
from oncelog.format import sealed
from oncelog.format.identities import Identities
from oncelog.format.payload import columns, intake
from oncelog.types import Record

NOISE = np.random.default_rng(7)


@pytest.mark.parametrize("names", [["id"], ["id", "stream", "headers", "type", "tenant", "producer", "sequence"], []])
def test_columns_that_nobody_has_need_not_be_there(names: list[str]) -> None:
    """A file with the columns that were given alone says the same as one with all of them."""
    given = [Record(b"a", id="1"), Record(b"b", id="2")] if "id" in names else [Record(b"a")]
    payload = columns.from_records(given)
    schema = sealed.staged_schema(names)
    data = sealed.encode([sealed.to_staged(payload, schema)], schema)
    assert set(pq.read_schema(pa.BufferReader(data)).names) == {"value", *names}
    (piece,) = sealed.SealedFile(data, "lean").pieces(0, payload.num_rows)
    assert piece.payload.equals(payload)


def _how(data: pa.Buffer) -> dict[str, str]:
    """Return how each column of a file is compressed."""
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    return {group.column(at).path_in_schema: group.column(at).compression for at in range(group.num_columns)}


def _sealed(batches: list[pa.RecordBatch]) -> pa.Buffer:
    times = [np.full(batch.num_rows, 7, np.int64) for batch in batches]
    return sealed.encode(sealed.to_table(batch, time, time) for batch, time in zip(batches, times, strict=True))


def test_what_does_not_shrink_is_not_compressed() -> None:
    """Noise goes in as it is, and what repeats is compressed, column by column, also behind a slice."""
    noise = pa.array([NOISE.bytes(100) for _ in range(2000)], pa.binary())
    ids = pa.array([f"order-{number:020d}" for number in range(2000)])
    for value, id in ((noise, ids), (ids.cast(pa.binary()), ids)):
        payload = intake.normalise(pa.table({"value": value, "id": id})).slice(500)
        staged = sealed.encode([sealed.to_staged(payload)], sealed.STAGED_SCHEMA)
        for data, codec in ((staged, "SNAPPY"), (_sealed([payload]), "ZSTD")):
            how = _how(data)
            assert (how["value"], how["id"]) == ("UNCOMPRESSED" if value is noise else codec, codec)
            (piece,) = sealed.SealedFile(data, "sliced").pieces(0, 1500)
            assert piece.payload.select(payload.schema.names).equals(payload)


def test_what_shrinks_in_one_place_is_compressed() -> None:
    """A file whose first records are noise, and whose last ones are not, is compressed; so are records that came one by
    one, of which none shrinks alone.
    """
    noise = pa.array([NOISE.bytes(100) for _ in range(1500)] + [b"said and done"] * 1000, pa.binary())
    assert _how(_sealed([intake.normalise(pa.table({"value": noise}))]))["value"] == "ZSTD"
    orders = [columns.from_records([Record(b'{"order": %d, "state": "paid"}' % number)]) for number in range(200)]
    assert _how(_sealed(orders))["value"] == "ZSTD"


@pytest.mark.parametrize("names", [["value"], ["value", "id"], ["position"], []])
def test_columns_that_nobody_asked_for_are_not_read(names: list[str]) -> None:
    """Who names columns gets these and the times of the rows: to decode what is dropped again takes time. How many rows
    there are is known also if no column is left.
    """
    payload = columns.from_records([Record(b"a", id="1"), Record(b"b", id="2")], [True, False])
    for data in (_sealed([payload]), sealed.encode([sealed.to_staged(payload)], sealed.STAGED_SCHEMA)):
        (piece,) = sealed.SealedFile(data, "named").pieces(0, 2, names)
        assert piece.payload.num_rows == 2
        assert piece.payload.schema.names == ([name for name in names if name != "position"] or ["start"])
        assert piece.uptimes_us is None
    (piece,) = sealed.SealedFile(_sealed([payload]), "named").pieces(0, 2, names)
    assert piece.timestamps_us is not None
    assert piece.timestamps_us.tolist() == [7, 7]


@pytest.mark.parametrize("times", [pa.nulls(3), pa.array([1.5, 2.5, 3.5]).cast(pa.float32()), pa.array(["a"] * 3)])
def test_times_of_another_type_are_damage(times: pa.Array) -> None:
    """They are read by their bytes, which would be taken for whatever they are not."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"timestamp": times, "value": pa.array([b"v"] * 3)}), sink)
    with pytest.raises(CorruptionError, match="do not make sense"):
        list(sealed.SealedFile(sink.getvalue(), "strange").pieces(0, 3))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), max_size=40))
def test_identities_are_in_order(parts: list[tuple[int, int, int]]) -> None:
    """By high halves, then low, then rows; also where high halves differ in their last bits alone, or not at all."""
    high = np.array([(leading << 62) + last for leading, last, _ in parts], np.uint64)
    keys = np.stack([high, np.array([low for *_, low in parts], np.uint64)], axis=1)
    rows = np.arange(len(parts), dtype=np.uint32)
    found = Identities.sorted(keys, rows.astype(np.uint64), rows)
    wanted = sorted(zip(high.tolist(), keys[:, 1].tolist(), rows.tolist(), strict=True))
    assert list(zip(found.high.tolist(), found.low.tolist(), found.rows.tolist(), strict=True)) == wanted
    assert found.fingerprints.tolist() == found.rows.tolist()
