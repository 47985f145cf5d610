"""Files of a source in a bucket are listed as Spark lists those of a disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oncelog.errors import InvalidArgument
from oncelog.spark.pipeline.rows import bucket_files
from oncelog.storage.bucket.paths import bucket_of


def test_files_and_folders_of_a_bucket(bucket_url: str) -> None:
    """Hidden files are left out; a pattern, and times of change, choose; folders are told once, at any depth."""
    place = bucket_of(bucket_url)
    assert place is not None
    bucket, prefix = place
    for name in (
        "a.json",
        "b.csv",
        "_c.json",
        ".d/e.json",
        "_x=1/f.json",
        "shop=a/day=1/g.json",
        "shop=a/day=1/h.json",
    ):
        bucket.create(f"{prefix}/in/{name}", [b"x"])
    bucket.create(f"{prefix}/inside.json", [b"x"])
    url = f"{bucket_url}/in"

    def found(pattern: str | None = None, after: str | None = None, before: str | None = None) -> list[str]:
        return [name.removeprefix(f"{url}/") for name in bucket_files.listed(url, pattern, after, before)]

    assert found() == ["_x=1/f.json", "a.json", "b.csv", "shop=a/day=1/g.json", "shop=a/day=1/h.json"]
    assert found("*.csv") == ["b.csv"]
    tomorrow = (datetime.now(tz=UTC) + timedelta(days=1)).replace(tzinfo=None).isoformat()
    assert found(after=tomorrow) == []
    assert found(before=tomorrow) == found()
    assert bucket_files.folders(url, "day") == [("1", "shop=a/day=1")]
    assert bucket_files.folders(url, "week") == []


@pytest.mark.parametrize("name", ["in/a.json", "in/*.json", "typo"])
def test_what_is_no_folder_of_a_bucket_is_refused(name: str, bucket_url: str) -> None:
    """A file, a pattern or a folder that is not there has nothing below it: the run would read nothing, and be done."""
    place = bucket_of(bucket_url)
    assert place is not None
    bucket, prefix = place
    bucket.create(f"{prefix}/in/a.json", [b"x"])
    with pytest.raises(InvalidArgument, match=r"source\.path is a folder, not a file or a pattern"):
        bucket_files.listed(f"{bucket_url}/{name}", None, None, None)
