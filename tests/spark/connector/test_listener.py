"""What a listener tells of a query: its lag, its rates, and what the log says became of its rows."""

from __future__ import annotations

import threading

import pytest

from oncelog.spark.connector.listener import Progress, ProgressListener, lag
from tests.spark.jobs import Shop


def offset(position: int, log: str = "a") -> dict[str, object]:
    """Return an offset."""
    return {"log": log, "position": position}


def test_lag_is_counted_over_logs_alone() -> None:
    """Two logs add up; other sources, and logs that were made again, are no figure rather than a wrong one."""
    ours = {"endOffset": offset(10), "latestOffset": '{"log": "a", "position": 25}'}
    kafka = {"endOffset": '{"topic": {"0": 3}}', "latestOffset": None}
    assert lag([ours, kafka, ours]) == 30
    assert lag([kafka, {"endOffset": "not JSON", "latestOffset": 3}]) is None
    assert lag([{"endOffset": offset(3, "a"), "latestOffset": offset(9, "b")}]) is None


@pytest.mark.xdist_group("spark")
def test_a_query_that_is_listened_to(shop: Shop) -> None:
    """Lag goes down batch by batch; duplicates and conflicts are those that the log has counted."""
    told: list[Progress] = []
    done = threading.Event()

    def tell(progress: Progress) -> None:
        told.append(progress)
        if progress.batch == 2:
            done.set()

    shop.append(range(10))
    shop.write(shop.rows(range(2)), "copy", create="true")
    shop.write(shop.rows([9]).selectExpr("id", "X'00' as value"), "copy")
    listener = ProgressListener(tell, url=shop.url, log="copy")
    shop.spark.streams.addListener(listener)
    try:
        query = shop.copy(shop.stream(maxOffsetsPerTrigger=4).select("id", "value"))
        assert done.wait(60)
    finally:
        shop.spark.streams.removeListener(listener)
    assert [(each.batch, each.input_rows, each.lag) for each in told[:3]] == [(0, 4, 6), (1, 4, 2), (2, 2, 0)]
    last = listener.latest[str(query.id)]
    assert (last.records, last.duplicates, last.conflicts) == (7, 2, 1)
    assert last.processed_rows_per_s > 0
