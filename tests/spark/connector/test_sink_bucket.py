"""A log in a bucket: tasks and driver need no more than a URL and options, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog.connect import connect
from tests.spark.jobs import Shop, ids

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """Yield a real S3 server."""
    started = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    yield started
    started.end()


def test_a_query_between_logs_in_a_bucket(shop: Shop, server: SeaweedFS) -> None:
    """Written, read as a stream, copied, and replayed: as on a disk."""
    shop.url = f"s3://{BUCKET}/shop"
    storage = {f"storage.{name}": value for name, value in server.options.items()}
    for _ in range(2):
        shop.write(shop.rows(range(20)), create="true", **storage)
    stream = shop.stream(maxOffsetsPerTrigger=12, **storage).select("value")
    shop.copy(stream, **storage)
    shop.forget_last_commit()
    shop.copy(stream.repartition(3), **storage)
    with connect(shop.url, options=server.options) as db:
        assert sorted(str(entry.id) for entry in db.log("orders").read()) == ids(range(20))
        assert len(list(db.log("copy").read())) == 20
        assert db.log("copy").verify().ok
