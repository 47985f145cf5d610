"""The contract of a log: many records in one call, from a list or from columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog import limits
from oncelog.connect import Database
from oncelog.errors import AppendErrors, IdConflict, InvalidArgument, PartialOverlap
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.testing.logs.fixtures import FULL, LogContractFixtures, append, duplicate_of, place, places, table, values
from oncelog.types import Ack, Record


class ManyContract(LogContractFixtures):
    """Many records in one call: each decided on its own, or all as one."""

    def test_append_many_decides_each_record(self, log: Log, writer: Writer) -> None:
        """Known, new and nameless records in one call: each gets its own answer, in order."""
        known = writer.append(b"a", id="a")
        records = [Record(b"n"), Record(b"a", id="a"), Record(b"b", id="b"), Record(b"n"), Record(b"b", id="b")]
        acks = writer.append_many(records)
        assert [(ack.position, ack.duplicate) for ack in acks] == [
            (1, False), (0, True), (2, False), (3, False), (2, True),
        ]  # fmt: skip
        assert acks[1] == duplicate_of(known)
        assert acks[4] == duplicate_of(acks[2])
        assert [place(ack) for ack in (acks[1], acks[0], acks[2], acks[3])] == places(log)

    def test_append_many_settles_every_record_then_tells_which_were_refused(self, log: Log, writer: Writer) -> None:
        """Bad records and conflicts do not keep the others out, and each has its own result."""
        bad: Any = "text"
        records = [Record(b"1", id="1"), Record(bad, id="2"), Record(b"x", id="1"), Record(b"3", id="3"), Record(b"4")]
        with pytest.raises(AppendErrors, match="2 of 5") as refused:
            writer.append_many(records)
        results = refused.value.results
        kinds = (Ack, InvalidArgument, IdConflict, Ack, Ack)
        assert all(map(isinstance, results, kinds)), results
        assert [result.position for result in results if isinstance(result, Ack)] == [0, 1, 2]
        assert values(log) == [b"1", b"3", b"4"]

    def test_nothing_to_append(self, log: Log, writer: Writer) -> None:
        """No records are no error, and leave nothing."""
        assert writer.append_many([]) == []
        assert writer.append_batch([]) == []
        assert writer.append_arrow(table()).positions.tolist() == []
        assert values(log) == []

    def test_more_than_fits_a_block(self, database: Database) -> None:
        """Large calls are cut into blocks; order, answers and retries do not notice."""
        log = database.log("cut", LogSettings(block_records=7, block_bytes=limits.KIB), create=True)
        records = [Record(b"%d" % number * (number % 50 + 1), id=str(number)) for number in range(100)]
        with log.writer() as writer:
            acks = writer.append_many(records)
            assert [place(ack) for ack in acks] == places(log)
            assert writer.append_many(records) == [duplicate_of(ack) for ack in acks]
            assert writer.append_arrow(table(*records)).duplicates.all()
        assert values(log) == [record.value for record in records]

    def test_a_batch_is_written_whole_and_recognised_whole(self, log: Log, writer: Writer) -> None:
        """All new: written. Exactly the stored one: its original acks."""
        batch = [Record(b"%d" % number, id=str(number)) for number in range(5)]
        acks = writer.append_batch(batch)
        writer.append(b"between", id="between")
        assert writer.append_batch(batch) == [duplicate_of(ack) for ack in acks]
        assert [place(ack) for ack in acks] == places(log)[:5]
        assert values(log) == [record.value for record in batch] + [b"between"]

    def test_a_batch_that_overlaps_is_refused_whole(self, log: Log, writer: Writer) -> None:
        """Neither stored exactly so nor all new: refused, naming what is known, and nothing is written."""
        a, b, c = (Record(id.encode(), id=id) for id in "abc")
        writer.append_batch([a, b])
        for mixed, known, new in (
            ([a, c], ("a",), ("c",)),
            ([c, b], ("b",), ("c",)),
            ([a], ("a",), ()),
            ([b, a], ("b", "a"), ()),
            ([a, b, c], ("a", "b"), ("c",)),
        ):
            with pytest.raises(PartialOverlap) as refused:
                writer.append_batch(mixed)
            assert (refused.value.known, refused.value.new) == (known, new)
        assert values(log) == [b"a", b"b"]
        assert not writer.append(b"c", id="c").duplicate

    def test_a_batch_that_cannot_be_one_is_refused(self, database: Database) -> None:
        """A repeated id, ids on some records only, more ids than the window keeps: nothing is written."""
        log = database.log("small", LogSettings(window=Window(max_keys=3)), create=True)
        with log.writer() as writer:
            for bad in (
                [Record(b"1", id="a"), Record(b"2", id="b"), Record(b"1", id="a")],
                [Record(b"1", id="a"), Record(b"2")],
                [Record(b"1"), Record(b"2", id="a")],
                [Record(b"%d" % number, id=str(number)) for number in range(4)],
            ):
                with pytest.raises(InvalidArgument):
                    writer.append_batch(bad)
            assert values(log) == []
            assert len(writer.append_batch([Record(b"v")] * 4)) == len(values(log))


class ArrowContract(LogContractFixtures):
    """Columns in, columns out."""

    def test_columns_are_records(self, log: Log, writer: Writer) -> None:
        """Rows are stored as the records they spell, and a retry by record is recognised."""
        acks = writer.append_arrow(table(FULL, Record(b"bare"), Record(b"2", id="2")))
        assert acks.positions.dtype == np.int64
        assert acks.positions.tolist() == [0, 1, 2]
        assert [column.tolist() for column in (acks.duplicates, acks.conflicts)] == [[False] * 3] * 2
        assert [entry.headers for entry in log.read()] == [FULL.headers, None, None]
        assert append(writer, FULL).duplicate
        assert writer.append(b"2", id="2").duplicate

    def test_rows_are_decided_one_by_one(self, log: Log, writer: Writer) -> None:
        """Known rows, new rows, nameless rows and rows that repeat one above them."""
        writer.append(b"a", id="a")
        rows = [Record(b"n"), Record(b"a", id="a"), Record(b"b", id="b"), Record(b"n"), Record(b"b", id="b")]
        acks = writer.append_arrow(table(*rows))
        assert acks.positions.tolist() == [1, 0, 2, 3, 2]
        assert acks.duplicates.tolist() == [False, True, False, False, True]
        assert values(log) == [b"a", b"n", b"b", b"n"]

    def test_a_row_in_conflict_does_not_keep_the_others_out(self, log: Log, writer: Writer) -> None:
        """Conflicts are raised after every other row is stored, with a result for each row."""
        writer.append(b"a", id="a")
        with pytest.raises(AppendErrors) as refused:
            writer.append_arrow(table(Record(b"x", id="a"), Record(b"b", id="b")))
        conflict, ack = refused.value.results
        assert isinstance(conflict, IdConflict)
        assert [place(ack)] == places(log)[1:]
        assert values(log) == [b"a", b"b"]

    @pytest.mark.parametrize("library", ["pandas", "polars"])
    def test_frames_go_in_and_come_out(self, log: Log, writer: Writer, library: str) -> None:
        """A frame of pandas or polars is a table; what is read as a frame can be appended again, and is known."""
        frames = pytest.importorskip(library)
        frame = frames.DataFrame({"value": [b"1", b"2", b"3"], "id": ["1", "2", None], "type": ["t", None, "u"]})
        assert writer.append_arrow(frame).positions.tolist() == [0, 1, 2]
        writer.append(b"4", id="4", headers={"h": b"x"})
        found = getattr(log.read(1), f"to_{library}")()
        assert isinstance(found, frames.DataFrame)
        assert list(found["position"]) == [1, 2, 3]
        assert list(found["value"]) == [b"2", b"3", b"4"]
        assert found["timestamp"][0] == next(iter(log.read(1))).timestamp
        named = found.dropna(subset=["id"]) if library == "pandas" else found.drop_nulls("id")
        again = writer.append_arrow(named[["value", "id", "type", "headers"]])
        assert again.positions.tolist() == [1, 3]
        assert again.duplicates.all()
        empty = getattr(log.read(limit=0), f"to_{library}")()
        assert (len(empty), list(empty.columns)) == (0, list(found.columns))

    @pytest.mark.parametrize(
        "columns",
        [
            {"value": pa.array([b"1", b"2"], pa.large_binary()), "id": pa.array(["1", "2"], pa.large_string())},
            {"value": pa.array([b"1", b"2"]), "id": pa.array(["1", "2"]).dictionary_encode()},
            {"id": pa.array(["1", "2"]), "value": pa.chunked_array([[b"1"], [b"2"]])},
            {"value": pa.array([b"0", b"1", b"2"])[1:], "id": pa.array(["0", "1", "2"])[1:]},
            {"value": pa.array(["1", "2"]), "id": pa.array(["1", "2"], pa.string_view())},
            {"value": pa.array(["1", "2"], pa.large_string()), "id": pa.array(["1", "2"])},
        ],
    )
    def test_types_that_mean_the_same(self, log: Log, writer: Writer, columns: dict[str, Any]) -> None:
        """Large, chunked, sliced and dictionary columns are as good as plain ones; texts are values, too."""
        assert writer.append_arrow(pa.table(columns)).positions.tolist() == [0, 1]
        assert [(entry.id, entry.value) for entry in log.read()] == [("1", b"1"), ("2", b"2")]

    @pytest.mark.parametrize(
        "columns",
        [
            {"id": ["1", "2"]},
            {"value": [b"1", None]},
            {"value": [1, 2]},
            {"value": [b"1", b"2"], "colour": ["red", "blue"]},
            {"value": [b"1", b"2"], "id": [1, 2]},
            {"value": [b"1", b"2"], "id": ["1", ""]},
            {"value": [b"1", b"2"], "id": ["1", "x" * 256]},
            {"value": [b"1", b"2"], "tenant": ["1", "x" * 2000]},
            {"value": [b"1", b"2"], "headers": [b"1", b"2"]},
        ],
        ids=str,
    )
    def test_a_table_with_a_fault_is_refused_whole(self, log: Log, writer: Writer, columns: dict[str, Any]) -> None:
        """One bad column or row: a clear error, and nothing of the table is written."""
        with pytest.raises(InvalidArgument):
            writer.append_arrow(pa.table(columns))
        assert values(log) == []

    def test_what_is_not_a_table(self, writer: Writer) -> None:
        """Something else than a table is refused by name."""
        rows: Any = [{"value": b"1"}]
        with pytest.raises(InvalidArgument, match="list"):
            writer.append_arrow(rows)
