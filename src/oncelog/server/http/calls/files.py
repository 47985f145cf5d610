"""Sealed files over HTTP, as they are: for DuckDB, pandas and polars on another machine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import xxhash
from starlette.responses import Response

from oncelog.errors import CorruptionError, NotFound
from oncelog.format.manifest import File
from oncelog.limits import MIB
from oncelog.log import inner
from oncelog.server.http import fields
from oncelog.server.http.answers import LargeAnswer
from oncelog.server.http.calls.logs import opened
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.http.request import Call
from oncelog.storage.base import LogHome

PARQUET = "application/vnd.apache.parquet"
PART_BYTES = MIB
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def read(call: Call) -> Response:
    """Return a sealed file, or a range of its bytes. It is named by its first position, as ``files`` lists it."""
    first = fields.whole("first", call.names["first"], least=0)
    call.accepts(PARQUET)
    home, file = await call.read(lambda: _found(call, first))
    etag = f'"{file.checksum & (1 << 64) - 1:016x}-{file.size_bytes}"'
    headers = {"etag": etag, "accept-ranges": "bytes", "cache-control": "private, max-age=0, must-revalidate"}
    if "if-none-match" in call.headers and etag.strip('"') in fields.etags(call.headers["if-none-match"]):
        return Response(None, 304, headers)
    start, end = _range(call.headers.get("range", ""), file.size_bytes)
    headers["content-length"] = str(end - start)
    whole = end - start == file.size_bytes
    if not whole:
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size_bytes}"
    held_bytes = min(PART_BYTES, end - start)
    await call.room.take(held_bytes, call.names["log"], call.app.files)
    parts = _parts(call, home, file, start, end)
    response = LargeAnswer(parts, 200 if whole else 206, headers, media_type=PARQUET)
    response.held_bytes = held_bytes
    return response


def _found(call: Call, first: int) -> tuple[LogHome, File]:
    log = opened(call)
    file = inner.file(log, first)
    if file is None:
        message = f"log {log.name!r} has no sealed file that begins with position {first}: list its files again"
        raise NotFound(message)
    return inner.home(log), file


def _range(given: str, size_bytes: int) -> tuple[int, int]:
    """Return where a range begins, and where it ends; the whole for none, and for one of a form that is not known.

    >>> _range("", 10), _range("bytes=2-4", 10), _range("bytes=8-", 10), _range("bytes=-3", 10), _range("lines=1-2", 10)
    ((0, 10), (2, 5), (8, 10), (7, 10), (0, 10))
    """
    found = _RANGE.fullmatch(given.strip())
    if found is None or not (found[1] or found[2]):
        return 0, size_bytes
    if not found[1]:
        start, end = max(0, size_bytes - int(found[2])), size_bytes
    else:
        start, end = int(found[1]), min(size_bytes, int(found[2]) + 1 if found[2] else size_bytes)
    if start >= end:
        message = f"Range is {given[:100]!r}, and the file has {size_bytes} bytes"
        raise HttpRefusal(416, message)
    return start, end


async def _parts(call: Call, home: LogHome, file: File, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield bytes. A whole file is checked on its way: of a damaged one the last part is held back."""
    checks = xxhash.xxh3_64() if end - start == file.size_bytes else None
    while start < end:
        length = min(PART_BYTES, end - start)
        data: bytes = await call.read(lambda at=start, size=length: home.read(file.key, at, size).to_pybytes())  # type: ignore[misc]
        start += length
        if checks is not None:
            checks.update(data)
        if len(data) < length or (start == end and checks is not None and checks.intdigest() != file.checksum):
            message = f"{file.key}: not the {file.size_bytes} bytes that were sealed; restore it from a copy"
            raise CorruptionError(message)
        yield data
