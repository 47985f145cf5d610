"""A log behind a server: tasks stage through it, the driver ingests with its mark, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.connect import connect
from tests.servers import Serving
from tests.spark.jobs import Shop, ids

pytestmark = pytest.mark.xdist_group("spark")


def test_a_query_between_logs_of_a_server(shop: Shop, serve: Callable[..., Serving]) -> None:
    """Written, read as a stream, copied, and replayed: as on a disk."""
    shop.url = f"oncelog://{serve().grpc}"
    for _ in range(2):
        shop.write(shop.rows(range(20)), create="true")
    stream = shop.stream(maxOffsetsPerTrigger=12).select("value")
    shop.copy(stream)
    shop.forget_last_commit()
    shop.copy(stream.repartition(3))
    with connect(shop.url) as db:
        assert sorted(str(entry.id) for entry in db.log("orders").read()) == ids(range(20))
        assert len(list(db.log("copy").read())) == 20
        assert db.log("copy").verify().ok
