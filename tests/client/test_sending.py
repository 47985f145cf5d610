"""From records to frames: what a call of several frames says is true of all of them, and sequences have a name."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import AppendErrors, InvalidArgument, LogSettings, Record, Unavailable
from oncelog.client.frames_out import FRAME_RECORDS
from oncelog.client.sending import TABLE_ROWS
from oncelog.connect import Database
from tests.servers import Serving


def test_tables_of_sequences_without_a_producer_are_of_the_writer_that_sends_them(remote: Database) -> None:
    """Two programs that number their rows from the same number lose nothing to each other."""
    log = remote.log("orders", create=True)
    for name in (b"a", b"b"):
        with log.writer() as writer:
            table = pa.table({"value": [name + b"4", name + b"5"], "sequence": [4, 5]})
            writer.append(name + b"3", sequence=3)
            assert not writer.append_arrow(table).duplicates.any()
            assert writer.append_arrow(table).duplicates.all()
            assert writer.last_sequence == 5
    assert [entry.value for entry in log.read()] == [b"a3", b"a4", b"a5", b"b3", b"b4", b"b5"]


@pytest.mark.parametrize(
    "append",
    [
        lambda writer: writer.append_many([Record(b"x")] * (3 * FRAME_RECORDS), timeout_s=0.5),
        lambda writer: writer.append_arrow(pa.table({"value": [b"x"] * (2 * TABLE_ROWS)}), timeout_s=0.5),
    ],
    ids=["many", "arrow"],
)
def test_a_call_of_which_a_part_was_sent_is_not_called_unwritten(
    serve: Callable[..., Serving], append: Callable[[oncelog.Writer], object]
) -> None:
    """Without room for its last records, the first ones may be stored: who sent all again would double them."""
    server = serve()
    with oncelog.connect(f"oncelog://{server.grpc}") as db:
        log = db.log("orders", LogSettings(pending_records=2 * FRAME_RECORDS), create=True)
        with log.writer() as writer:
            server.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(Unavailable) as raised:
                    append(writer)
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert raised.value.outcome == "unknown"


def test_a_call_on_a_loop_is_taken_whole_or_not_at_all(remote: Database) -> None:
    """On a loop nothing waits for room. A call that is larger than what may be pending goes alone, as embedded."""
    log = remote.log("orders", LogSettings(pending_records=100), create=True)
    count = 2 * FRAME_RECORDS

    async def work(writer: oncelog.Writer) -> int:
        first = writer.submit_many([Record(b"first", id=f"f{n}") for n in range(count)])
        second = writer.submit_many([Record(b"second", id=f"s{n}") for n in range(count)])
        assert len(await first) == count
        found = (await asyncio.gather(second, return_exceptions=True))[0]
        await writer.submit_arrow(pa.table({"value": [b"third"] * (TABLE_ROWS + 1)}))
        if isinstance(found, Unavailable):
            assert found.outcome == "not written"
            return 0
        assert isinstance(found, list)  # it found the first answered already
        return len(found)

    with log.writer() as writer:
        taken = asyncio.run(work(writer))
    stored = Counter(entry.value for entry in log.read())
    assert stored == Counter({b"first": count, b"second": taken, b"third": TABLE_ROWS + 1})


@pytest.mark.parametrize(
    "append",
    [
        lambda w, given: w.append(b"new", sequence=given),
        lambda w, given: w.append_many([Record(b"new", sequence=given)]),
        lambda w, given: w.append_batch([Record(b"new", sequence=given)]),
        lambda w, given: w.append_arrow(pa.table({"value": [b"new"], "sequence": pa.array([given], pa.int64())})),
    ],
    ids=["append", "many", "batch", "arrow"],
)
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "given"])
def test_a_session_counts_its_sequences_or_is_given_all(
    remote: Database, append: Callable[[oncelog.Writer, int | None], object], *, counts: bool
) -> None:
    """A record with a sequence that was counted for another one would be taken for a retry of that, and be lost."""
    log = remote.log("orders", create=True)
    with log.writer(producer="importer") as writer:
        writer.append(b"first", sequence=None if counts else 0)
        with pytest.raises((InvalidArgument, AppendErrors), match="none may be given" if counts else "must carry one"):
            append(writer, 0 if counts else None)
        append(writer, None if counts else 1)
    assert [(entry.value, entry.sequence) for entry in log.read()] == [(b"first", 0), (b"new", 1)]


def test_a_mixture_of_sequences_in_one_call_is_refused(remote: Database) -> None:
    """Which of the records would get which sequence is a guess: none of them is sent, and a whole call goes on."""
    log = remote.log("orders", create=True)
    with log.writer(producer="importer") as writer:
        records = [Record(b"a"), Record(b"b", sequence=0)]
        with pytest.raises(AppendErrors) as errors:
            writer.append_many(records)
        assert all(isinstance(result, InvalidArgument) for result in errors.value.results)
        with pytest.raises(InvalidArgument, match="some of its records"):
            writer.append_batch(records)
        assert writer.append_many(records[:1])[0].position == 0
    assert [entry.value for entry in log.read()] == [b"a"]


@pytest.mark.parametrize("how", ["append", "append_many", "append_batch", "append_arrow"])
def test_counting_ends_at_the_highest_sequence_there_is(remote: Database, how: str) -> None:
    """A record that has no sequence left is refused at once; the writer goes on to be usable."""
    log = remote.log("orders", create=True)

    def append(writer: oncelog.Writer) -> None:
        table = pa.table({"value": [b"x"]})
        given: Any = {"append": b"x", "append_arrow": table}.get(how, [Record(b"x")])
        getattr(writer, how)(given)

    with log.writer(producer="p", initial_sequence=(1 << 63) - 1) as writer:
        append(writer)
        with pytest.raises((InvalidArgument, AppendErrors), match="highest sequence"):
            append(writer)
    assert [entry.sequence for entry in log.read()] == [(1 << 63) - 1]


@pytest.mark.parametrize("wrong", ["5", 1.5, True, 1 << 63])
def test_an_initial_sequence_that_is_none_is_refused(remote: Database, wrong: Any) -> None:
    """It is refused before the producer's name is taken, and the error names it."""
    log = remote.log("orders", create=True)
    with pytest.raises(InvalidArgument, match="sequence"):
        log.writer(producer="p", initial_sequence=wrong)
    with log.writer(producer="p", wait_s=0) as writer:
        assert not writer.append(b"x").duplicate
