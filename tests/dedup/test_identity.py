"""Identities, fingerprints and content ids: the same for one and for many, and never to change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.dedup.content import content_id, content_ids
from oncelog.dedup.fingerprint import LINEAGE
from oncelog.dedup.identity import Hasher
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.types import Record

HASHER = Hasher(bytes(range(32)))
QUICK = settings(max_examples=40, deadline=None)
TYPES = {
    "value": pa.binary(),
    "id": pa.string(),
    "stream": pa.string(),
    "type": pa.string(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "producer": pa.string(),
    "sequence": pa.int64(),
    "tenant": pa.string(),
}
EDGES = [
    0,
    1,
    2,
    3,
    61,
    62,
    63,
    64,
    124,
    125,
    126,
    127,
    252,
    253,
    990,
    991,
    992,
    993,
    1007,
    1008,
    1009,
    1010,
    4157,
    4158,
    4159,
    5000,
]


def sized(alphabet: str) -> st.SearchStrategy[str]:
    """Return strings of lengths around every border of the hash, and short ones of any characters."""
    stretched = st.builds(
        lambda size, letters: (letters * size)[:size], st.sampled_from(EDGES), st.text(alphabet, min_size=1)
    )
    return st.one_of(st.text(max_size=40), stretched)


labels = st.none() | sized("ab")
records = st.builds(
    Record,
    value=sized("ab\0").map(str.encode),
    id=labels,
    stream=labels,
    type=labels,
    headers=st.none()
    | st.dictionaries(st.text(max_size=3) | st.sampled_from(LINEAGE), st.binary(max_size=3), max_size=4),
    producer=labels,
    sequence=st.none() | st.integers(-(2**63), 2**63 - 1),
    tenant=labels,
)


def column(rows: Sequence[Record], name: str) -> pa.Array:
    """Return one field of records as a column."""
    cells: list[Any] = [getattr(row, name) for row in rows]
    if name == "headers":
        cells = [None if cell is None else list(cell.items()) for cell in cells]
    return pa.array(cells, TYPES[name])


def batch(rows: Sequence[Record], names: Sequence[str] = tuple(TYPES)) -> pa.RecordBatch:
    """Return records as a payload, cut out of a larger one, so that its arrays have an offset."""
    odd = Record(b"odd", "i", "s", "t", {"name": b"value"}, "p", 3, "n")
    whole = [odd, *rows, odd]
    return pa.RecordBatch.from_arrays([column(whole, name) for name in names], names=list(names))[1:-1]


@QUICK
@given(st.lists(st.tuples(sized("aé"), sized("b漢")), max_size=20))
def test_identities_are_the_same_one_by_one(pairs: list[tuple[str, str]]) -> None:
    """A record appended alone is known when it comes again in a batch, whatever its length and characters."""
    scopes, ids = [scope for scope, _ in pairs], [id for _, id in pairs]
    odd = pa.array(["odd", *scopes, "odd"])[1:-1], pa.array(["o", *ids])[1:]
    expected = [list(HASHER.identity(scope, id)) for scope, id in pairs]
    assert HASHER.identities(*odd).tolist() == expected
    assert HASHER.identities(odd[0].cast(pa.large_string()), odd[1].dictionary_encode()).tolist() == expected


@QUICK
@given(st.lists(sized("b漢"), max_size=20))
def test_no_scope_is_the_empty_scope(ids: list[str]) -> None:
    """A plain log and a scope of no characters agree."""
    expected = [list(HASHER.identity("", id)) for id in ids]
    assert HASHER.identities(None, pa.array(ids, pa.string())).tolist() == expected
    assert HASHER.identities(pa.array([""] * len(ids), pa.string()), pa.array(ids, pa.string())).tolist() == expected


@QUICK
@given(st.lists(records, max_size=20))
def test_fingerprints_are_the_same_one_by_one(rows: list[Record]) -> None:
    """A retry by another call is no conflict: the fingerprint depends on the content alone."""
    assert HASHER.fingerprints(batch(rows)).tolist() == [HASHER.fingerprint(row) for row in rows]


@QUICK
@given(st.lists(records, max_size=8), st.sets(st.sampled_from(list(TYPES)[1:])))
def test_absent_columns_are_null_ones(rows: list[Record], absent: set[str]) -> None:
    """A payload without a column and one in which it is null are the same content."""
    emptied = [msgspec.structs.replace(row, **dict.fromkeys(absent)) for row in rows]
    names = [name for name in TYPES if name not in absent]
    expected = [HASHER.fingerprint(row) for row in emptied]
    assert HASHER.fingerprints(batch(emptied)).tolist() == expected
    assert HASHER.fingerprints(batch(emptied, names)).tolist() == expected
    ids = [content_id("log", row) for row in emptied]
    assert content_ids("log", batch(emptied)).to_pylist() == ids
    assert content_ids("log", batch(emptied, names)).to_pylist() == ids


@QUICK
@given(records, records)
def test_different_content_has_another_fingerprint(one: Record, other: Record) -> None:
    """The same id with other content is seen to be a conflict, and a content id tells contents apart."""
    contents = [[getattr(row, name) for name in TYPES if name != "id"] for row in (one, other)]
    same = contents[0] == contents[1]
    assert (HASHER.fingerprint(one) == HASHER.fingerprint(other)) == same
    assert (content_id("log", one) == content_id("log", other)) == same


def test_large_batches_are_hashed_in_chunks() -> None:
    """What a row gets does not depend on where in which batch it stands."""
    rows = [
        Record(b"v" * (number % 300), id=f"id-{number}" * (number % 9), stream="s" * (number % 5))
        for number in range(9000)
    ]
    payload = batch(rows)
    identities, fingerprints = (
        HASHER.identities(payload.column("stream"), payload.column("id")),
        HASHER.fingerprints(payload),
    )
    for number in range(0, 9000, 97):
        row = rows[number]
        assert tuple(identities[number].tolist()) == HASHER.identity(row.stream or "", row.id or "")
        assert int(fingerprints[number]) == HASHER.fingerprint(row)
    assert len(np.unique(identities, axis=0)) == len({(row.stream, row.id) for row in rows})


def test_where_a_field_ends_counts() -> None:
    """Lengths are part of every hash: ("ab", "c") is not ("a", "bc"), and a zero byte is not the end."""
    assert HASHER.identity("ab", "c") != HASHER.identity("a", "bc")
    assert HASHER.identity("", "a") != HASHER.identity("", "a\0")
    assert HASHER.identity("a", "") != HASHER.identity("", "a")
    ends = [
        Record(b"a"),
        Record(b"a\0"),
        Record(b"a", stream=""),
        Record(b"a", type=""),
        Record(b"a", headers={}),
        Record(b"a", headers={"": b""}),
        Record(b"a", sequence=0),
        Record(b"", stream="a"),
        Record(b"", type="a"),
    ]
    assert len({HASHER.fingerprint(row) for row in ends}) == len(ends)
    assert len({content_id("log", row) for row in ends}) == len(ends)


def test_order_of_headers_does_not_count() -> None:
    """Headers are a mapping: a client that sends them in another order retries the same record."""
    one, other = Record(b"v", headers={"a": b"1", "b": b"2"}), Record(b"v", headers={"b": b"2", "a": b"1"})
    swapped = Record(b"v", headers={"a": b"2", "b": b"1"})
    fingerprints = HASHER.fingerprints(batch([one, other, swapped])).tolist()
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    ids = content_ids("log", batch([one, other, swapped])).to_pylist()
    assert ids[0] == ids[1] != ids[2]


def test_lineage_is_no_content() -> None:
    """The same row out of another file is a retry, also when the first time its file was not asked for."""
    bare, wide = Record(b"v"), Record(b"v", headers={"a": b"1"})
    placed = Record(b"v", headers={"oncelog.file": b"x.json", "oncelog.line": b"7", "oncelog.batch": b"0"})
    elsewhere = Record(b"v", headers={"oncelog.file": b"y.json"})
    both = Record(b"v", headers={"oncelog.line": b"9", "a": b"1"})
    other = Record(b"v", headers={"oncelog.files": b"x.json"})
    rows = [bare, placed, elsewhere, wide, both, Record(b"v", headers={}), other]
    found = HASHER.fingerprints(batch(rows)).tolist()
    assert found == [HASHER.fingerprint(row) for row in rows]
    assert found[0] == found[1] == found[2] != found[3] == found[4]
    assert len(set(found)) == 4
    ids = content_ids("log", batch(rows)).to_pylist()
    assert ids == [content_id("log", row) for row in rows]
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4]


def test_nulls_that_hide_bytes_are_nulls() -> None:
    """Arrow may leave anything behind a null: it is not content."""
    plain = pa.array(["hidden", "b"], pa.string())
    masked = pa.StringArray.from_buffers(2, plain.buffers()[1], plain.buffers()[2], pa.py_buffer(b"\x02"))
    headers = pa.array([[("name", b"value")], [("b", b"c")]], TYPES["headers"])
    hidden = pa.MapArray.from_buffers(
        headers.type,
        2,
        [pa.py_buffer(b"\x02"), headers.buffers()[1]],
        children=[
            pa.StructArray.from_arrays(
                [headers.keys, headers.items], fields=[headers.type.key_field, headers.type.item_field]
            )
        ],
    )
    payload = pa.RecordBatch.from_arrays([pa.array([b"v", b"v"]), masked, hidden], names=["value", "stream", "headers"])
    rows = [Record(b"v"), Record(b"v", stream="b", headers={"b": b"c"})]
    assert HASHER.fingerprints(payload).tolist() == [HASHER.fingerprint(row) for row in rows]
    assert len(HASHER.identities(None, masked)) == 2


def test_long_values_are_told_apart() -> None:
    """Values beyond what is hashed limb by limb differ by any of their bytes, and by their length."""
    base = bytes(200_000)
    values = [base, base + b"\0", b"\1" + base[1:], base[:-1] + b"\1", base[:100_000], base[:4159], base[:4158]]
    fingerprints = [HASHER.fingerprint(Record(value)) for value in values]
    assert len(set(fingerprints)) == len(values)
    assert HASHER.fingerprints(batch([Record(value) for value in values])).tolist() == fingerprints


def test_no_collisions_among_similar_ids() -> None:
    """Counters and permutations, the ids people make, do not collide, in any of the four words of an identity."""
    ids = pa.array([f"order-{number:07d}" for number in range(50_000)])
    words = HASHER.identities(None, ids).view(np.uint32)
    assert all(len(np.unique(words[:, word])) > 49_900 for word in range(4))
    payload = pa.RecordBatch.from_arrays([ids.cast(pa.binary())], names=["value"])
    assert len(np.unique(HASHER.fingerprints(payload))) == 50_000


def test_a_secret_makes_other_hashes() -> None:
    """Who does not know the secret cannot compute an identity."""
    other = Hasher(bytes(32))
    assert other.identity("", "id") != HASHER.identity("", "id")
    assert other.fingerprint(Record(b"v")) != HASHER.fingerprint(Record(b"v"))
    assert content_id("one", Record(b"v")) != content_id("two", Record(b"v"))
    with pytest.raises(InvalidArgument):
        Hasher(b"short")


@QUICK
@given(sized("b漢"), sized("ab\0").map(str.encode))
def test_id_and_value_together_hash_as_apart(id: str, value: bytes) -> None:
    """What is appended alone is hashed in one go, and known by what it is known by otherwise."""
    expected = (*HASHER.identity("", id), HASHER.fingerprint(Record(value, id=id)))
    assert HASHER.both(id.encode(), value) == expected


def test_threads_that_hash_at_once_do_not_share_memory() -> None:
    """While one product is being made, numpy may let other threads run: each multiplies in memory of its own."""
    hasher = Hasher(bytes(32))
    expected = {id: hasher.both(id, b"value") for id in (b"one", b"two")}
    (products,) = hasher._short.values()
    multiply = products[0].multiply
    inside: list[tuple[int, int, int]] = []

    def interrupted(*given: Any) -> Any:
        inside.append(hasher.both(b"two", b"value"))
        return multiply(*given)

    products[0].multiply = interrupted
    assert hasher.both(b"one", b"value") == expected[b"one"]
    assert inside == [expected[b"two"]]
    assert len(products) == 2


def test_hashing_many_sizes_one_by_one_keeps_little() -> None:
    """Coefficients are kept for sizes that come again, not for every pair of sizes there can be."""
    hasher = Hasher(bytes(32))
    for size in range(1, 201):
        for value_bytes in (0, 2, 200):
            hasher.both(bytes(size), bytes(value_bytes))
    kept = hasher._short.values()
    assert 0 < len(kept) <= 256


def test_other_byte_orders_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There one record and many would get different identities, and an id could be stored twice."""
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(Unsupported, match="little-endian"):
        Hasher(bytes(32))
