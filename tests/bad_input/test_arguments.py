"""Times, places, limits, URLs and handles that cannot be are refused by name, and nothing is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import oncelog
from oncelog import (
    Closed,
    Database,
    InvalidArgument,
    LogSettings,
    NotFound,
    OncelogError,
    Record,
    Unavailable,
)
from oncelog.log.log import Log
from oncelog.log.read.scan import Start
from tests.bad_input.refusals import assert_unharmed, in_memory, refused

BAD_SECONDS = ["1", -1, math.nan, b"1", [1]]


@pytest.mark.parametrize("seconds", BAD_SECONDS)
def test_bad_seconds(log: Log, seconds: Any) -> None:
    """A time that is none is refused before anything is done."""
    refused(lambda: log.writer(wait_s=seconds), "wait_s")
    with log.tail() as entries:
        refused(lambda: entries.poll(seconds), "timeout_s")
    refused(lambda: log.read(lease_s=seconds), "lease_s")
    with log.writer() as writer:
        refused(lambda: writer.append(b"v", timeout_s=seconds), "timeout_s")
        refused(lambda: writer.submit(b"v", timeout_s=seconds), "timeout_s")
        refused(lambda: writer.append_many([Record(b"v")], timeout_s=seconds), "timeout_s")
        refused(lambda: writer.append_batch([Record(b"v")], timeout_s=seconds), "timeout_s")
        refused(lambda: writer.append_arrow(pa.table({"value": [b"v"]}), timeout_s=seconds), "timeout_s")
        refused(lambda: writer.flush(timeout_s=seconds), "timeout_s")


@pytest.mark.parametrize("seconds", [-1, -0.5, math.nan, "1", b"1"])
def test_a_close_with_bad_seconds_leaves_the_writer_open(log: Log, seconds: Any) -> None:
    """A close that was refused half way would keep the log locked until the process ends."""
    writer = log.writer()
    refused(partial(writer.close, timeout_s=seconds), "timeout_s")
    assert not writer.closed
    writer.close()
    log.writer(wait_s=0).close()


def test_for_ever_is_a_time(log: Log) -> None:
    """Infinity means to wait as long as it takes; so does ``None`` where no time at all may be given."""
    with log.writer(wait_s=math.inf) as writer:
        assert writer.append(b"before", id="before", timeout_s=math.inf).duplicate
        writer.flush(timeout_s=math.inf)
        writer.flush(timeout_s=None)
    with log.tail("earliest") as entries:
        found = entries.poll(math.inf)
        assert found is not None
        assert found.value == b"before"


@in_memory
@pytest.mark.parametrize("takeover", [None, "", "rude", 5])
def test_bad_takeover(log: Log, takeover: Any) -> None:
    """How a log is taken is one of two words."""
    refused(lambda: log.writer(takeover=takeover), "takeover", "'polite' or 'force'")


STARTS = "'earliest', 'latest', a position, (segment, entry) or a datetime"
BAD_STARTS: list[tuple[Any, type[OncelogError], str]] = [
    ("first", InvalidArgument, STARTS),
    ("", InvalidArgument, STARTS),
    (None, InvalidArgument, STARTS),
    (1.0, InvalidArgument, STARTS),
    (True, InvalidArgument, STARTS),
    (b"earliest", InvalidArgument, STARTS),
    ((0,), InvalidArgument, STARTS),
    ((0, 0, 0), InvalidArgument, STARTS),
    (("0", "0"), InvalidArgument, STARTS),
    ([0, 0], InvalidArgument, STARTS),
    (np.array([0, 0]), InvalidArgument, STARTS),
    (datetime(2024, 1, 1), InvalidArgument, "time zone"),  # noqa: DTZ001  what is tested
    (-1, InvalidArgument, "from 0"),
    (2, NotFound, "behind its end"),
    (2**63, NotFound, "behind its end"),
    (2**80, NotFound, "behind its end"),
    ((0, 1), NotFound, "no entry 1 in segment 0"),
    ((0, -1), NotFound, "no entry -1 in segment 0"),
    ((7, 0), NotFound, "no entry 0 in segment 7"),
    ((-1, 0), NotFound, "no entry 0 in segment -1"),
]


@in_memory
@pytest.mark.parametrize(("start", "error", "word"), BAD_STARTS, ids=[str(n) for n in range(len(BAD_STARTS))])
def test_bad_start(log: Log, start: Any, error: type[OncelogError], word: str) -> None:
    """A place that cannot be is told apart from one that is not there."""
    for call in (log.read, log.read_arrow, log.tail):
        refused(partial(call, start), word, error=error)


def test_places_at_the_very_end_are_there(log: Log) -> None:
    """The position behind the last record is where a reader that has read all goes on."""
    at_end: list[Start] = [1, np.int64(1), "latest", datetime(9999, 1, 1, tzinfo=UTC)]
    assert [list(log.read(start)) for start in at_end] == [[], [], [], []]
    at_first: list[Start] = [0, np.int64(0), (0, 0), "earliest", datetime(1, 1, 1, tzinfo=UTC)]
    assert [next(iter(log.read(start))).value for start in at_first] == [b"before"] * 5


@in_memory
@pytest.mark.parametrize("limit", [-1, 1.5, True, "1", math.nan])
def test_bad_limit(log: Log, limit: Any) -> None:
    """A limit is a count."""
    refused(lambda: log.read(limit=limit), "limit")
    refused(lambda: log.read_arrow(limit=limit), "limit")


@in_memory
@pytest.mark.parametrize(("columns", "word"), [(["colour"], "'colour'"), ("value", "'value'"), ([5], "5"), (5, "5")])
def test_bad_columns(log: Log, columns: Any, word: str) -> None:
    """A column that there is not is named, with those that there are."""
    refused(lambda: log.read_arrow(columns=columns), "column", word)


@in_memory
@pytest.mark.parametrize(
    ("before", "error", "word"),
    [
        (-1, InvalidArgument, "before"),
        ("1", InvalidArgument, "before"),
        (None, InvalidArgument, "before"),
        (1.5, InvalidArgument, "before"),
        (True, InvalidArgument, "before"),
        (2, NotFound, "ends at 1"),
    ],
)
def test_bad_truncation(log: Log, before: Any, error: type[OncelogError], word: str) -> None:
    """Nothing is removed for a position that is none."""
    refused(lambda: log.truncate(before), word, error=error)


@pytest.mark.parametrize(
    ("url", "error", "word"),
    [
        (None, InvalidArgument, "NoneType"),
        (b"memory://", InvalidArgument, "bytes"),
        (Path("shop\0"), InvalidArgument, "zero byte"),
        ("", InvalidArgument, "file:///path, ./path, s3://bucket/prefix, memory://"),
        ("./a\0b", InvalidArgument, "zero byte"),
        ("http://shop", InvalidArgument, "file:///path, ./path, s3://bucket/prefix, memory://"),
        ("shop:2024", InvalidArgument, "./path"),
        ("file:", InvalidArgument, "three slashes"),
        ("file://", InvalidArgument, "three slashes"),
        ("file:shop", InvalidArgument, "three slashes"),
        ("file://shop/logs", InvalidArgument, "three slashes"),
        ("file://[", InvalidArgument, "not a URL"),
        ("memory://[", InvalidArgument, "not a URL"),
        ("file:///a%00b", InvalidArgument, "zero byte"),
        ("file:///a\0b", InvalidArgument, "zero byte"),
        ("file:///shop?size=5", InvalidArgument, "%3F"),
        ("file:///shop#1", InvalidArgument, "%23"),
        ("memory://shop/orders", InvalidArgument, "memory://name"),
        ("memory:///shop", InvalidArgument, "memory://name"),
        ("memory://shop?size=5", InvalidArgument, "memory://name"),
        ("s3://", InvalidArgument, "s3://bucket"),
        ("s3://shop?region=x", InvalidArgument, "without more"),
        ("gs:///orders", InvalidArgument, "gs://bucket"),
        ("quorum://shop", InvalidArgument, "store of a quorum"),
        ("oncelog://token@shop:7676", InvalidArgument, "ONCELOG_TOKEN"),
        ("oncelog://shop:7676?token=secret", InvalidArgument, "token_file"),
        ("oncelog://shop:7676/orders", InvalidArgument, "without more"),
        ("oncelog://", InvalidArgument, "oncelog://host:7676"),
        ("oncelog://shop:99999", InvalidArgument, "oncelog://host:7676"),
    ],
)
def test_bad_url(url: Any, error: type[OncelogError], word: str) -> None:
    """A URL of which a part would be ignored is refused: somebody meant something by it."""
    refused(lambda: oncelog.connect(url), word, error=error)


def test_url_of_a_folder_with_odd_signs(tmp_path: Path) -> None:
    """What ``Path.as_uri`` makes of a folder's name leads to that folder."""
    folder = tmp_path / "a b?c#d%e\n注"
    with oncelog.connect(folder.as_uri()) as db:
        db.log("orders", create=True)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


# Handles that were closed.


def test_closed_handles_say_so(db: Database) -> None:
    """Everything but closing again is ``Closed``, on the handle itself and on those that came from it."""
    log = db.log("orders", create=True)
    writer, reader, tail = log.writer(), log.read(), log.tail()
    writer.append(b"before", id="before")
    uses: list[Callable[[], object]] = [
        lambda: db.log("orders"),
        lambda: db.log("new", create=True),
        db.logs,
        lambda: log.settings,
        log.writer,
        log.read,
        log.read_arrow,
        log.tail,
        lambda: log.configure(LogSettings()),
        lambda: log.truncate(0),
        log.seal,
        log.files,
        log.verify,
        log.info,
        lambda: writer.append(b"x"),
        lambda: writer.submit(b"x"),
        lambda: writer.append_many([Record(b"x")]),
        lambda: writer.append_batch([Record(b"x")]),
        lambda: writer.append_arrow(pa.table({"value": [b"x"]})),
        writer.flush,
        writer.snapshot,
        lambda: list(reader),
        tail.poll,
    ]
    for _ in range(2):
        db.close()
    for use in uses:
        refused(use, "closed", error=Closed)
    assert list(tail) == []
    for handle in (tail, reader, writer, log, db):
        handle.close()


@pytest.mark.parametrize("kind", ["writer", "read", "tail"])
def test_database_ends_what_was_opened_through_a_log_that_nobody_kept(tmp_path: Path, kind: str) -> None:
    """``db.close()`` ends every reader and writer, also those whose log was only passed through."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log("orders", create=True)
        handle = getattr(db.log("orders"), kind)()
    assert handle.closed
    with oncelog.connect(tmp_path.as_uri()) as db, db.log("orders").writer(wait_s=0) as writer:
        assert writer.append(b"v").position == 0


def test_unavailable_is_where_a_time_ran_out(db: Database) -> None:
    """A time of nothing is allowed, and its outcome is unknown: the write is pending, and a retry meets it."""
    with db.log("orders", create=True).writer() as writer:
        with pytest.raises(Unavailable, match="retry it with the same id") as raised:
            writer.append(b"before", id="before", timeout_s=0)
        assert raised.value.outcome == "unknown"
        assert writer.append(b"before", id="before").position == 0
    assert_unharmed(db)
