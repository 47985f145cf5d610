"""S3 Express One Zone, by its double: lists come in no order, and begin nowhere but at their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.errors import Unavailable
from oncelog.storage.base import Storage
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.contract import StorageContract
from tests.storage.bucket.express import BUCKET, Express, express

URL = f"s3://{BUCKET}/db"


@pytest.fixture
def server() -> Iterator[Express]:
    """Run the double."""
    with express() as found:
        yield found


@pytest.mark.soak  # thousands of requests to a server in Python
class TestExpress(StorageContract):
    """A home in a bucket of S3 Express keeps the contract of every home."""

    @pytest.fixture
    def storage(self, server: Express) -> Iterator[Storage]:
        """Return a home in the double."""
        made = ObjectStorage(Bucket.connect(URL, server.options))
        yield made
        made.close()


del StorageContract  # pytest would collect it here, without a home


def test_the_name_of_a_bucket_turns_sessions_on() -> None:
    """Nobody has to know the option; who says otherwise is heeded."""
    options = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}

    def config(url: str, **more: str) -> Any:
        return Bucket.connect(url, options | more)._store.config  # type: ignore[union-attr]

    assert config(URL)["s3_express"] == "true"
    assert config(URL, s3_express="false")["s3_express"] == "false"
    assert "s3_express" not in config("s3://shop/db--x-s3")


def test_a_list_is_sorted_and_begins_where_it_is_told(server: Express) -> None:
    """The store lists in no order, page by page, and knows no ``start-after``: the home gets what any store gives."""
    bucket = Bucket.connect(URL, server.options)
    for number in range(10):
        bucket.create(f"a/{number}", [b"x" * number])
    assert bucket.below("a/") == [(f"a/{number}", number) for number in range(10)]
    assert bucket.below("a/", after="a/6") == [(f"a/{number}", number) for number in (7, 8, 9)]
    assert server.refused == 0
    with pytest.raises(Unavailable):  # as a bucket with another name is asked
        Bucket(bucket._store, "s3://shop/db").below("a/", after="a/6")
    assert server.refused


def test_a_log_lives_there(server: Express) -> None:
    """Appends, a takeover and a read, on a store of that kind."""
    with Database(ObjectStorage(Bucket.connect(URL, server.options))) as first:
        writer = first.log("orders", create=True).writer()
        place = writer.append(b"paid", id="order-42")
        with Database(ObjectStorage(Bucket.connect(URL, server.options))) as second:
            with second.log("orders").writer(takeover="force") as taken:
                assert taken.append(b"paid", id="order-42").position == place.position
            assert [entry.value for entry in second.log("orders").read()] == [b"paid"]
