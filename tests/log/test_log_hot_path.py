"""Hot paths stay hot: Python function calls are counted, nothing is clocked, so a busy machine changes no verdict."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import oncelog
from oncelog import LogSettings, Record, Window
from oncelog.errors import CorruptionError
from oncelog.format import block
from oncelog.log.log import Log
from oncelog.log.writer import Writer

KEYS = 30_000
CALLS_PER_ROW_MAX = 0.1
"""Work is done in chunks of a few thousand rows, each some eighty calls."""

CONTENT_CALLS_PER_ROW_MAX = 5
"""Content ids are the exception that is known: one BLAKE2b a row, through ``hashlib``."""

APPEND_CALLS_MAX = 80
"""Before the device begins, and after it has ended: these the caller waits for."""

APPEND_HIDDEN_CALLS_MAX = 18
"""While the device works: the ack, a look whether the file is still the one of its name, what is to be published."""

SUBMIT_CALLS_MAX = 19


@pytest.fixture(params=["explicit", "content", "off"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """Return a log on the disk, one block for any table here."""
    kept = Window(max_keys=KEYS)
    settings = LogSettings(idempotence=request.param, window=kept, block_records=100_000, block_bytes=32 << 20)
    with oncelog.connect(tmp_path.as_uri()) as db:
        yield db.log("hot", settings, create=True)


def names_during(work: Callable[[], object]) -> list[str]:
    """Return the functions, of Python and of C, that this thread calls while it works."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(getattr(argument, "__name__", ""))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names


def calls_during(work: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, this thread calls while it works."""
    return len(names_during(work))


def table(log: Log, first: int, rows: int) -> pa.RecordBatch:
    """Return rows that differ from those with any other number."""
    numbers = np.arange(first, first + rows)
    columns = {"value": pa.array([b"%0100d" % number for number in numbers.tolist()], pa.binary())}
    if log.settings.idempotence == "explicit":
        columns["id"] = pa.array([f"order-{number:026d}" for number in numbers.tolist()])
    return pa.record_batch(columns)


def allowed_per_row(log: Log) -> float:
    """Return how many calls a row may cost."""
    return CONTENT_CALLS_PER_ROW_MAX if log.settings.idempotence == "content" else CALLS_PER_ROW_MAX


def calls_per_extra_row(work: Callable[[int], Callable[[], object]]) -> float:
    """Return the calls that 10,000 rows more cost, per row."""
    for _ in range(3 * KEYS // 20_000):
        work(20_000)()  # until the window is as large as it will be
    few, many = (min(calls_during(work(rows)) for _ in range(3)) for rows in (10_000, 20_000))  # one may meet upkeep
    return (many - few) / 10_000


def test_append_arrow_calls_nothing_per_row(log: Log) -> None:
    """A loop over rows on the columnar path would make it ten times slower, and every other test would still pass."""
    next_row = 0

    def appending(writer: Writer, rows: int) -> Callable[[], object]:
        nonlocal next_row
        batch = table(log, next_row, rows)
        next_row += rows
        return lambda: writer.append_arrow(batch)

    with log.writer() as writer:
        calls = calls_per_extra_row(lambda rows: appending(writer, rows))
    assert calls < allowed_per_row(log), f"{calls} calls a row"


def test_append_many_calls_nothing_per_record(log: Log) -> None:
    """Records are taken in, decided and answered as columns, as long as there is nothing to refuse."""
    explicit = log.settings.idempotence == "explicit"
    numbers = itertools.count()

    def appending(writer: Writer, rows: int) -> Callable[[], object]:
        chosen = itertools.islice(numbers, rows)
        records = [Record(b"%0100d" % number, id=f"order-{number}" if explicit else None) for number in chosen]
        return lambda: writer.append_many(records)

    with log.writer() as writer:
        calls = calls_per_extra_row(lambda rows: appending(writer, rows))
    assert calls < allowed_per_row(log), f"{calls} calls a record"


def test_retries_in_columns_call_nothing_per_row(log: Log) -> None:
    """A duplicate is looked up, compared and answered as a column too."""
    with log.writer() as writer:
        batch = table(log, 0, 20_000)
        writer.append_arrow(batch)
        calls = calls_per_extra_row(lambda rows: lambda: writer.append_arrow(batch.slice(0, rows)))
    assert calls < allowed_per_row(log), f"{calls} calls a row"


@pytest.mark.parametrize("log", ["explicit"], indirect=True)
def test_retries_among_many_call_nothing_per_record(log: Log) -> None:
    """One known record among thousands must not have all of them answered one by one."""
    records = [Record(b"%0100d" % number, id=f"order-{number}") for number in range(20_000)]
    with log.writer() as writer:
        writer.append_many(records[::2])
        writer.append_many(records)
        calls = calls_per_extra_row(lambda rows: lambda: writer.append_many(records[:rows]))
    assert calls < CALLS_PER_ROW_MAX, f"{calls} calls a record"


def test_read_arrow_calls_nothing_per_row(log: Log) -> None:
    """Columns are handed on as they lie in the file."""
    with log.writer() as writer:
        writer.append_arrow(table(log, 0, 10_000))
        few = calls_during(lambda: [batch.num_rows for batch in log.read_arrow()])
        writer.append_arrow(table(log, 10_000, 50_000))
        more = calls_during(lambda: [batch.num_rows for batch in log.read_arrow()])
    assert (more - few) / 50_000 < CALLS_PER_ROW_MAX, f"{few} calls for one block, {more} for two"


@pytest.mark.parametrize("log", ["explicit"], indirect=True)
def test_a_block_is_summed_up_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summing up is most of the work of reading: what was found whole stays whole, also while the log grows."""
    summed_bytes = 0

    def note(data: memoryview | bytes) -> int:
        nonlocal summed_bytes
        summed_bytes += len(data)
        return xxhash.xxh3_64_intdigest(data)

    monkeypatch.setattr(block, "xxhash", SimpleNamespace(xxh3_64_intdigest=note, xxh3_64=xxhash.xxh3_64))

    def summed_by_reading() -> int:
        before = summed_bytes
        assert sum(batch.num_rows for batch in log.read_arrow()) == rows
        return summed_bytes - before

    with log.writer() as writer:
        rows = 0
        for _ in range(3):
            writer.append_arrow(table(log, rows, 10_000))
            rows += 10_000
            assert 1_000_000 < summed_by_reading() < 2_000_000
            assert summed_by_reading() < 10_000


@pytest.mark.parametrize("log", ["explicit"], indirect=True)
def test_damage_behind_a_reader_is_found_before_it_spreads(log: Log, tmp_path: Path) -> None:
    """Readers trust what was whole when it was first read; verifying and sealing look at every byte again."""
    with log.writer() as writer:
        writer.append_arrow(table(log, 0, 10_000))
    assert sum(batch.num_rows for batch in log.read_arrow()) == 10_000
    (path,) = (path for path in tmp_path.rglob("*.blocks") if path.stat().st_size > 1_000_000)
    with path.open("r+b") as file:
        file.seek(500_000)
        (byte,) = file.read(1)
        file.seek(500_000)
        file.write(bytes([byte ^ 1]))
    assert log.verify().findings
    with pytest.raises(CorruptionError):
        log.seal()


@pytest.mark.parametrize("log", ["explicit"], indirect=True)
def test_one_append_makes_few_calls(log: Log) -> None:
    """A single append costs little more than its sync: what is called around it is counted out."""
    with log.writer() as writer:
        for number in range(50):
            writer.append(b"x" * 100, id=f"warm-{number}")
        calls = min(
            (
                names_during(lambda number=number: writer.append(b"x" * 100, id=f"{number}"))  # type: ignore[misc]
                for number in range(50)
            ),
            key=len,
        )
    hidden = calls.index("fdatasync") - calls.index("posix_fadvise") - 1
    assert hidden <= APPEND_HIDDEN_CALLS_MAX, f"{hidden} calls while the device works"
    assert len(calls) - hidden <= APPEND_CALLS_MAX, f"{len(calls) - hidden} calls that an append waits for"


@pytest.mark.parametrize("log", ["explicit"], indirect=True)
def test_one_submit_makes_few_calls(log: Log) -> None:
    """Submitting is what a thread does a hundred thousand times a second."""
    with log.writer() as writer:
        writer.submit(b"first", id="first").result()
        calls = min(
            calls_during(lambda number=number: writer.submit(b"x" * 100, id=f"{number}"))  # type: ignore[misc]
            for number in range(50)
        )
    assert calls <= SUBMIT_CALLS_MAX, f"{calls} calls a submit"


def test_what_was_submitted_is_decided_and_answered_without_a_call_each(log: Log) -> None:
    """Records that were submitted one by one become columns, and their futures are answered together."""
    explicit = log.settings.idempotence == "explicit"
    numbers = itertools.count()

    def storing(writer: Writer, rows: int) -> Callable[[], object]:
        for number in itertools.islice(numbers, rows):
            writer.submit(b"%0100d" % number, id=f"order-{number}" if explicit else None)
        return writer.flush

    with log.writer() as writer:
        writer.append(b"first")
        writer._committer.start_threads = lambda: None  # type: ignore[method-assign] # this thread stores
        calls = calls_per_extra_row(lambda rows: storing(writer, rows))
        del writer._committer.start_threads
    assert calls < CALLS_PER_ROW_MAX, f"{calls} calls a record"
