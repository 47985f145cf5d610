"""Where a table keeps its files: sealed files of a log come there without a byte through this process.

On a disk a file of the table is a hard link: the log may remove its own name of the file, and the table's stays; the
table may remove its name, and the log's stays. In a bucket it is a copy that the store itself makes.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oncelog.errors import InvalidArgument, NotFound
from oncelog.storage.bucket.paths import bucket_of
from oncelog.storage.local.disk import explain

if TYPE_CHECKING:
    from oncelog.storage.bucket.bucket import Bucket


class Place(Protocol):
    """The folder of a table's files."""

    def check(self, source: str) -> None:
        """Raise ``InvalidArgument`` if a file of the log cannot come here."""
        ...

    def bring(self, source: str, name: str) -> None:
        """Bring a file of the log here, durably, under a name; one that is here stays. ``NotFound`` if it is gone."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file that no version of the table needs; one that is not here is no error."""
        ...


class DiskPlace:
    """A folder on the disk that the log is on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, source: str) -> None:
        """Refuse a file that is in a bucket."""
        if bucket_of(source) is not None:
            message = f"{self._folder} is on a disk, and the log is in a bucket: name a table in that bucket"
            raise InvalidArgument(message)

    def bring(self, source: str, name: str) -> None:
        """Make a hard link, and sync the folders that name it."""
        self.check(source)
        target = self._folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                _link(Path(source), target)
            for folder in (target.parent, self._folder):
                _sync(folder)
        except OSError as error:
            raise explain(error, target) from error

    def remove(self, name: str) -> None:
        """Remove the link, and its folder once that is empty."""
        target = self._folder / name
        try:
            target.unlink(missing_ok=True)
            target.parent.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST}:
                raise explain(error, target) from error


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return  # another publication made the same link
    except FileNotFoundError as error:
        message = f"{source}: the log has put this file together with others since"
        raise NotFound(message) from error
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM}:
            raise
        message = f"{target}: must be on the file system of the log, {source.parent}, so that its files can be linked"
        raise InvalidArgument(message) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BucketPlace:
    """A prefix of the bucket that the log is in."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def check(self, source: str) -> None:
        """Refuse a file that is not in this bucket."""
        self._key(source)

    def bring(self, source: str, name: str) -> None:
        """Have the store copy a file."""
        key, target = self._key(source), f"{self._prefix}/{name}"
        if self._bucket.size(target) is None:
            self._bucket.copy(key, target)

    def _key(self, source: str) -> str:
        found = bucket_of(source)
        if found is None or found[0].url != self._bucket.url:
            message = f"{self._bucket.url} is not where the log is, {source}: name a table in the bucket of the log"
            raise InvalidArgument(message)
        return found[1]

    def remove(self, name: str) -> None:
        """Remove a copy."""
        self._bucket.delete(f"{self._prefix}/{name}")


def place_at(location: str) -> Place:
    """Return the place at a path, or at a URL of a bucket."""
    found = bucket_of(location)
    if found is not None:
        return BucketPlace(*found)
    if "://" in location and not location.startswith("file://"):
        message = f"{location}: a log is published to a disk, or to s3://, gs:// or az://"
        raise InvalidArgument(message)
    return DiskPlace(Path(location.removeprefix("file://")).absolute())
