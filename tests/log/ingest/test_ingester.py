"""Ingesting batches of staged files exactly once, however often they come, in whatever order and company."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog.connect import Database
from oncelog.errors import IdConflict, InvalidArgument, NotFound, Unsupported
from oncelog.limits import MARK_S_MAX, MARKED_BATCHES_MAX
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.log.ingest.ingester import Ingested, OnConflict, OnReplay
from oncelog.log.log import Log
from oncelog.log.stored import object_keys
from oncelog.log.stored.staged import Staged
from oncelog.settings import LogSettings
from oncelog.storage.memory import MemoryStorage
from oncelog.testing.faults import Killed, When
from oncelog.types import Record
from tests.log.ingest.adoption import adopt
from tests.log.shop import LOG, SETTINGS, Shop, append, plain, records, stage, values
from tests.log.worlds import DiskWorld, living

QUERY = "4f1c"


def batch(number: int, producer: str = QUERY, owner: str = QUERY) -> BatchName:
    """Return a batch of a query."""
    return BatchName(producer=producer, number=number, owner=owner)


def ingest(
    log: Log,
    content: Sequence[Sequence[Record]],
    named: BatchName | None = None,
    *,
    on_conflict: OnConflict = "quarantine",
    on_replay: OnReplay = "error",
) -> Ingested:
    """Stage each sequence as a file, and ingest them as a writer that comes and goes."""
    files = [stage(log, part) for part in content if part]
    with log.writer() as writer:
        return writer.ingest(files, named, on_conflict=on_conflict, on_replay=on_replay)


def conflicting(shop: Shop) -> list[bytes]:
    """Return the values of what was put aside."""
    with shop.process().log(f"conflicts.{LOG}").read() as found:
        return [entry.value for entry in found]


def test_a_batch_comes_in_once(shop: Shop) -> None:
    """The same batch again, its rows in another order and in other files, by another process: nothing is done."""
    log = shop.log(SETTINGS)
    rows = records(0, 20)  # a quarter of them without ids: the mark alone can tell
    done = ingest(log, [rows[:5], rows[5:]], batch(0))
    assert (done.first_position, done.records, done.replayed) == (0, 20, False)
    again = ingest(shop.log(), [rows[12:], rows[::-1][8:15], rows[:5]], batch(0))
    assert again == Ingested(replayed=True)
    assert ingest(shop.log(), [rows[:1]], batch(1), on_conflict="error").records == 1, "a row without an id is new"
    assert values(log) == [each.value for each in [*rows, rows[0]]]
    assert log.verify().ok


def test_one_version_brings_rows_and_mark(shop: Shop) -> None:
    """Rows without their mark, or a mark without its rows, would be a batch twice, or lost."""
    log = shop.log(SETTINGS)
    files = [stage(log, plain(range(3))), stage(log, plain(range(3, 6)))]
    with log.writer() as writer:
        version = log.info().version
        writer.ingest(files, batch(7))
        assert log.info().version == version + 1
    (mark,) = log.marks()
    assert (mark.producer, mark.owner, mark.last, mark.records) == (QUERY, QUERY, 7, 6)


def test_ids_that_are_known_are_left_out(shop: Shop) -> None:
    """Rows that were appended, adopted, or come twice in the batch are there once; only their files are rewritten."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        append(writer, plain([1])[0])
        adopt(writer, [stage(log, plain([2]))])
    untouched = stage(log, plain([7, 8]))
    files = [stage(log, plain([0, 1, 2, 3, 3])), untouched, stage(log, plain([3, 7, 9])), stage(log, plain([0]))]
    with log.writer() as writer:
        done = writer.ingest(files)
    assert (done.records, done.duplicates, done.conflicts) == (5, 6, 0)
    assert values(log) == [each.value for each in plain([1, 2, 0, 3, 7, 8, 9])]
    assert untouched.key in [file.path.split("/orders/")[-1] for file in log.files()] or untouched.key in str(
        log.files()
    )
    assert log.verify().ok


def test_nothing_new_still_moves_the_mark(quick: Shop) -> None:
    """A batch of duplicates is remembered, and counted."""
    log = quick.log(SETTINGS)
    ingest(log, [plain(range(4))], batch(0))
    done = ingest(log, [plain(range(4))], batch(1))
    assert (done.first_position, done.records, done.duplicates) == (None, 0, 4)
    (mark,) = log.marks()
    assert (mark.last, mark.records, mark.duplicates) == (1, 4, 4)


def test_without_rows_nothing_is_written(quick: Shop) -> None:
    """An empty batch costs no manifest version, and may come again as often as it likes."""
    log = quick.log(SETTINGS)
    with log.writer() as writer:
        version = log.info().version
        assert writer.ingest([], batch(3)) == Ingested()
        assert log.info().version == version
    ingest(log, [plain([1])], batch(4))
    assert ingest(log, [], batch(3)).replayed


@pytest.mark.parametrize(("on_conflict", "aside"), [("quarantine", 3), ("original", 0)])
def test_conflicts_do_not_stop_a_batch(shop: Shop, on_conflict: OnConflict, aside: int) -> None:
    """An id with other content is put aside, or dropped when that is asked for; every other row is adopted."""
    log = shop.log(SETTINGS)
    ingest(log, [plain([1, 2])])
    wrong = [Record(b"other", id="id-1"), Record(b"else", id="id-5"), Record(b"more", id="id-1")]
    done = ingest(
        log, [plain([4, 5]), [wrong[0], *plain([6, 2]), wrong[1], wrong[2]]], batch(0), on_conflict=on_conflict
    )
    assert (done.records, done.duplicates, done.conflicts) == (3, 1, 3)
    assert values(log) == [each.value for each in plain([1, 2, 4, 5, 6])]
    assert conflicting(shop) == [each.value for each in wrong][:aside]
    assert shop.process().log(f"conflicts.{LOG}").verify().ok
    assert ingest(log, [plain([4, 5, 6, 2]), wrong], batch(0)).replayed
    assert len(conflicting(shop)) == aside


def test_conflicts_that_come_again_are_put_aside_once(quick: Shop) -> None:
    """A lost checkpoint brings a batch under another name: its rows are where they were, conflicts too."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1])])
    wrong = [Record(b"other", id="id-1"), Record(b"another", id="id-1")]
    assert ingest(log, [[*plain([2]), wrong[0]]], batch(0)).conflicts == 1
    done = ingest(log, [[*plain([2]), *wrong]], batch(0, "new", "new"))
    assert (done.records, done.duplicates, done.conflicts) == (0, 1, 2)
    assert conflicting(quick) == [b"other", b"another"]


def test_conflicts_that_come_twice_in_a_batch_are_put_aside_once(quick: Shop) -> None:
    """A retry of a bad row is a retry, whether it falls into the same file, another file, or the next batch."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1])])
    wrong = [Record(b"other", id="id-1"), Record(b"another", id="id-1")]
    done = ingest(log, [[*wrong, wrong[0]], [wrong[1], *plain([2])]], batch(0))
    assert (done.records, done.conflicts) == (1, 4)
    assert ingest(log, [wrong], batch(1)).records == 0
    assert sorted(conflicting(quick)) == [b"another", b"other"]


def test_conflicts_may_be_an_error(quick: Shop) -> None:
    """Asked to, one bad row refuses the batch, names an id, and leaves nothing behind, no mark either."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1])])
    with pytest.raises(IdConflict, match=r"1 of 3 rows .*'id-1'"):
        ingest(log, [[*plain([2, 3]), Record(b"other", id="id-1")]], batch(0), on_conflict="error")
    assert (len(values(log)), log.marks(), conflicting(quick)) == (1, [], [])


def test_conflicts_are_read_and_nothing_else(quick: Shop) -> None:
    """What was put aside is a log to read: it cannot be written, made or deleted by itself."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1])])
    ingest(log, [[Record(b"other", id="id-1")]])
    aside = quick.process().log(f"conflicts.{LOG}")
    assert (aside.info().last_position, aside.name) == (0, "conflicts.orders")
    with pytest.raises(Unsupported):
        aside.writer()
    with pytest.raises(InvalidArgument):
        quick.process().log(f"conflicts.{LOG}", create=True)
    with pytest.raises(InvalidArgument):
        quick.process().delete(f"conflicts.{LOG}")
    with pytest.raises(NotFound):
        quick.process().log("conflicts.nothing")
    with log.writer() as writer:  # it is not busy
        append(writer, plain([9])[0])


def test_a_replay_with_other_rows_is_an_error_unless_told_otherwise(quick: Shop) -> None:
    """A restored checkpoint, or changed input, is not silently taken for done; ``skip`` and ``ids`` say what it is."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1, 2])], batch(0))
    ingest(log, [plain([3])], batch(2))
    with pytest.raises(InvalidArgument, match=r"batch 0 .* 2 rows .* comes again with 3 rows"):
        ingest(log, [plain([1, 2, 8])], batch(0))
    with pytest.raises(InvalidArgument, match="no rows"):
        ingest(log, [plain([8])], batch(1))
    assert ingest(log, [plain([1, 2, 8])], batch(0), on_replay="skip").replayed
    assert len(values(log)) == 3
    done = ingest(log, [plain([1, 2, 8])], batch(0), on_replay="ids")
    assert (done.records, done.duplicates) == (1, 2)
    assert log.marks()[0].last == 2
    with pytest.raises(InvalidArgument, match="some of these have none"):
        ingest(log, [[Record(b"without")]], batch(1), on_replay="ids")


def test_what_cannot_be_compared_is_not_taken_for_the_same(quick: Shop) -> None:
    """Far below the mark nothing is known of a batch but that it was there."""
    log = quick.log(SETTINGS)
    for number in range(MARKED_BATCHES_MAX + 2):
        ingest(log, [plain([number])], batch(number))
    assert ingest(log, [plain([2])], batch(2)).replayed
    with pytest.raises(InvalidArgument, match="cannot be compared"):
        ingest(log, [plain([1])], batch(1))


def test_a_producer_belongs_to_its_query(quick: Shop) -> None:
    """A new checkpoint counts from 0 again: under an old name it is refused with an explanation, not skipped."""
    log = quick.log(SETTINGS)
    ingest(log, [plain([1])], batch(5, "importer", "first"))
    for other in ("second", ""):
        with pytest.raises(InvalidArgument, match=r"belongs to query first.*another producer name"):
            ingest(log, [plain([2])], batch(0, "importer", other))
    assert ingest(log, [plain([2])], batch(0, "importer-2", "second")).records == 1


def test_marks_are_kept_for_the_active(quick: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks expire after long inactivity, and the least recently active goes when there are too many."""
    monkeypatch.setattr("oncelog.log.takeover.adoption.MARKS_MAX", 3)
    log = quick.log(SETTINGS)
    for number in range(5):
        ingest(log, [plain([number])], batch(0, f"p{number}"))
    ingest(log, [plain([9])], batch(1, "p2"))
    assert [mark.producer for mark in log.marks()] == ["p3", "p4", "p2"]
    quick.clock.advance(MARK_S_MAX)
    ingest(log, [plain([10])], batch(2, "p2"))
    quick.clock.advance(1)
    ingest(log, [plain([11])], batch(3, "p2"))
    assert [mark.producer for mark in log.marks()] == ["p2"]


@pytest.mark.parametrize("named", [BatchName(producer="", number=0), BatchName(producer="p", number=-1)])
def test_names_that_are_none(quick: Shop, named: BatchName) -> None:
    """A producer without a name, and a batch before the first, are refused."""
    with pytest.raises(InvalidArgument):
        ingest(quick.log(SETTINGS), [plain([1])], named)


def test_content_ids_make_rows_known(quick: Shop) -> None:
    """Where content is the id, rows that come again under another producer are duplicates."""
    log = quick.log(LogSettings(idempotence="content", seal="off"))
    files = [log.stage([pa.table({"value": pa.array(content, pa.binary())})]) for content in ([b"a"], [b"a", b"b"])]
    with log.writer() as writer:
        writer.ingest(files[:1], batch(0))
        assert writer.ingest(files[1:], batch(0, "other", "other")).records == 1


def test_staged_files_go_by_age_and_late_drivers_are_told(quick: Shop) -> None:
    """What was staged and never adopted is removed after a day, with a report; its sleeping driver is refused."""
    log = quick.log(SETTINGS)
    late, lost = stage(log, plain([1])), stage(log, plain([2]))
    adopted = [stage(log, plain([3])), stage(log, [Record(b"other", id="id-3")])]
    with log.writer() as writer:
        writer.ingest(adopted)
    quick.clock.advance(object_keys.STAGED_S + 1)
    assert sorted(log.sweep()) == sorted(_keys(late, lost, adopted[1]))
    with log.writer() as writer, pytest.raises(NotFound, match="stage its records again"):
        writer.ingest([late], batch(0))
    assert (len(values(log)), conflicting(quick)) == (1, [b"other"])
    assert log.marks() == []


def test_small_batches_share_files(quick: Shop) -> None:
    """A stream of small batches does not leave a file for each: they are put together, and retries are still known."""
    log = quick.log(LogSettings())
    for number in range(50):
        ingest(log, [[Record(bytes([number]) * 100_000 + quick.clock.token(20_000), id=f"id-{number}")]], batch(number))
    before = values(log)
    log._tidy()
    assert len(log.files()) == 50, "they compress well: not worth a file yet"
    for number in range(50, 100):
        ingest(log, [[Record(quick.clock.token(100_000), id=f"id-{number}")]], batch(number))
    log._tidy()
    assert len(log.files()) == 1
    assert values(log)[:50] == before
    assert ingest(log, [plain([100]), [Record(before[7], id="id-7")]]).duplicates == 1
    assert log.verify().ok


def _keys(*files: Staged) -> list[str]:
    return [key for file in files for key in (file.key, file.identities) if key is not None]


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_killed_at_every_step_of_an_ingestion(when: When) -> None:
    """Wherever the driver dies, the batch that comes again leaves one copy: of new rows, and of conflicts."""
    first, second = plain(range(6)), [*plain(range(4, 9)), Record(b"other", id="id-1")]
    for number in itertools.count(1):
        world = DiskWorld(number)
        with living(world) as born:
            log = world.database().log(LOG, SETTINGS, create=True)
            ingest(log, [first], batch(0))
            files = [stage(log, second[:3]), stage(log, second[3:])]
            world.faults.kill_at(number, when)
            with contextlib.suppress(Killed):
                born(log.writer(wait_s=0)).ingest(files, batch(1))
            killed = world.faults.is_killed
        world.end("none", number)
        with living(world) as born:
            log = world.database().log(LOG)
            files = [stage(log, second[::-1])]
            writer = born(log.writer(wait_s=0))
            writer.ingest(files, batch(1))
            assert sorted(values(log)) == sorted(each.value for each in plain(range(9))), f"killed {when} {number}"
            with world.database().log(f"conflicts.{LOG}").read() as found:
                assert [entry.value for entry in found] == [b"other"], f"killed {when} {number}"
            assert log.marks()[-1].last == 1
        if not killed:
            break
    assert number > 5


@pytest.mark.parametrize("odd", [5, "x", b"x", 1.5, object(), {"a": 1}, [5], ["x"], Ellipsis, np.array(5)])
def test_what_is_no_staged_file_is_refused_by_name(odd: Any) -> None:
    """An AttributeError of a list of keys, say, told nobody which argument was meant."""
    with Database(MemoryStorage()) as db, db.log("orders", create=True).writer() as writer:
        with pytest.raises(InvalidArgument, match="staged"):
            writer.ingest(odd)
        with pytest.raises(InvalidArgument, match="batch"):
            writer.ingest([], odd)
        with pytest.raises(InvalidArgument, match="on_replay"):
            writer.ingest([], on_replay=odd)
        with pytest.raises(InvalidArgument):
            db.log("orders").stage(odd)
