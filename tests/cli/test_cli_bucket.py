"""The shell, on a bucket: every command that it has on a disk."""

from __future__ import annotations

from pathlib import Path

from tests.cli.shell import shell


def test_the_life_of_a_log_in_a_bucket(bucket_url: str, tmp_path: Path) -> None:
    """From its creation to its end, as a person would go about it; a copy on a disk says the same."""
    lines = b"".join(b"order %d\n" % number for number in range(200))
    assert shell("log", "create", "orders", "--idempotence", "content", url=bucket_url).code == 0
    assert shell("log", "append", "orders", "-", url=bucket_url, given=lines).code == 0
    again = shell("log", "append", "orders", "-", "--json", url=bucket_url, given=lines)
    assert (again.json["stored"], again.json["duplicates"]) == (0, 200)
    assert shell("log", "cat", "orders", url=bucket_url).out.count(b"order ") == 200
    assert shell("log", "seal", "orders", "--json", url=bucket_url).json["records"] == 200
    assert shell("log", "snapshot", "orders", url=bucket_url).code == 0
    assert shell("log", "verify", "orders", url=bucket_url).code == 0
    copy = f"file://{tmp_path}/copy#orders"
    assert shell("log", "copy", "orders", copy, "--json", url=bucket_url).json["records"] == 200
    there = shell("log", "cat", "orders", url=f"file://{tmp_path}/copy")
    assert there.out == shell("log", "cat", "orders", url=bucket_url).out
    back = shell("log", "copy", copy, f"{bucket_url}#back", url=bucket_url)
    assert "200 records" in back.seen
    assert [info["name"] for info in shell("log", "list", "--json", url=bucket_url).lines] == ["back", "orders"]
    assert shell("log", "truncate", "orders", "--before", "100", "--yes", url=bucket_url).code == 0
    assert shell("log", "delete", "orders", "--yes", url=bucket_url).code == 0
    assert [info["name"] for info in shell("log", "list", "--json", url=bucket_url).lines] == ["back"]


def test_a_place_that_is_none(bucket_url: str) -> None:
    """Anybody who names a database where a log is wanted learns how to name the log."""
    for source, target, hint in (
        (bucket_url, "file:///tmp/there", "#NAME"),
        ("file:///tmp/here#orders", "there", "s3://bucket/shop"),
        ("orders", "file:///tmp/there", "ONCELOG_URL"),
    ):
        ended = shell("log", "copy", source, target)
        assert ended.code == 2
        assert hint in ended.err.decode()


def test_a_doctor_of_a_bucket(bucket_url: str) -> None:
    """A bucket is said to work after an object was stored in it and removed; one that is not there is bad."""
    sound = {check["what"]: check for check in shell("doctor", "--json", url=bucket_url).lines}
    assert (sound["database"]["verdict"], sound["bucket"]["verdict"]) == ("ok", "ok")
    assert shell("log", "list", "--json", url=bucket_url).lines == []
    done = shell("doctor", "--json", url="s3://there-is-no-such-bucket/shop")
    (bad,) = (check for check in done.lines if check["verdict"] == "bad")
    assert (done.code, done.err) == (1, b"")
    assert "there-is-no-such-bucket" in bad["found"]
    assert "the name of the bucket" in bad["advice"] or "credentials" in bad["advice"]
