"""Staging: files with records are written beside a log, by any process; one manifest version makes them segments later.

A *staged* file holds records without places or times, and beside it are its records' identities, sorted. The writer,
with nothing pending, looks these up; what is new as a whole is adopted. Adopted identities do not spend the window's
keys: each file's are searched as they are, as long as the window's duration says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from oncelog import shapes
from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.dedup.repeats import alike, among, repeated
from oncelog.errors import InvalidArgument
from oncelog.format import identities as identities_format
from oncelog.format import sealed
from oncelog.format.identities import Identities
from oncelog.format.manifest import labels_of
from oncelog.format.payload import arrays
from oncelog.log.stored.object_keys import PREFIX, new_key
from oncelog.log.stored.staged import Staged
from oncelog.storage.base import LogHome

_DIGESTS = 1 << 64
_PART_NUMBERS = 1 << 18
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class Prepared(NamedTuple):
    """A file that is ready to be stored and adopted: its bytes, its records' identities, and what ``Staged`` tells."""

    data: pa.Buffer
    identities: Identities
    records: int
    digest: int
    labels: int


def prepare(hasher: Hasher, payloads: Iterable[pa.RecordBatch], schema: pa.Schema = sealed.STAGED_SCHEMA) -> Prepared:
    """Make a file of checked payloads, which have no columns but those of ``schema``."""
    count = digest = labels = 0
    found: list[_Named] = []

    def tables() -> Iterable[pa.RecordBatch]:
        nonlocal count, digest, labels
        for payload in payloads:
            labels |= labels_of(payload)
            fingerprints = hasher.fingerprints(payload)
            named = _named(hasher, payload, fingerprints, count)
            found.append(named)
            digest += _digest(fingerprints, named, count)
            count += payload.num_rows
            yield sealed.to_staged(payload, schema)

    data = sealed.encode(tables(), schema)
    if not count:
        message = "there are no records to stage"
        raise InvalidArgument(message)
    return Prepared(data, _sorted(found), count, digest % _DIGESTS, labels)


def store(home: LogHome, clock: Clock, prepared: Prepared, floor_us: int = 0) -> Staged:
    """Store a file that can be adopted.

    ``floor_us`` is the log's staging floor: a clock that was once ahead must not keep new files from being adopted.
    """
    key = new_key(clock, floor_us)
    home.create(key, [prepared.data])
    ids = len(prepared.identities.rows)
    beside = None
    if ids:
        beside = key.removesuffix(".parquet") + ".ids"
        home.create(beside, identities_format.encode(prepared.identities))
    return Staged(
        key=key,
        records=prepared.records,
        size_bytes=prepared.data.size,
        checksum=xxhash.xxh3_64_intdigest(prepared.data),
        identities=beside,
        ids=ids,
        digest=prepared.digest,
        labels=prepared.labels,
    )


def stage(home: LogHome, hasher: Hasher, clock: Clock, payloads: Iterable[pa.RecordBatch], floor_us: int = 0) -> Staged:
    """Write checked payloads as a file that can be adopted; may be called by anybody, without the log's writer."""
    return store(home, clock, prepare(hasher, payloads), floor_us)


def identities_of(hasher: Hasher, payloads: Iterable[tuple[pa.RecordBatch, int]]) -> Identities:
    """Return the identities of payloads, each given with the number of its first row."""
    return _sorted(
        [_named(hasher, payload, hasher.fingerprints(payload), first_row) for payload, first_row in payloads]
    )


class _Named(NamedTuple):
    """The rows of a payload that carry an id: identities, fingerprints, and numbers in the file."""

    keys: NDArray[np.uint64]
    fingerprints: NDArray[np.uint64]
    rows: NDArray[np.uint32]


def _named(hasher: Hasher, payload: pa.RecordBatch, fingerprints: NDArray[np.uint64], first_row: int) -> _Named:
    at = payload.schema.get_field_index("id")
    if at < 0:
        return _Named(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
    ids = payload.column(at)
    if not ids.null_count:
        rows = np.arange(first_row, first_row + len(ids), dtype=np.uint32)
        return _Named(hasher.keys(payload), fingerprints, rows)
    chosen = np.flatnonzero(arrays.present(ids))
    keys = hasher.keys(payload.filter(ids.is_valid()))
    return _Named(keys, fingerprints[chosen], (chosen + first_row).astype(np.uint32))


def _sorted(parts: Sequence[_Named]) -> Identities:
    """Return the identities of all parts together: sorted once, not part by part."""
    if not parts:
        return Identities.joined([])
    high, low = (np.concatenate([part.keys[:, half] for part in parts]) for half in (0, 1))
    fingerprints, rows = (np.concatenate(column) for column in zip(*(part[1:] for part in parts), strict=True))
    return Identities.ordered(high, low, fingerprints, rows)


def _digest(fingerprints: NDArray[np.uint64], named: _Named, first_row: int) -> int:
    """Return a digest of rows that does not depend on their order: a sum over what each row is and says."""
    said = _mix(fingerprints.copy())
    who = _mix(named.keys[:, 0] ^ _mix(named.keys[:, 1].copy()))
    if len(who) == len(said):
        said += who
    else:
        said[named.rows.astype(np.int64) - first_row] += who
    return int(_mix(said).sum(dtype=np.uint64))


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make each number one whose every bit depends on all of its bits, so that sums of them tell rows apart."""
    spare = numbers >> np.uint64(30)
    numbers ^= spare
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(numbers, np.uint64(27), out=spare)
    numbers ^= spare
    numbers *= np.uint64(0x94D049BB133111EB)
    np.right_shift(numbers, np.uint64(31), out=spare)
    numbers ^= spare
    return numbers


def search_exact(identities: Identities, others: Identities) -> NDArray[np.bool_]:
    """Tell which of the others are there with the same content. One identity may be there with several."""
    held = np.stack([identities.high, identities.low, identities.fingerprints], axis=1)
    asked = np.stack([others.high, others.low, others.fingerprints], axis=1)
    triple = np.dtype([("high", "u8"), ("low", "u8"), ("fingerprint", "u8")])
    return np.isin(asked.view(triple)[:, 0], held.view(triple)[:, 0])


def joint_digest(staged: Sequence[Staged]) -> int:
    """Return the digest of the rows of all the files together."""
    return sum(file.digest for file in staged) % _DIGESTS


Repeats = tuple[int, NDArray[np.int64], NDArray[np.uint64]]
"""A file's number, places among its identities that occur earlier, and the fingerprints of those that came first."""


def repeats(identities: Sequence[Identities | None]) -> Iterator[Repeats]:
    """Yield, for each file that has any, the identities that occur before in it or in an earlier file."""
    halves = _alike([found.high for found in identities if found is not None])
    if not halves.size:
        return
    begins = np.cumsum([0, *(0 if found is None else len(found.high) for found in identities)])
    parts = []
    for found, begin in zip(identities, begins, strict=False):
        if found is not None:
            rows = among(found.high, halves)
            keys = np.stack([found.high[rows], found.low[rows]], axis=1)
            parts.append((keys, begin + rows, found.fingerprints[rows]))
    keys, places, prints = (np.concatenate(part) for part in zip(*parts, strict=True))
    _, again, firsts = repeated(keys, places)
    files = np.searchsorted(begins, again, "right") - 1
    for number in np.unique(files).tolist():
        chosen = files == number
        yield number, again[chosen] - begins[number], prints[np.searchsorted(places, firsts[chosen])]


def _alike(runs: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the numbers that are there more than once, sorted. Runs are sorted and as good as random, so those of many
    numbers are looked at in parts of about the same size, by all cores.
    """
    parts = max(1, sum(map(len, runs)) // _PART_NUMBERS)
    bounds = np.array([number * 2**64 // parts for number in range(1, parts)], np.uint64)
    cuts = [[0, *np.searchsorted(run, bounds).tolist(), len(run)] for run in runs]

    def alike_in(part: int) -> NDArray[np.uint64]:
        held = [run[cut[part] : cut[part + 1]] for run, cut in zip(runs, cuts, strict=True)]
        return alike(np.concatenate([np.empty(0, np.uint64), *held]))

    return np.concatenate(at_once(alike_in, range(parts), os.cpu_count() or 1))


def at_once(work: Callable[[_Part], _Result], parts: Sequence[_Part], count: int, parts_min: int = 2) -> list[_Result]:
    """Return what ``work`` returns for each part, done by ``count`` threads if there are as many as ``parts_min``."""
    if len(parts) < parts_min:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(count, "oncelog-adoption") as threads:
        try:
            results = threads.map(work, parts)
        except RuntimeError:  # there is no thread to be had, or Python is about to end
            return [work(part) for part in parts]
        return list(results)


def check(staged: Sequence[Staged]) -> None:
    """Raise ``InvalidArgument`` for what cannot be a staged file."""
    if len({file.key for file in staged}) < len(staged):
        message = "a staged file can be adopted once, and one of these is there twice"
        raise InvalidArgument(message)
    for file in staged:
        if not file.key.startswith(PREFIX) or file.records < 1:
            message = f"{file.key}: not a staged file"
            raise InvalidArgument(message)


shapes.prepare(Staged)
