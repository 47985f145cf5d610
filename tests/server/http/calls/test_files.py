"""Sealed files over HTTP, at a real server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow.parquet as pq
import pytest

from oncelog import limits
from oncelog.server.http.calls import files

READ = "application/vnd.apache.parquet"


@pytest.fixture
def sealed(http: httpx.Client, log: str) -> str:
    """Return the path of the sealed files of a log with three records."""
    for value in (b"a", b"b", b"c"):
        assert http.post(f"/v1/logs/{log}/records", content=value).status_code == 201
    # Settings that change close the segment; then it can be sealed.
    changed = http.patch(f"/v1/logs/{log}/settings", json={"retention_s": 1e9}, headers={"if-match": "*"})
    assert changed.status_code == 200, changed.text
    assert json.loads(http.post(f"/v1/logs/{log}/seal").text.splitlines()[-1])["result"]["files"]
    return f"/v1/logs/{log}/files"


def test_a_file_is_downloaded_as_it_was_sealed(http: httpx.Client, sealed: str) -> None:
    """Whole, in ranges, and not again when it did not change."""
    [listed] = http.get(sealed).json()
    found = http.get(f"{sealed}/{listed['first_position']}")
    assert (found.status_code, found.headers["content-type"]) == (200, READ)
    assert len(found.content) == listed["bytes"]
    assert pq.read_table(io.BytesIO(found.content)).column("value").to_pylist() == [b"a", b"b", b"c"]
    part = http.get(f"{sealed}/0", headers={"range": "bytes=4-9"})
    assert (part.status_code, part.content) == (206, found.content[4:10])
    assert part.headers["content-range"] == f"bytes 4-9/{len(found.content)}"
    assert http.get(f"{sealed}/0", headers={"range": "bytes=-8"}).content == found.content[-8:]
    assert http.get(f"{sealed}/0", headers={"range": f"bytes={len(found.content)}-"}).status_code == 416
    assert http.get(f"{sealed}/0", headers={"if-none-match": found.headers["etag"]}).status_code == 304
    head = http.head(f"{sealed}/0")
    assert (head.status_code, head.headers["content-length"]) == (200, str(listed["bytes"]))
    for nothing in ("1", "-1", "x", "99999999999999999999"):
        assert http.get(f"{sealed}/{nothing}").status_code in (400, 404), nothing


def test_a_damaged_file_is_not_handed_out_whole(http: httpx.Client, sealed: str) -> None:
    """Its last part is held back: the client sees that bytes are missing."""
    [listed] = http.get(sealed).json()
    path = Path(urlsplit(listed["path"]).path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(httpx.RemoteProtocolError):
        http.get(f"{sealed}/0")


def test_parts_are_small() -> None:
    """A client that reads slowly holds one part in the server, whatever the file has."""
    assert files.PART_BYTES <= limits.MIB
