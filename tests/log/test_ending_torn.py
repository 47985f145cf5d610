"""A writer whose core was torn, and that is closed: the next writer believes nothing that the torn one left."""

from __future__ import annotations

from pathlib import Path

import oncelog
from oncelog.log.append.core import TORN
from oncelog.log.log import Log
from oncelog.log.takeover.recovery import LeftTable
from oncelog.log.writer import Writer


def stored(log: Log) -> list[tuple[int, bytes]]:
    """Return positions and values."""
    with log.read() as entries:
        return [(entry.position, entry.value) for entry in entries]


def tear(writer: Writer, id: bytes, value: bytes) -> None:
    """Leave the core as Ctrl-C does that comes behind the table's change, and again before the core is ended."""
    core = writer._core
    high, low, fingerprint = writer._admitter._hasher.both(id, value)
    core.error = TORN
    assert core.window is not None
    core.window.find_or_add_one(high, low, core.next_position, fingerprint)


def test_an_id_that_was_never_stored_is_not_left_to_the_next_writer(tmp_path: Path) -> None:
    """Its retry would be answered with the position of another record, and be nowhere."""
    with oncelog.connect(tmp_path) as db:
        log = db.log("orders", create=True)
        writer = log.writer()
        writer.append(b"first", id="first")
        tear(writer, b"lost", b"lost")
        writer.close()
        with log.writer() as writer:
            assert writer.append(b"other", id="other").position == 1
            retried = writer.append(b"lost", id="lost")
            assert (retried.position, retried.duplicate) == (2, False)
        assert stored(log) == [(0, b"first"), (1, b"other"), (2, b"lost")]
        assert not [finding for finding in log.verify().findings if finding.severity == "error"]


def test_a_block_that_was_never_written_is_not_counted(tmp_path: Path) -> None:
    """The manifest would have an entry, an end and a checksum that the file has not."""
    with oncelog.connect(tmp_path) as db:
        log = db.log("orders", create=True)
        writer = log.writer()
        writer.append(b"first", id="first")
        core = writer._core
        core.error = TORN
        core.tail.entries += 1
        core.tail.size_bytes += 384
        writer.close()
        with log.writer() as writer:
            assert writer.append(b"second", id="second").position == 1
        assert stored(log) == [(0, b"first"), (1, b"second")]
        assert not [finding for finding in log.verify().findings if finding.severity == "error"]


def test_a_table_with_pending_ids_is_not_left(tmp_path: Path) -> None:
    """Nor one to a log that was made anew under the name."""
    with oncelog.connect(tmp_path) as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            writer.append(b"first", id="first")
            window, manifest = writer._core.window, log._manifest()
            left = LeftTable.of(window, manifest)
            assert left is not None
            assert window is not None
            window.find_or_add_one(1, 2, 1, 3)
            assert LeftTable.of(window, manifest) is None
            window.commit(2, 1, 1)
        other = db.log("others", create=True)._manifest()
        assert not left.is_of(other)
