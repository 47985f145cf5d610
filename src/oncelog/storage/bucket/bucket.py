"""A bucket: the few requests that a home needs of an object store, and what their failures mean here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import ObjectStore, from_url

from oncelog.errors import InvalidArgument, NotFound, OncelogError, Outcome, Unavailable, Unsupported
from oncelog.storage.base import Chunk
from oncelog.storage.chunks import joined

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 30
CLIENT_RETRIES = 1
"""The client repeats little by itself: the caller offers the same bytes again, and counts the outage."""

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T = TypeVar("_T")
_ALIGNMENT_BYTES = 8
"""Arrow and numpy read numbers where they lie, if each is at a multiple of its size: of eight bytes at most here."""
_EXPRESS = "--x-s3"
_FAILURES = (exceptions.BaseError, OSError, NotImplementedError)
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_LIST_REFUSED = "status code: 403"
_NO_BUCKET = "NoSuchBucket"
_CHANGING = {"copy", "delete", "upload"}
_UNDECIDED = ("ConditionalRequestConflict", "OperationAborted")
"""What S3 says when two creates meet and neither is decided. The client takes it for "exists"; perhaps nothing does."""


class Bucket:
    """What is below one URL of an object store. Safe to share between threads.

    ``requests`` counts what was asked of the store, by kind: it is what one pays for.
    """

    def __init__(self, store: ObjectStore, url: str) -> None:
        """Keep a client, and the URL that it stands for."""
        self.url = url.rstrip("/")
        self.requests: Counter[str] = Counter()
        self._store = store
        self._knows_start = not is_express(url)
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, url: str, options: Mapping[str, str]) -> Bucket:
        """Return the bucket of a URL. Options are those of the store's own client; what is not given comes from the
        environment. ``InvalidArgument`` for one that there is not.

        A bucket whose name ends in ``--x-s3`` is one of S3 Express One Zone: its client opens sessions.
        """
        config = dict(options)
        if is_express(url):
            config.setdefault("s3_express", "true")
        client = {
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            "allow_http": True,  # the URL of an endpoint says which it is
        }
        retrying = {"max_retries": CLIENT_RETRIES, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
        try:
            store = from_url(url, config=config, client_options=client, retry_config=retrying)  # type: ignore[call-overload]
        except (exceptions.BaseError, ValueError, TypeError) as error:
            message = f"{url!r}: {_first_line(error)}"
            raise InvalidArgument(message) from error
        return cls(store, url)

    def create(self, path: str, data: Sequence[Chunk]) -> bool:
        """Store an object if nothing is there; ``False`` when something is: it may be this very object, when the client
        repeated its request underneath.
        """
        content = [memoryview(chunk).cast("B") for chunk in data]  # sent one after the other, never copied together
        self._count("create")
        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            if any(code in str(error) for code in _UNDECIDED):
                raise self._explained(error, path, "unknown") from error
            return False
        except _FAILURES as error:
            raise self._explained(error, path, "unknown") from error
        return True

    def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return an object's bytes from ``start``, at most ``length`` of them; ``NotFound`` if it is not there."""
        if length is None and not start:
            return self._ask("get", path, lambda: _aligned(obstore.get(self._store, path).bytes()))
        end = start + length if length is not None else 1 << 62
        try:
            return self._ask("get", path, lambda: _aligned(obstore.get_range(self._store, path, start=start, end=end)))
        except Unavailable:
            size_bytes = self.size(path)  # a store refuses a range that begins behind the end
            if size_bytes is not None and size_bytes <= start:
                return pa.py_buffer(b"")
            raise

    def size(self, path: str) -> int | None:
        """Return how many bytes an object has; ``None`` if it is not there."""
        try:
            return int(self._ask("head", path, lambda: obstore.head(self._store, path))["size"])
        except NotFound:
            return None

    def below(self, prefix: str, after: str | None = None) -> list[tuple[str, int]]:
        """Return paths that begin with ``prefix``, behind ``after``, with their sizes, sorted."""

        def pages() -> list[tuple[str, int]]:
            stream = obstore.list(self._store, prefix, offset=after if self._knows_start else None)
            found = sorted((str(meta["path"]), int(meta["size"])) for page in stream for meta in page)
            return found if after is None else [one for one in found if one[0] > after]

        return self._ask("list", prefix, pages)

    def dated(self, prefix: str) -> list[tuple[str, datetime]]:
        """Return paths that begin with ``prefix``, with the times of their last change, sorted."""

        def pages() -> list[tuple[str, datetime]]:
            stream = obstore.list(self._store, prefix)
            return sorted((str(meta["path"]), meta["last_modified"]) for page in stream for meta in page)

        return self._ask("list", prefix, pages)

    def folders(self, prefix: str) -> list[str]:
        """Return what is between ``prefix`` and the next slash, each once, sorted."""
        found = self._ask("list", prefix, lambda: obstore.list_with_delimiter(self._store, prefix))
        return sorted(str(path).rstrip("/").removeprefix(prefix) for path in found["common_prefixes"])

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        try:
            self._ask("delete", path, lambda: obstore.delete(self._store, path))
        except NotFound:
            return

    def check_creates(self, path: str) -> None:
        """Raise ``Unsupported`` unless the store keeps a second create from replacing the first. ``path`` is unused."""
        try:
            self.create(path, [b"first"])
            second = self.create(path, [b"second"])
            kept = self.get(path).to_pybytes() == b"first"
        finally:
            self.delete(path)
        if second or not kept:
            message = (
                f"{self.url}: this store does not honour conditional creates (if-none-match), which are all that keeps "
                "two writers of a log apart: use a store that does, or a newer version of it"
            )
            raise Unsupported(message)

    def upload(self, path: str, file: Path) -> None:
        """Store a file, in parts if it is large; what was there is replaced."""
        self._ask("upload", path, lambda: obstore.put(self._store, path, file))

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store; what was at ``target`` is replaced. ``NotFound`` if there is no source."""
        self._ask("copy", source, lambda: obstore.copy(self._store, source, target, overwrite=True))

    def _ask(self, kind: str, path: str, request: Callable[[], _T]) -> _T:
        self._count(kind)
        try:
            return request()
        except _FAILURES as error:
            raise self._explained(error, path, "unknown" if kind in _CHANGING else "not written") from error

    def _count(self, kind: str) -> None:
        with self._lock:
            self.requests[kind] += 1

    def _explained(self, error: Exception, path: str, outcome: Outcome) -> OncelogError:
        """Return what the one who asked can do about an error of the client."""
        where = f"{self.url}/{path}"
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
            return NotFound(f"{where}: no such object, or no such bucket")
        if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
            return Unsupported(f"{where}: this store cannot do what a log needs: {_first_line(error)}")
        # A refusal is perhaps of the second of two requests: what was done by the first is not known.
        return Unavailable(f"{where}: {_reason(error)}", outcome=outcome)


def is_express(url: str) -> bool:
    """Tell whether a URL is of a bucket of S3 Express One Zone: lists are in no order, and know no ``start-after``.

    >>> is_express("s3://shop--use1-az4--x-s3/db"), is_express("s3://shop/db--x-s3")
    (True, False)
    """
    return urlsplit(url).netloc.endswith(_EXPRESS)


def _aligned(data: Buffer) -> pa.Buffer:
    """Return bytes where Arrow can use them. Much comes in memory of its own, which does: to copy it again, into memory
    that is new, took as long as to fetch it. What came in one piece with a header of HTTP lies anywhere.
    """
    buffer = pa.py_buffer(data)
    return buffer if buffer.address % _ALIGNMENT_BYTES == 0 else joined([buffer])


def _reason(error: Exception) -> str:
    """Return why a store did not do what it was asked. The client has kinds of errors for single objects; those of a
    list are of one kind, and tell their status in words.
    """
    text = str(error)
    if isinstance(error, _REFUSED) or _LIST_REFUSED in text:
        return "access denied: check the credentials, and that they may read, write, list and delete"
    if _NO_BUCKET in text:
        return "there is no such bucket: make it first, or name another one"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:500]
