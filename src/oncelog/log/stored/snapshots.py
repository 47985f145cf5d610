"""Dedup snapshots: a cache of the fold of the log, so that opening one does not read all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oncelog.clock import Clock
from oncelog.dedup.window import DedupWindow
from oncelog.errors import CorruptionError, NotFound, Unsupported
from oncelog.format import snapshot
from oncelog.format.snapshot import ProducerMark, Snapshot, SnapshotHead
from oncelog.settings import LogSettings
from oncelog.storage.base import LogHome

KEPT = 2
HEAD_BYTES = 4096


def prefix(log_id: str) -> str:
    """Return the prefix of the keys of a log's snapshots."""
    return f"dedup_snapshot/{log_id}/"


def save(home: LogHome, log_id: str, taken: Snapshot, clock: Clock) -> str:
    """Store a snapshot, then delete all but the newest two that can be read; return its key."""
    chunks = snapshot.encode(taken)
    timestamp_us = taken.created_us
    while not home.create(key := f"{prefix(log_id)}snapshot_{timestamp_us:020d}", chunks):
        if _is_stored(home, key, b"".join(chunks)):
            break
        timestamp_us = max(timestamp_us + 1, clock.now_us())
    kept = {newest for newest, _ in heads(home, log_id)[:KEPT]}
    for stale in set(home.list(prefix(log_id))) - kept:
        home.delete(stale)
    return key


def _is_stored(home: LogHome, key: str, content: bytes) -> bool:
    """Tell whether the name is taken by these very bytes: a client that repeats a create finds its own object."""
    try:
        return bool(home.read(key).to_pybytes() == content)
    except NotFound:
        return False


def heads(home: LogHome, log_id: str) -> list[tuple[str, SnapshotHead]]:
    """Return the keys of the snapshots whose head can be read, with those, newest first.

    The newest is the one with the highest watermark: names come from a clock, and clocks jump.
    """
    found = []
    for key in home.list(prefix(log_id)):
        try:
            head = snapshot.decode_head(home.read(key, 0, HEAD_BYTES), key)
        except (CorruptionError, NotFound, Unsupported):
            continue
        if head.log_id == log_id:
            found.append((key, head))
    return sorted(found, key=lambda item: (item[1].watermark, item[0]), reverse=True)


def discard(home: LogHome, log_id: str, next_position: int) -> None:
    """Delete the snapshots that know of records, or made room for some, which are not in the log: with others in their
    place they would pass.

    Called by a new writer before it writes, when ``next_position`` is decided. A log that was copied while it was
    written, or restored in part, may have snapshots that are ahead of it.
    """
    for key, head in heads(home, log_id):
        if head.reach > next_position:
            home.delete(key)


def readable(home: LogHome, log_id: str, next_position: int) -> Iterator[Snapshot]:
    """Yield the snapshots that can be believed, newest first: whole, of this log, and not ahead of what is decided."""
    for key, head in heads(home, log_id):
        if head.reach > next_position:
            continue
        try:
            yield snapshot.decode(home.read(key), key)
        except (CorruptionError, NotFound, Unsupported):
            continue


def snapshot_of(
    window: DedupWindow | None,
    *,
    settings: LogSettings,
    log_id: str,
    now_us: int,
    uptime_us: int,
    watermark: int,
    pending_until: int,
    segments: Sequence[tuple[int, int]],
    producers: Mapping[str, ProducerMark],
    tail_from: int = -1,
) -> Snapshot:
    """Return the committed part of a window, and the producers, as a snapshot that covers all before ``watermark``.

    Without a window, the snapshot has the size of a window without room: no writer takes it for an empty window. So
    has the snapshot of a table, which has all ids from ``tail_from`` on.
    """
    state = (window or DedupWindow(0, 0)).dump()
    kept = settings.window if window is not None and tail_from < 0 else None
    return Snapshot(
        log_id=log_id,
        created_us=now_us,
        uptime_us=uptime_us,
        watermark=watermark,
        duration_us=kept.duration_us if kept is not None else 0,
        max_keys=kept.keys_max if kept is not None else 0,
        segments=segments,
        identities=state.keys,
        positions=state.positions,
        fingerprints=state.fingerprints,
        ticks=state.ticks,
        times=state.times,
        starts=state.starts,
        producers=producers,
        pending_until=pending_until,
        tail_from=tail_from,
    )
