"""Ingesting a batch of staged files exactly once: by its mark, by the ids of its rows, and by one manifest version.

Duplicates are left out, conflicts are put aside or refused, and the rest is adopted. Only a file of which
rows are left out is written again. A process that dies leaves staged files that nothing refers to, or a batch that
is in, with its mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oncelog.errors import IdConflict, InvalidArgument, Unavailable
from oncelog.format.identities import Identities
from oncelog.format.manifest import File, Mark, MarkedBatch
from oncelog.format.payload import intake
from oncelog.format.payload.arrays import booleans
from oncelog.log.append.session import WriterSession
from oncelog.log.ingest import batch_marks, conflicts, staging
from oncelog.log.ingest.adopter import Adopter, JudgedFiles
from oncelog.log.ingest.batch_marks import BatchName, Replay
from oncelog.log.stored.files import SealedFiles
from oncelog.log.stored.staged import Staged, read_identities
from oncelog.log.takeover.adoption import Adoption

OnConflict = Literal["quarantine", "error", "original"]
OnReplay = Literal["error", "skip", "ids"]
ATTEMPTS_MAX = 10
"""How often a batch is judged again because others wrote meanwhile."""


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch: the first position of its rows (``None``: none of them is new), how many were adopted,
    known before, and put aside or dropped because their id is taken. ``replayed``: it was there, nothing was done.
    """

    first_position: int | None = None
    records: int = 0
    duplicates: int = 0
    conflicts: int = 0
    replayed: bool = False


class Ingester:
    """Ingests for one writer."""

    def __init__(self, session: WriterSession, adopter: Adopter) -> None:
        self._home = session.home
        self._manifests = session.manifests
        self._run = session.run
        self._adopter = adopter
        self._hasher = session.hasher
        self._clock = session.clock
        self._files = SealedFiles(session.home)

    def ingest(
        self,
        staged: Sequence[Staged],
        batch: BatchName | None,
        *,
        on_conflict: OnConflict,
        on_replay: OnReplay,
        deadline_us: int | None,
    ) -> Ingested:
        """Bring a batch in, unless it is there."""
        mark = None
        if batch is not None:
            batch_marks.check(batch)
            mark = batch_marks.find(self._run.known.manifest.marks, batch.producer)
            batch_marks.check_owner(mark, batch)
            if _is_done(mark, batch, staged, on_replay):
                return Ingested(replayed=True)
        if not staged:
            return Ingested()
        for _ in range(ATTEMPTS_MAX):
            judged = self._adopter.judge(staged, deadline_us)
            if on_conflict == "error":
                self._refuse_conflicts(judged)
            done = self._adopt(judged, batch, mark, on_conflict, deadline_us)
            if done is not None:
                return done
        message = f"a batch could not be adopted: others wrote to the log in each of {ATTEMPTS_MAX} attempts"
        raise Unavailable(message)

    def _adopt(
        self,
        judged: JudgedFiles,
        batch: BatchName | None,
        mark: Mark | None,
        on_conflict: OnConflict,
        deadline_us: int | None,
    ) -> Ingested | None:
        """Leave out what is known, and adopt the rest with the mark; ``None`` when the log has moved on meanwhile."""
        kept, identities = self._kept(judged)
        conflicting = sum(int(np.count_nonzero(flags)) for flags in judged.conflicts)
        aside = self._put_aside(judged) if conflicting and on_conflict == "quarantine" else ()
        records = sum(file.records for file in kept)
        total = sum(file.records for file in judged.staged)
        counts = (records, total - records - conflicting, conflicting)
        wanted = Adoption(staged=kept, conflicts=aside, mark=self._advanced(mark, batch, judged.staged, counts))
        if wanted == Adoption():
            return Ingested(duplicates=counts[1], conflicts=conflicting)
        segments = self._adopter.commit(judged, wanted, identities, deadline_us)
        if segments is None:
            return None
        first = segments[0].first_position if segments else None
        return Ingested(first_position=first, records=records, duplicates=counts[1], conflicts=conflicting)

    def _advanced(
        self, mark: Mark | None, batch: BatchName | None, staged: Sequence[Staged], counts: tuple[int, int, int]
    ) -> Mark | None:
        if batch is None:
            return None
        brought = MarkedBatch(batch.number, *_sums(staged))
        return batch_marks.advanced(mark, batch, brought, counts, self._clock.now_us())

    def _kept(self, judged: JudgedFiles) -> tuple[tuple[Staged, ...], list[Identities | None]]:
        """Return files with what is new alone, and their identities; a file that is new as a whole is not touched."""
        kept: list[Staged] = []
        identities: list[Identities | None] = []
        for number, file in enumerate(judged.staged):
            known = judged.rows(number, judged.known)
            if len(known) == file.records:
                continue
            if not len(known):
                kept.append(file)
                identities.append(judged.identities[number])
                continue
            chosen = np.ones(file.records, np.bool_)
            chosen[known] = False
            restaged = self._stage(self._chosen(file, chosen))
            kept.append(restaged)
            beside = restaged.identities
            identities.append(None if beside is None else read_identities(self._home, beside))
        return tuple(kept), identities

    def _put_aside(self, judged: JudgedFiles) -> tuple[Staged, ...]:
        """Stage the rows whose id is taken by other content, each once, but for those that were put aside before."""
        _, before = self._manifests.look(  # its pages are replaced while conflicts are put together
            self._run.known, lambda manifest: conflicts.recent(self._home, self._manifests, manifest)
        )
        parts: list[pa.RecordBatch] = []
        for number, (file, found) in enumerate(zip(judged.staged, judged.identities, strict=True)):
            if found is None or not judged.conflicts[number].any():
                continue
            aside = conflicts.once(found, judged.conflicts[number] & ~conflicts.holds(before, found))
            before.append(aside)
            chosen = np.zeros(file.records, np.bool_)
            chosen[aside.rows.astype(np.int64)] = True
            parts += self._chosen(file, chosen)
        return (self._stage(parts),) if parts else ()

    def _stage(self, payloads: Sequence[pa.RecordBatch]) -> Staged:
        floor_us = self._run.known.manifest.staging_floor_us
        return staging.stage(self._home, self._hasher, self._clock, payloads, floor_us)

    def _chosen(self, file: Staged, chosen: NDArray[np.bool_]) -> list[pa.RecordBatch]:
        """Return the chosen rows of a staged file."""
        parts = []
        for first_row, payload in self._rows(file):
            flags = chosen[first_row : first_row + payload.num_rows]
            if flags.any():
                parts.append(_slim(payload.filter(booleans(flags))))
        return parts

    def _rows(self, file: Staged) -> Iterator[tuple[int, pa.RecordBatch]]:
        opened = self._files.open(File(file.key, 0, file.size_bytes, file.checksum))
        for piece in opened.pieces(0, file.records):
            yield piece.first_row, piece.payload

    def _refuse_conflicts(self, judged: JudgedFiles) -> None:
        count = sum(int(np.count_nonzero(flags)) for flags in judged.conflicts)
        if not count:
            return
        number = next(number for number, flags in enumerate(judged.conflicts) if flags.any())
        row = int(judged.rows(number, judged.conflicts)[0])
        file = judged.staged[number]
        id = next(
            payload.column("id")[row - first].as_py()
            for first, payload in self._rows(file)
            if first <= row < first + payload.num_rows
        )
        message = (
            f"{count} of {sum(each.records for each in judged.staged)} rows have an id that is taken by other content, "
            f"as {id!r} is: nothing was written; give them ids of their own, or set onConflict to quarantine "
            "(they are put aside) or original (they are dropped)"
        )
        raise IdConflict(message, position=-1)


def _sums(staged: Sequence[Staged]) -> tuple[int, int]:
    """Return the rows of a batch, and its digest."""
    return sum(file.records for file in staged), staging.joint_digest(staged)


def _is_done(mark: Mark | None, batch: BatchName, staged: Sequence[Staged], on_replay: OnReplay) -> bool:
    """Tell whether a batch is there; ``InvalidArgument`` when its number is, with other rows, and that is an error."""
    replay = batch_marks.judge(mark, batch, *_sums(staged))
    if replay == "new":
        return False
    if replay == "same" or on_replay == "skip":
        return True
    assert mark is not None
    if on_replay == "error":
        raise InvalidArgument(_different(mark, batch, replay, *_sums(staged)))
    if any(file.ids < file.records for file in staged):
        message = (
            f"batch {batch.number} of producer {batch.producer!r} was there with other rows, and onReplay='ids' can "
            "tell rows apart by their ids only: some of these have none"
        )
        raise InvalidArgument(message)
    return False


def _different(mark: Mark, batch: BatchName, replay: Replay, records: int, digest: int) -> str:
    known = next((each for each in mark.batches if each.number == batch.number), None)
    before = f"{known.records} rows (digest {known.digest:016x})" if known is not None else "no rows"
    what = (
        f"was brought in with {before}, and comes again with {records} rows (digest {digest:016x})"
        if replay == "other"
        else f"was brought in so long ago (the newest is {mark.last}) that its rows cannot be compared any more"
    )
    return (
        f"batch {batch.number} of producer {batch.producer!r} {what}: nothing was written. Was a checkpoint restored "
        "from a backup, or a job run again over changed input? Set onReplay to 'skip' if it is to be taken for done, "
        "or to 'ids' to add the rows whose ids are not there"
    )


def _slim(payload: pa.RecordBatch) -> pa.RecordBatch:
    """Return a payload without columns that have become empty."""
    return intake.normalise(payload.drop_columns(["start"]) if "start" in payload.schema.names else payload)
