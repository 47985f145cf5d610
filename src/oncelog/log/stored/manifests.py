"""The log's truth as it is kept: versions won one after the other by conditional creates."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unavailable
from oncelog.format.manifest import (
    INLINE_SEGMENTS_MAX,
    PAGE_SEGMENTS,
    Manifest,
    Page,
    Segment,
    Version,
    decode_body,
    decode_page,
    decode_version,
    encode_body,
    encode_page,
    encode_version,
)
from oncelog.storage.base import REMOVING, LogHome

BODIES_KEPT = 16
"""How many further versions may come while a reader fetches the body of a version. After more of them the reader looks
for a newer version.
"""

_OF_LOGS = ("manifest/", "bodies/", "pages/", "segments/")
_OF_COPIES = ("sealed/", "dedup_snapshot/")

_T = TypeVar("_T")


class Known(NamedTuple):
    """A manifest, the number of the version it came from, and what tells that version from all others."""

    version: int
    manifest: Manifest
    nonce: bytes = b""


Change = Callable[[Manifest], Manifest]
"""A change of the manifest. It may be applied again to a newer manifest: then it returns its argument unchanged if the
change is there already, and raises (``WriterFenced``, say) if the change is no longer allowed.
"""


def version_key(number: int) -> str:
    """Return the key of a version object."""
    return f"manifest/{number:020d}"


class Manifests:
    """Reads the newest manifest of a log and adds versions to it. Safe to share between threads."""

    def __init__(self, home: LogHome, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._pages: dict[str, tuple[Segment, ...]] = {}
        self._last: Known | None = None  # the last that was read or won: what another thread knew may be older
        self._bodies: dict[int, str] = {}  # the keys of bodies that were made here, by their versions, until deleted

    @property
    def whole(self) -> Manifests:
        """The manifests of the whole log, also in the view of its conflicts: garbage collection needs them."""
        return self

    def newest(self, known: Known | None = None) -> Known | None:
        """Return the newest manifest there is (``None``: the log does not exist), starting from a known one.

        Versions are dense and never deleted, so the newest is found by doubling steps, without a list call. A search
        from the first one is made once: later ones begin where the last has ended.
        """
        searches = known is None
        known = self._last_there() if known is None else self._newer_than(known)
        while True:
            number = self._newest_number(known.version if known else 0)
            if searches and self._goes_on(number):
                continue
            if known is not None and number == known.version:
                return known
            if number == 0:
                return None
            found = self._load(number)
            if found is not None:
                self._note(found)
                return found

    def _note(self, found: Known) -> None:
        """Note the last manifest that was seen. If it is of another log, made again under the name, the home lets go of
        what it keeps of the blocks of the log before: nothing else tells them apart.
        """
        last, self._last = self._last, found
        if last is not None and last.manifest.log_id != found.manifest.log_id:
            self._home.forget()

    def _newer_than(self, known: Known) -> Known:
        """Return the last manifest that a thread of this process has seen, if that is newer than a known one of the
        same log: to begin there saves reading it again.
        """
        last = self._last
        is_newer = last is not None and last.version > known.version and last.manifest.log_id == known.manifest.log_id
        return last if last is not None and is_newer else known

    def _last_there(self) -> Known | None:
        """Return the last manifest that a thread of this process has seen, if its log is there now."""
        last = self._last
        return last if last is not None and self.is_same(last) else None

    def _newest_number(self, known: int) -> int:
        """Return the highest version number there is, at least ``known``."""
        low, step = known, 1
        while self._home.exists(version_key(low + step)):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._home.exists(version_key(middle)):
                low = middle
            else:
                high = middle
        return low

    def _goes_on(self, number: int) -> bool:
        """Tell whether there are newer versions by now; ``CorruptionError`` when there are, and the next is missing.

        A search that lands on a hole would take an old manifest for the newest, and later records for not written.
        """
        if not self._home.exists(version_key(number + 2)):
            return False
        if not self._home.exists(version_key(number + 1)):
            message = f"{version_key(number + 1)} is missing, and newer ones are there: restore it from a copy"
            raise CorruptionError(message)
        return True

    def _load(self, number: int) -> Known | None:
        """Return a version's manifest, or ``None`` when its body is gone because newer ones came."""
        version, last = self.version(number), self._last
        if last is not None and (last.version, last.nonce) == (number, version.nonce):
            return last
        try:
            data = self._home.read(version.body_key)
        except NotFound:
            if self._home.exists(version_key(number + 1)):
                return None
            message = f"manifest version {number} points to {version.body_key}, which is missing"
            raise CorruptionError(message) from None
        if xxhash.xxh3_64_intdigest(data) != version.body_checksum:
            message = f"{version.body_key} is not the body that manifest version {number} points to"
            raise CorruptionError(message)
        return Known(number, decode_body(data, version.body_key), version.nonce)

    def version(self, number: int) -> Version:
        """Return one version object."""
        key = version_key(number)
        version = decode_version(self._home.read(key), key)
        if version.number != number:
            message = f"{key} says that it is version {version.number}"
            raise CorruptionError(message)
        return version

    def update(self, change: Change, known: Known | None = None) -> Known:
        """Apply a change on top of the newest manifest, by winning the next version; return what stands then.

        Losing a version to somebody else is not an error: the change is applied to theirs. ``Unavailable`` leaves it
        open whether the change was made: call again with the same change.

        The known manifest is taken for the newest until the next version is lost, or the change has nothing to do or
        fails: to look for a newer one first would be a request that hardly ever finds one, while appends wait.
        """
        current = self._there(known)
        while True:
            try:
                wanted = change(current.manifest)
            except OncelogError:  # a page was replaced since, say; or a newer manifest allows the change
                newer = self._after(current)
                if newer.version == current.version:
                    raise
                current = newer
                continue
            if wanted is not current.manifest:
                wanted = self._spill(wanted)
                won = self._offer(current.version + 1, wanted)
                if won is not None:
                    self._note(won)
                    self._forget_body(won.version - BODIES_KEPT)
                    return won
                self._forget_pages(wanted, current.manifest)
            newer = self._after(current)
            if wanted is current.manifest and newer.version == current.version:
                return current
            current = newer

    def _after(self, known: Known) -> Known:
        """Return the newest manifest of the log that a known one is of; ``NotFound`` if the log was deleted."""
        newer = self.newest(known)
        if newer is None or newer.manifest.log_id != known.manifest.log_id:
            raise gone()
        return newer

    def _there(self, known: Known | None) -> Known:
        """Return a manifest to begin with: one that is known, or the newest; ``NotFound`` if its log was deleted.

        A version on top of a log that was made again since would be taken for one of its own, when it gets there.
        """
        last = None if known is None else self._newer_than(known)
        found = self.newest() if last is None else last if self.is_same(last) else None
        if found is None:
            raise gone()
        return found

    def look(self, known: Known, work: Callable[[Manifest], _T]) -> tuple[Known, _T]:
        """Return what ``work`` finds by a manifest, and that manifest.

        Pages that were replaced, segments that were sealed and files that were merged are deleted while readers still
        use an older manifest. If ``work`` finds such an object gone, it runs again with the newest manifest. An object
        that the newest manifest names and that is gone is a ``CorruptionError``.
        """
        while True:
            try:
                return known, work(known.manifest)
            except NotFound as error:
                newer = self.newest(known)
                if newer is None or not self.is_there(known):
                    raise  # the log was deleted
                if newer.version == known.version:
                    message = f"{error}, though manifest version {known.version} refers to it: restore it from a copy"
                    raise CorruptionError(message) from error
                known = newer

    def check_not_lost(self, *, copying: bool = False) -> None:
        """Raise ``CorruptionError`` when the manifest of a log that was here is lost. See ``is_lost``."""
        if self.is_lost(copying=copying):
            message = (
                f"{self._home.location('manifest')} is missing, and records of a log are beside it: restore it from a "
                "copy; to begin a new log here, move what is there away first"
            )
            raise CorruptionError(message)

    def is_lost(self, *, copying: bool = False) -> bool:
        """Tell whether a log was here and its manifest is gone: a new log must not begin over its records.

        With ``copying``, files that an unfinished copy to this place has stored are no evidence of a log.
        """
        if not self._has_remains(copying=copying) or self._home.exists(REMOVING):
            return False
        return not self._newest_number(0) and self._has_remains(copying=copying)  # else created or deleted meanwhile

    def _has_remains(self, *, copying: bool) -> bool:
        """Tell whether anything is stored that only a log with a manifest, or a copy, stores."""
        prefixes = _OF_LOGS if copying else (*_OF_LOGS, *_OF_COPIES)
        first = f"bodies/{1:020d}-"  # may be of a log whose creation was cut short
        keys = self._home.list("")
        return any(key.startswith(prefixes) and not key.startswith(first) for key in keys) or self._home.has_segments()

    def is_there(self, known: Known) -> bool:
        """Tell whether the log that a manifest was read of is still there: versions go only with it."""
        return self._home.exists(version_key(known.version))

    def is_same(self, known: Known) -> bool:
        """Do the same, also for a log that was made again under the name: its versions carry other nonces."""
        try:
            return self.version(known.version).nonce == known.nonce
        except NotFound:
            return False

    def create(self, manifest: Manifest) -> Known | None:
        """Make the first version; ``None`` when somebody else made it."""
        return self._offer(1, self._spill(manifest))

    def _offer(self, number: int, manifest: Manifest) -> Known | None:
        """Try to create a version; ``None`` when the number is taken by another."""
        nonce = self._clock.token(8)
        body_key = f"bodies/{number:020d}-{nonce.hex()}"
        body = encode_body(manifest)
        self._home.create(body_key, [body])
        version = Version(number, manifest.epoch, nonce, body_key, xxhash.xxh3_64_intdigest(body))
        if self._create_version(version):
            self._bodies[number] = body_key
            return Known(number, manifest, nonce)
        self._delete_quietly(body_key)
        return None

    def _create_version(self, version: Version) -> bool:
        """Create the version object; when the answer is lost, look whose it is."""
        data = encode_version(version)
        try:
            if self._home.create(version_key(version.number), [data]):
                return True
        except Unavailable as error:
            if error.outcome != "unknown" or not self._home.exists(version_key(version.number)):
                raise
        return self.version(version.number).nonce == version.nonce

    def _spill(self, manifest: Manifest) -> Manifest:
        """Move the oldest segments to pages when a body has grown long."""
        while len(manifest.segments) > INLINE_SEGMENTS_MAX:
            old, recent = manifest.segments[:PAGE_SEGMENTS], manifest.segments[PAGE_SEGMENTS:]
            pages = (*manifest.pages, self._write_page(old))
            manifest = msgspec.structs.replace(manifest, pages=pages, segments=recent)
        while len(manifest.conflicts) > INLINE_SEGMENTS_MAX:
            old, recent = manifest.conflicts[:PAGE_SEGMENTS], manifest.conflicts[PAGE_SEGMENTS:]
            pages = (*manifest.conflict_pages, self._write_page(old))
            manifest = msgspec.structs.replace(manifest, conflict_pages=pages, conflicts=recent)
        return manifest

    def _write_page(self, segments: tuple[Segment, ...]) -> Page:
        key = f"pages/{segments[0].number:020d}-{self._clock.token(8).hex()}"
        data = encode_page(segments)
        self._home.create(key, [data])
        return Page(
            key,
            xxhash.xxh3_64_intdigest(data),
            segments[0].first_position,
            segments[-1].next_position,
            len(segments),
            sum(segment.size_bytes for segment in segments),
        )

    def page(self, page: Page) -> tuple[Segment, ...]:
        """Return a page's segments."""
        found = self._pages.get(page.key)
        if found is None:
            data = self._home.read(page.key)
            if xxhash.xxh3_64_intdigest(data) != page.checksum:
                message = f"{page.key} is not the page that the manifest points to"
                raise CorruptionError(message)
            found = self._pages[page.key] = decode_page(data, page.key)
        return found

    def closed_from(self, manifest: Manifest, position: int) -> Iterator[Segment]:
        """Yield the closed segments, oldest first, beginning with the one that holds ``position``."""
        first = bisect.bisect_right(manifest.pages, position, key=lambda page: page.next_position)
        for page in manifest.pages[first:]:
            yield from (segment for segment in self.page(page) if segment.next_position > position)
        start = bisect.bisect_right(manifest.segments, position, key=lambda segment: segment.next_position)
        yield from manifest.segments[start:]

    def closed_back(self, manifest: Manifest) -> Iterator[Segment]:
        """Yield the closed segments, newest first."""
        yield from reversed(manifest.segments)
        for page in reversed(manifest.pages):
            yield from reversed(self.page(page))

    def conflicts(self, manifest: Manifest) -> Iterator[Segment]:
        """Yield the segments of rows that were put aside, oldest first."""
        for page in manifest.conflict_pages:
            yield from self.page(page)
        yield from manifest.conflicts

    def replaced(self, manifest: Manifest, changes: Mapping[int, Segment]) -> Manifest:
        """Return a manifest in which some closed segments are replaced; the pages that hold them are written again."""
        pages, doomed = [], []
        left = dict(changes)
        for page in manifest.pages:
            held = self.page(page) if _may_hold(page, changes) else ()
            if not any(segment.number in changes for segment in held):
                pages.append(page)
                continue
            pages.append(self._write_page(tuple(left.pop(segment.number, segment) for segment in held)))
            doomed.append(page.key)
        return msgspec.structs.replace(
            manifest,
            pages=tuple(pages),
            segments=tuple(left.get(segment.number, segment) for segment in manifest.segments),
            doomed=(*manifest.doomed, *doomed),
        )

    def sweep(self, known: Known) -> None:
        """Delete bodies that a crash left behind: those of versions long past, and those that lost their version."""
        for key in self._home.list("bodies/"):
            if int(key[7:27]) <= known.version - BODIES_KEPT:
                self._delete_quietly(key)

    def _forget_body(self, number: int) -> None:
        """Delete the body of an old version, and the notes of those that others have deleted."""
        if number < 1:
            return
        key = self._bodies.get(number)
        for old in [each for each in list(self._bodies) if each <= number]:
            self._bodies.pop(old, None)
        try:
            self._home.delete(key or self.version(number).body_key)
        except OncelogError:
            return  # a body too many costs a few kilobytes; the next sweep takes it

    def _forget_pages(self, wanted: Manifest, before: Manifest) -> None:
        """Delete the pages that were written for a version which somebody else has won. Nothing refers to them."""
        kept = {page.key for page in (*before.pages, *before.conflict_pages)}
        for page in (*wanted.pages, *wanted.conflict_pages):
            if page.key not in kept:
                self._delete_quietly(page.key)

    def _delete_quietly(self, key: str) -> None:
        try:
            self._home.delete(key)
        except OncelogError:
            return  # as above


def gone() -> NotFound:
    """Return the error for a log that is no longer there."""
    return NotFound("the log's manifest is gone: was it deleted?")


def _may_hold(page: Page, changes: Mapping[int, Segment]) -> bool:
    return any(page.first_position <= segment.first_position < page.next_position for segment in changes.values())
