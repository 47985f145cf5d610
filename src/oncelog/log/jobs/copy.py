"""Copying a log to another home: its records, where they stand, what it knows of them, and who it is.

Everything in the copy is a sealed file, whatever it was before: files mean the same in every home, blocks do not. Each
is stored whole or not at all, under a name that tells what is in it, so a copy that was cut short goes on where it
stopped. It also tells when it was stored, not when the original was: a cleanup at the other end leaves a day to what no
manifest points to. The manifest comes last: before it there is no log at the other end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
import xxhash

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound, Unavailable
from oncelog.format import sealed
from oncelog.format.gather import gather
from oncelog.format.manifest import File, Manifest, Segment, labels_of
from oncelog.format.runs.run import Run
from oncelog.log.stored import object_keys, secrets, snapshots
from oncelog.log.stored.files import READ_BYTES
from oncelog.log.stored.manifests import Known, Manifests
from oncelog.log.stored.rows import Rows, each
from oncelog.log.upkeep import sealing
from oncelog.storage.base import LogHome

COPIED = b"copied, untaken."
"""Who wrote a manifest that no writer has taken over yet: a copy goes on with that one only."""

Progress = Callable[[int, int], None]


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy has: its records, files, and bytes, and how many of these were stored now, not before."""

    records: int
    files: int
    bytes: int
    bytes_stored: int


class Copy:
    """One log on its way from one home to another."""

    def __init__(self, source: LogHome, target: LogHome, clock: Clock, progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._progress = progress or (lambda _done, _total: None)
        self._stored = 0
        self._made: dict[str, str] = {}
        self._before: list[Segment] = []
        self._floor_us = 0

    def run(self, known: Known, name: str) -> Copied:
        """Copy the log as it is now. ``InvalidArgument`` when another log, or more than this one, is at the other end.

        What the source seals or merges meanwhile is looked up again.
        """
        manifests = Manifests(self._source, self._clock)
        there = Manifests(self._target, self._clock)
        before = there.newest()
        known = manifests.newest(known) or known  # not older than what is there: another copier may have been quicker
        self._check(before, known.manifest, name)
        if before is None:
            there.check_not_lost(copying=True)
            self._target.probe()
            self._delete_snapshots(known.manifest.log_id)
        self._look_for_made(there, before)
        self._before = self._segments(there, before)
        secrets.copy(self._source, self._target, known.manifest)
        _, wanted = manifests.look(known, lambda manifest: self._copied(manifests, manifest, name))
        self._publish(there, wanted, before)
        files = {segment.file.key: segment.file for segment in (*wanted.segments, *wanted.conflicts) if segment.file}
        return Copied(
            records=wanted.next_position - wanted.first_position,
            files=len(files),
            bytes=sum(file.size_bytes for file in files.values()),
            bytes_stored=self._stored,
        )

    def _look_for_made(self, there: Manifests, before: Known | None) -> None:
        """Find what was stored before, but for what a sweep may be about to delete."""
        used: set[str] = set()
        if before is not None:
            self._floor_us = before.manifest.staging_floor_us
            _, used = there.look(before, lambda manifest: sealing.used(there, manifest))
        for key in self._target.list(object_keys.PREFIX):
            if key in used or object_keys.created_us(key) >= self._floor_us:
                self._made[_content(key)] = key

    def _delete_snapshots(self, log_id: str) -> None:
        """Delete the snapshots that a copy which was cut short left: perhaps it was one of another copy of the log.

        By its identity nobody could tell that such a snapshot is of other records.
        """
        for key in self._target.list(snapshots.prefix(log_id)):
            self._target.delete(key)

    def _segments(self, there: Manifests, before: Known | None) -> list[Segment]:
        """Return the segments of a copy that was made before."""
        if before is None:
            return []
        return there.look(before, lambda manifest: list(there.closed_from(manifest, manifest.first_position)))[1]

    def _check(self, there: Known | None, manifest: Manifest, name: str) -> None:
        if there is None:
            return
        if there.manifest.log_id != manifest.log_id:
            message = f"another log is there under the name {name!r}: delete it first, or choose another name"
            raise InvalidArgument(message)
        if there.manifest.writer != COPIED:
            message = (
                f"{name!r} there is this log itself, or a copy of it that was written to since it was made: "
                "choose another name or place"
            )
            raise InvalidArgument(message)

    def _copied(self, manifests: Manifests, manifest: Manifest, name: str) -> Manifest:
        """Store everything that a manifest leads to; return the manifest of the copy."""
        segments = [*manifests.closed_from(manifest, manifest.first_position), *self._open(manifests, manifest)]
        _check_grown(self._before, segments, name)
        total, done = sum(segment.entries for segment in segments), 0
        copied: list[Segment] = []
        for segment in segments:
            covered = sealing.is_covered(manifest, segment)
            copied.append(self._segment(manifest.log_id, segment, covered=covered))
            done += segment.entries
            self._progress(done, total)
        conflicts = [self._segment(manifest.log_id, segment) for segment in manifests.conflicts(manifest)]
        base = self._file(manifest.base) if manifest.base is not None else None
        newest = copied[-1] if copied else None
        next_position = max(manifest.next_position, newest.next_position if newest else 0)
        self._snapshot(manifest.log_id, next_position)
        return msgspec.structs.replace(
            manifest,
            name=name,
            writer=COPIED,
            base=base,
            open_segment=None,
            next_position=next_position,
            last_timestamp_us=max(manifest.last_timestamp_us, newest.last_timestamp_us if newest else 0),
            uptime_us=max(manifest.uptime_us, newest.last_uptime_us if newest else 0),
            pages=(),
            segments=tuple(copied),
            conflict_pages=(),
            conflicts=tuple(conflicts),
            labels=manifest.labels | (newest.labels if newest else 0),
            memory=tuple(run for run in map(partial(self._memory, manifests), manifest.memory) if run),
            doomed=(),
            truncating=0,
            truncator=b"",
        )

    def _open(self, manifests: Manifests, manifest: Manifest) -> Iterator[Segment]:
        """Yield what can be seen of the open segment, if anything, as if it were closed there."""
        number = manifest.open_segment
        if number is None:
            return
        cursor, rows, first, labels = 0, None, None, 0
        while (found := self._source.blocks(number, cursor, None, READ_BYTES))[0]:
            cursor = found[1]
            for rows in map(Rows.of_blocks, gather(list(found[0]), full=True)):
                first = first or rows
                labels |= labels_of(rows.payload)
        if first is None or rows is None:
            newest = manifests.newest()
            if newest is not None and newest.manifest.open_segment != number:
                message = f"segment {number} was closed, and perhaps sealed, before it was read"
                raise NotFound(message)  # a newer manifest tells where its records are
            return
        yield Segment(
            number=number,
            first_position=manifest.next_position,
            entries=rows.next_position - manifest.next_position,
            epoch=manifest.open_epoch,
            end=cursor,
            checksum=0,
            size_bytes=0,
            first_timestamp_us=int(each(first.timestamp_us, first.count)[0]),
            last_timestamp_us=int(each(rows.timestamp_us, rows.count)[-1]),
            last_uptime_us=int(each(rows.uptime_us, rows.count)[-1]),
            ids=0,  # not counted: too few only makes a recovery without snapshots read more
            labels=labels,
        )

    def _segment(self, log_id: str, segment: Segment, *, covered: bool = False) -> Segment:
        """Store a segment as a sealed file, unless it is there; return what the copy's manifest says of it.

        Where its ids are ``covered`` by a run, nothing is kept beside it, and a key is but the mark of an adoption.
        """
        if segment.file is not None:
            file = msgspec.structs.replace(segment.file, key=self._file(segment.file.key, segment.file.checksum))
            return msgspec.structs.replace(
                segment, file=file, identities=self._beside(segment.identities, covered=covered)
            )
        times = f"{segment.first_timestamp_us}/{segment.last_timestamp_us}"  # another copy has other records there
        token = xxhash.xxh3_64_hexdigest(f"{log_id}/{segment.number}/{segment.entries}/{times}".encode())
        content = f"{token}.parquet"
        labels = {segment.number: segment.labels}
        if content in self._made:
            data = self._target.read(self._made[content])
        else:
            labels = {segment.number: 0}
            schema = sealing.schema_of(self._source, [segment])
            data = sealed.encode(sealing.tables(self._source, [segment], labels, schema), schema)
            self._store(content, data)
        key = self._made[content]
        file = File(key, 0, data.size, xxhash.xxh3_64_intdigest(data))
        return msgspec.structs.replace(segment, file=file, end=0, size_bytes=0, labels=labels[segment.number])

    def _beside(self, key: str | None, *, covered: bool) -> str | None:
        if key is None:
            return None
        with contextlib.suppress(NotFound):  # then they are read from the records
            if not covered:
                return self._file(key)
        return self._made.get(_content(key)) or self._new_key(_content(key))

    def _file(self, key: str, checksum: int | None = None) -> str:
        """Store a file of the source, unless it is there; return its key."""
        content = _content(key)
        if content not in self._made:
            data = self._source.read(key)
            if checksum is not None and xxhash.xxh3_64_intdigest(data) != checksum:
                message = f"{self._source.location(key)}: not the bytes that were sealed; restore it from another copy"
                raise CorruptionError(message)
            self._store(content, data)
        return self._made[content]

    def _memory(self, manifests: Manifests, run: Run) -> Run | None:
        """Store a run, unless all of it is there, made at one time; return what the copy's manifest says of it.

        ``None`` if the run is lost, not merged: the copy has the records, from which its writer makes up for the run.
        """
        try:
            return self._stored_run(run)
        except NotFound:
            newest = manifests.newest()
            if newest is None or run not in newest.manifest.memory:
                raise
            return None

    def _stored_run(self, run: Run) -> Run:
        suffixes = [key.removeprefix(run.key) for key in run.keys()]  # noqa: SIM118  (these are keys of objects)
        made = {self._made.get(_content(run.key + suffix), "").removesuffix(suffix) for suffix in suffixes}
        key = made.pop() if len(made) == 1 else ""
        if not key:
            key = self._new_key(_content(run.key))
            for suffix in suffixes:
                data = self._source.read(run.key + suffix)
                self._target.create(key + suffix, [data])
                self._stored += data.size
        return msgspec.structs.replace(run, key=key)

    def _new_key(self, content: str) -> str:
        return f"{object_keys.PREFIX}{max(self._clock.now_us(), self._floor_us):020d}-{content}"

    def _store(self, content: str, data: pa.Buffer) -> None:
        key = self._new_key(content)
        self._target.create(key, [data])
        self._stored += data.size
        self._made[content] = key

    def _snapshot(self, log_id: str, next_position: int) -> None:
        """Store the newest snapshot that can be believed, so that the first writer of the copy opens as soon."""
        for key, head in snapshots.heads(self._source, log_id):
            if head.reach <= next_position:
                with contextlib.suppress(NotFound):  # its writer has made a newer one: the copy does without
                    if not self._target.exists(key):
                        data = self._source.read(key)
                        self._target.create(key, [data])
                        self._stored += data.size
                return

    def _publish(self, there: Manifests, wanted: Manifest, before: Known | None) -> None:
        """Make the copy a log, or let it have what has come since.

        What another copier brought since ``before`` stays: it may have deleted what this one refers to.
        """
        if there.newest() is None and there.create(wanted) is not None:
            return

        def change(manifest: Manifest) -> Manifest:
            self._check(Known(0, manifest), wanted, wanted.name)
            _check_grown(there.closed_from(manifest, manifest.first_position), wanted.segments, wanted.name)
            if manifest.next_position > wanted.next_position:
                return manifest
            kept, used = sealing.used(there, wanted), sealing.used(there, manifest)
            is_alone = before is not None and _places(manifest) == _places(before.manifest)
            if manifest.next_position == wanted.next_position:
                if not is_alone or (kept == used and _settled(manifest) == _settled(wanted)):
                    return manifest
            elif before is not None and not is_alone:
                message = f"log {wanted.name!r} was copied there by somebody else meanwhile: copy it again"
                raise Unavailable(message)
            floor_us = max(wanted.staging_floor_us, manifest.staging_floor_us)
            if any(object_keys.created_us(key) < manifest.staging_floor_us for key in kept - used):
                message = (
                    f"log {wanted.name!r} was swept while it was copied to, and took too long for that: copy it again"
                )
                raise Unavailable(message)
            old = (used | {page.key for page in (*manifest.pages, *manifest.conflict_pages)}) - kept
            return msgspec.structs.replace(wanted, doomed=tuple(sorted(old)), staging_floor_us=floor_us)

        there.update(change)
        sealing.collect(self._target, there)


def _places(manifest: Manifest) -> tuple[object, ...]:
    """Return where a manifest has records, and what it knows of them."""
    return manifest.pages, manifest.segments, manifest.conflict_pages, manifest.conflicts, manifest.memory


def _settled(manifest: Manifest) -> Manifest:
    """Return a manifest without where its records are and what is to be deleted."""
    return msgspec.structs.replace(
        manifest, pages=(), segments=(), conflict_pages=(), conflicts=(), doomed=(), staging_floor_us=0
    )


def _check_grown(before: Iterable[Segment], segments: Iterable[Segment], name: str) -> None:
    """Raise ``InvalidArgument`` if a copy has other records than its log, as far as the log goes.

    A copy that was written to is a log of the same identity that goes its own way: a third home may be a copy of it.
    """
    then, now = ([segment for segment in some if segment.entries] for some in (before, segments))
    places = {segment.first_position: segment for segment in now}
    for old in then:
        if now and now[0].first_position <= old.first_position < now[-1].next_position:
            new = places.get(old.first_position)
            if new is None or not _has_grown(old, new, old_is_last=old is then[-1], new_is_last=new is now[-1]):
                message = (
                    f"the copy {name!r} has other records than this log in segment {old.number}, from a copy of the "
                    "same log that was written to: delete it first, or choose another name"
                )
                raise InvalidArgument(message)


def _has_grown(old: Segment, new: Segment, *, old_is_last: bool, new_is_last: bool) -> bool:
    """Tell whether one segment begins with the records of the other. Only the last one of a log grows."""
    if (old.number, old.first_timestamp_us) != (new.number, new.first_timestamp_us):
        return False
    if old.entries == new.entries:
        return old.last_timestamp_us == new.last_timestamp_us
    return old_is_last if old.entries < new.entries else new_is_last


def _content(key: str) -> str:
    """Return what a file's key says but for when it was made: that is the same in every home."""
    name = key.removeprefix(object_keys.PREFIX)
    return name.partition("-")[2] or name
