"""An audit finds every id that is there again, and what is not whole; a rebuild gives the window that the log has."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncelog
from oncelog import LogSettings, Window
from oncelog.errors import InvalidArgument
from oncelog.log.jobs import find_repeats
from oncelog.log.log import Log

SMALL = LogSettings(window=Window(max_keys=3), segment_bytes=64 * 1024, seal="off")


def fill(log: Log, ids: list[str | None], *, other: set[int] = frozenset(), type: str | None = None) -> None:  # type: ignore[assignment]
    """Append records with these ids, in segments of their own; those at ``other`` places have other content."""
    with log.writer() as writer:
        for number, id in enumerate(ids):
            writer.append(b"other" if number in other else b"same", id=id, type=type)


def test_ids_beyond_the_window_are_found(tmp_path: Path) -> None:
    """What the window had forgotten and let in again is told, with where it was first, whatever it is kept in."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", SMALL, create=True)
        fill(log, ["a", "b", "c", "d", "e"])
        fill(log, ["a", "x", "y", "z", "b", "a", None, None], other={4})
        for _ in range(2):
            found = log.audit()
            assert (found.records, found.ids, found.duplicates, found.conflicts) == (13, 11, 2, 1)
            assert [(one.position, one.first, one.same) for one in found.sample] == [
                (5, 0, True),
                (9, 1, False),
                (10, 0, True),
            ]
            assert not found.ok
            log.seal()


def test_log_without_repeats_is_fine(tmp_path: Path) -> None:
    """Each id once: nothing is said. An empty log, and one without ids, are fine too."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        assert db.log("empty", create=True).audit().ok
        log = db.log("orders", create=True)
        fill(log, [str(number) for number in range(100)])
        assert log.audit().ok
        plain = db.log("plain", LogSettings(idempotence="off"), create=True)
        fill(plain, [None] * 10)
        assert (plain.audit().records, plain.audit().ids, plain.audit().ok) == (10, 0, True)


def test_counted_by_kind_and_by_hour(tmp_path: Path) -> None:
    """Who sends what again shows in the figures; they add up to all records."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", SMALL, create=True)
        fill(log, ["a", "b", "c", "d"], type="paid")
        fill(log, ["a", "e"], type="sent")
        fill(log, [None])
        fill(log, ["f"], type="")
        found = log.audit("type")
        assert {kind: (share.records, share.repeats) for kind, share in found.by.items()} == {
            "paid": (4, 0),
            "sent": (2, 1),
            "": (2, 0),
        }
        assert sum(share.records for share in found.hours.values()) == found.records
        assert sum(share.repeats for share in found.hours.values()) == 1


def test_several_passes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with more records than are compared at once is gone through several times, with the same result."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", SMALL, create=True)
        fill(log, [str(number % 40) for number in range(100)])
        whole = log.audit()
        monkeypatch.setattr(find_repeats, "RECORDS_A_PASS", 9)
        assert log.audit() == whole
        assert whole.duplicates == 60


def test_damage_is_told(tmp_path: Path) -> None:
    """A byte that is not what was written is a finding, not a wrong figure."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", SMALL, create=True)
        fill(log, [str(number) for number in range(100)])
        log.seal()
        path = Path(log.files()[0].path)
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        found = log.audit()
        assert not found.ok
        assert path.name in found.findings[0].what


def test_truncated_records_are_not_counted(tmp_path: Path) -> None:
    """What is gone is not audited, also if it is in the same file as what is there."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", SMALL, create=True)
        fill(log, [str(number) for number in range(50)])
        log.seal()
        log.rebuild()  # without a snapshot, the window could need all of the segment
        begins = log.truncate(20).first_position
        assert 0 < begins <= 20
        found = log.audit()
        assert (found.records, found.first_position, found.ok) == (50 - begins, begins, True)


# Rebuilding.


def test_rebuilt_snapshot_is_what_the_writer_had(tmp_path: Path) -> None:
    """With every snapshot gone, a rebuilt one makes the next writer know what the last one knew."""
    kept = LogSettings(window=Window(max_keys=50), snapshot_records=1_000_000, seal="off")
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", kept, create=True)
        fill(log, [str(number) for number in range(100)])
        log.seal()
        with log.writer() as writer:
            writer.append(b"same", id="100")
        for path in (tmp_path / "logs" / "orders" / "dedup_snapshot").rglob("snapshot_*"):
            path.unlink()
        done = log.rebuild()
        assert (done.ids, done.position) == (50, 101)
        assert list(log.info().snapshots.values()) == [101]
        assert log.verify().ok
        with log.writer() as writer:
            assert writer.append(b"same", id="60").position == 60
            assert not writer.append(b"same", id="20").duplicate


def test_log_without_ids_has_nothing_to_rebuild(tmp_path: Path) -> None:
    """Anybody who asks learns why."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        log = db.log("orders", LogSettings(idempotence="off"), create=True)
        with pytest.raises(InvalidArgument, match="keeps no ids"):
            log.rebuild()
