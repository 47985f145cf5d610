"""A double of S3 Express One Zone: it lists in no order, page by page, and refuses ``start-after``.

There is no real one here. What the double does is from the public documentation of directory buckets. It knows no
sessions: the client opens those at an address of its own, whatever endpoint it is given.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "shop--use1-az4--x-s3"
_PAGE = 3


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Express

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        size = headers.pop("size", str(len(body)))
        for name, value in {"Content-Length": size, "ETag": '"etag"', "Last-Modified": _DATE, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def do_PUT(self) -> None:
        """Store an object, if nothing is there."""
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self._path()
        with self.server.lock:
            if key in self.server.objects and self.headers.get("If-None-Match") == "*":
                self._fail(412, "PreconditionFailed")
            else:
                self.server.objects[key] = data
                self._answer(200)

    def do_HEAD(self) -> None:
        """Tell an object's size."""
        data = self.server.objects.get(self._path())
        self._answer(404) if data is None else self._answer(200, size=str(len(data)))

    def do_DELETE(self) -> None:
        """Remove an object."""
        self.server.objects.pop(self._path(), None)
        self._answer(204)

    def do_POST(self) -> None:
        """Remove several objects."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        for key in keys:
            self.server.objects.pop(key, None)
        told = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{told}</DeleteResult>".encode())

    def do_GET(self) -> None:
        """List, or return an object."""
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if query.get("list-type") == ["2"]:
            self._list(query)
            return
        data = self.server.objects.get(self._path())
        if data is None:
            self._fail(404, "NoSuchKey")
        else:
            self._part(data)

    def _part(self, data: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, data)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last), len(data) - 1) if last else len(data) - 1
        if int(first) >= len(data):
            self._fail(416, "InvalidRange")
        else:
            found = data[int(first) : end + 1]
            self._answer(206, found, Content_Range=f"bytes {first}-{end}/{len(data)}")

    def _list(self, query: dict[str, list[str]]) -> None:
        if "start-after" in query:
            self.server.refused += 1
            self._fail(501, "NotImplemented")
            return
        prefix = query.get("prefix", [""])[0]
        if prefix and not prefix.endswith("/"):
            self._fail(400, "InvalidArgument")
            return
        keys = [key for key in self.server.objects if key.startswith(prefix)]
        keys.sort(key=lambda key: hashlib.blake2b(key.encode()).digest())  # in no order
        folders: set[str] = set()
        if query.get("delimiter") == ["/"]:
            folders = {
                prefix + key.removeprefix(prefix).partition("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]
            }
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        start = int(query.get("continuation-token", ["0"])[0])
        page = keys[start : start + _PAGE]
        more = start + _PAGE < len(keys)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
            f"<Size>{len(self.server.objects[key])}</Size></Contents>"
            for key in page
            if key in self.server.objects
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        token = f"<NextContinuationToken>{start + _PAGE}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{truncated}{contents}{common}{token}</ListBucketResult>".encode())


_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class Express(ThreadingHTTPServer):
    """The double, on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.refused = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def options(self) -> dict[str, str]:
        """What a client needs to reach it: no sessions, which it would open elsewhere."""
        return {
            "s3_express": "false",
            "endpoint": f"http://127.0.0.1:{self.server_address[1]}",
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
        }


@contextlib.contextmanager
def express() -> Iterator[Express]:
    """Run the double."""
    with Express() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
