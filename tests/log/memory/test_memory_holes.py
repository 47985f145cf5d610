"""The ways in which a memory as long as the record could fail that were found on paper, each with its test.

``HOLES`` is the list. What has no better place is tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from oncelog.errors import InvalidArgument
from oncelog.limits import KIB
from oncelog.log.log import Log
from oncelog.log.writer import Writer
from oncelog.settings import LogSettings, Window
from oncelog.types import Ack, Record
from tests.log.shop import Shop

TESTS = Path(__file__).parents[2]
SETTINGS = LogSettings(segment_bytes=64 * KIB, seal="off", snapshot_interval_s=1e6)
pytestmark = pytest.mark.usefixtures("tiny")

HOLES = {
    "a message dies again in a group that was made again": (
        "queue/deliver/test_dead_letters_ids.py::test_a_message_dies_again_in_a_group_that_was_made_again"
    ),
    "a message dies again when a group went back, its state being lost": (
        "queue/deliver/test_dead_letters_ids.py::test_a_message_dies_again_in_a_state_that_was_lost"
    ),
    "dead letters were deleted, and begin at 0 again": (
        "queue/deliver/test_dead_letters_ids.py::test_letters_that_begin_again_at_0_are_sent_back"
    ),
    "sent, consumed, trimmed and sent again": (
        "queue/send/test_sender.py::test_what_is_committed_and_trimmed_is_not_sent_again"
    ),
    "truncation forgets sooner than a window would": (
        "log/memory/test_memory_truncation.py::test_truncation_is_held_back_by_the_floor"
    ),
    "an ack that differs in table, run, merged run, after opening": (
        "log/memory/test_memory.py::test_acks_are_the_same_from_table_run_merged_run_and_after_reopening"
    ),
    "an id that a window let in 300 times": (
        "log/memory/test_memory.py::test_three_hundred_repeats_of_one_id_and_a_switch"
    ),
    "equal keys across pages": "log/memory/test_run_set.py::test_the_newest_of_many_repeats_is_found",
    "first halves that are equal": "log/memory/test_run_set.py::test_first_halves_that_repeat_are_told_apart",
    "numbered ids, 200 secrets": "dedup/runs/test_filters.py::test_numbered_ids_are_as_good_as_random_ones",
    "a bit of a filter that falls to 0": "log/memory/test_run_set.py::test_no_byte_of_a_part_changes_an_answer",
    "a look-up in storage with the lock held": (
        "log/memory/test_memory_together.py::test_runs_are_never_read_with_the_lock_held"
    ),
    "a run that is published between look-up and decision": (
        "log/memory/test_memory_schedule.py::test_a_retry_meets_its_original_in_every_order"
    ),
    "a writer that was taken over publishes late": (
        "log/memory/test_memory_schedule.py::test_a_writer_that_is_taken_over_at_any_step_and_goes_on_late"
    ),
    "a run that comes after its segments changed": (
        "log/memory/test_coverage.py::test_a_run_that_comes_late_is_refused_and_deleted"
    ),
    "a file of many rows is looked up while others append": (
        "log/memory/test_memory_adoption.py::test_what_happens_while_a_file_is_looked_up_in_the_table"
    ),
    "batches that a sorted run cannot tell": "log/memory/test_memory.py::test_batches_are_told_from_runs",
    "ten thousand micro-batches": "log/memory/test_memory_scale.py::test_ten_thousand_micro_batches",
    "small adoptions make many runs": "log/memory/test_memory_adoption.py::test_many_small_adoptions_leave_few_runs",
    "places that cost more the more segments there are": (
        "log/stored/test_segment_index.py::test_places_are_those_that_one_position_has_and_pages_are_read_once"
    ),
    "an older version drops the runs": "log/memory/test_memory.py::test_an_older_version_is_told_to_upgrade",
    "an older version's default window": (
        "golden/test_database.py::test_the_same_program_opens_its_log_after_the_upgrade"
    ),
    "a sweep deletes the memory": "log/memory/test_memory.py::test_a_sweep_leaves_runs_alone",
    "a copy shares a cache with its original": "log/memory/test_front_cache.py::test_a_copy_goes_its_own_way",
    "a copy forgets": "log/memory/test_memory.py::test_a_copy_remembers_what_its_log_remembers",
    "a run that is lost or damaged is read as absence": (
        "log/memory/test_memory_damage.py::test_a_run_that_is_lost_or_damaged_is_made_up_for"
    ),
    "a page that is damaged under a writer": (
        "log/memory/test_memory_damage.py::test_a_page_that_is_damaged_under_a_writer_refuses_its_keys_alone"
    ),
    "storage that does not answer is read as absence": (
        "log/memory/test_memory_damage.py::test_storage_that_does_not_answer_a_look_up_writes_nothing"
    ),
    "the table grows for ever": (
        "log/memory/test_memory_damage.py::test_too_many_ids_that_wait_for_runs_hold_appends_back"
    ),
    "a merge loses entries": "log/memory/test_merging.py::test_what_was_lost_on_the_way_is_noticed",
    "a merge needs the memory of its runs": "log/memory/test_merging.py::test_memory_is_bounded_by_a_part",
    "a close waits for a merge": (
        "log/memory/test_memory_together.py::test_a_writer_that_is_closed_does_not_wait_for_a_merge"
    ),
    "a purge makes an id unknown": "log/memory/test_memory.py::test_a_purge_makes_no_id_unknown",
    "a purged row is found where nothing is": "log/test_find.py::test_a_purged_record_is_found_where_its_survivor_is",
    "the switch under a living bounded writer": (
        "log/memory/test_memory_holes.py::test_a_switch_under_a_living_bounded_writer"
    ),
    "a snapshot of a tail is taken for a window": (
        "log/memory/test_memory_holes.py::test_a_switch_to_bounds_keeps_what_the_bounds_allow"
    ),
    "verify misses adopted ids in the snapshot of a tail": (
        "log/memory/test_memory_holes.py::test_a_snapshot_with_adopted_ids_is_sound"
    ),
    "bounded, unbounded, and back": (
        "log/memory/test_memory.py::test_what_was_written_under_a_bounded_window_is_known_after_the_switch_and_back"
    ),
    "adopted ids of a bounded window are all in memory": (
        "log/memory/test_memory_bounded.py::test_many_ids_bring_a_run_and_few_become_one"
    ),
    "appended ids in a run of a bounded window count": (
        "log/memory/test_memory_bounded.py::test_appended_ids_in_a_run_count_as_the_window_says"
    ),
    "identities are deleted before a run has them": "crash/test_adopted_ladder.py::test_killed_at_a_call_on_a_disk",
    "the keeper takes back the run of an adoption": (
        "log/memory/test_memory_together.py::test_a_run_that_an_adoption_shows_is_not_taken_back"
    ),
    "records without ids between runs": "log/memory/test_memory_holes.py::test_idempotence_off_and_on_again",
    "bounds that refresh, and are not there": "log/memory/test_memory_holes.py::test_refreshing_needs_bounds",
    "killed at any call": "crash/test_memory_ladder.py::test_killed_at_a_call_on_a_disk",
    "a call that fails": "crash/test_memory_ladder.py::test_a_call_on_a_disk_that_fails_once",
    "a loader that is killed and started over": (
        "crash/test_memory_kill.py::test_a_loader_that_is_killed_and_started_over_stores_every_row_once"
    ),
}


def many(writer: Writer, numbers: range) -> list[Ack]:
    """Append records, four at a time."""
    chosen = [Record(b"order %d" % number, id=f"o-{number}") for number in numbers]
    return [ack for at in range(0, len(chosen), 4) for ack in writer.append_many(chosen[at : at + 4])]


def remember(writer: Writer) -> None:
    """Have runs built and merged now."""
    writer._keeper._housekeeper.stop()
    writer._keeper._memory.work()


def check(log: Log) -> None:
    """See that the log finds nothing wrong with itself."""
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


@pytest.mark.parametrize("hole", HOLES)
def test_every_hole_has_its_test(hole: str) -> None:
    """A test that is renamed or removed takes its name from the list, too."""
    path, _, name = HOLES[hole].partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()


def test_a_switch_under_a_living_bounded_writer(shop: Shop) -> None:
    """The writer that is open keeps its bounds, and stores again what it has forgotten, beside a rebuild. The next one
    knows all that is in the log, by the newest record, and the log does not call the repeats a broken promise.
    """
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=4)))
    with log.writer() as writer:
        many(writer, range(24))
    with log.writer() as writer:
        many(writer, range(24, 40))
        log.configure(SETTINGS)
        assert log.rebuild().ids == 24, "what is closed"
        again = many(writer, range(20))
        assert not any(ack.duplicate for ack in again), "its window is the one that it was opened with"
        many(writer, range(40, 60))
        log.rebuild()
    check(log)
    with log.writer() as writer:
        found = many(writer, range(60))
        assert all(ack.duplicate for ack in found)
        assert [ack.position for ack in found] == [*range(40, 60), *range(20, 40), *range(60, 80)]
        remember(writer)
        assert many(writer, range(60)) == found
    assert log.info().last_position == 79
    check(log)


def test_a_switch_to_bounds_keeps_what_the_bounds_allow(shop: Shop) -> None:
    """A snapshot of an unbounded log has only what no run has: it must not pass for all that the window should know."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(40))
        remember(writer)
        many(writer, range(40, 44))
        writer.snapshot()
    log.configure(msgspec.structs.replace(SETTINGS, window=Window(max_keys=30)))
    with log.writer() as writer:
        assert all(ack.duplicate for ack in many(writer, range(20, 44)))
    check(log)


@pytest.mark.parametrize("window", [Window(), Window(max_keys=100)], ids=["unbounded", "bounded"])
def test_a_snapshot_with_adopted_ids_is_sound(shop: Shop, window: Window) -> None:
    """The table has the ids of small adopted files, so its snapshot has them: verify finds them in the log. A bounded
    window keeps them beside it.
    """
    log = shop.log(msgspec.structs.replace(SETTINGS, window=window))
    with log.writer() as writer:
        many(writer, range(4))
        for id in ("a", "b"):
            writer.ingest([log.stage([pa.table({"id": [id], "value": pa.array([b"x"], pa.binary())})])])
        many(writer, range(4, 8))
        writer.snapshot()
    assert log.info().snapshots
    check(log)


def test_idempotence_off_and_on_again(shop: Shop) -> None:
    """Segments without ids lie between those with ids: runs go over them, and everything that has an id is known."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        first = many(writer, range(20))
    log.configure(msgspec.structs.replace(SETTINGS, idempotence="off"))
    with log.writer() as writer:
        for _ in range(20):
            writer.append(b"anonymous")
    log.configure(SETTINGS)
    with log.writer() as writer:
        first += many(writer, range(20, 40))
        for _ in range(2):
            assert [ack.position for ack in many(writer, range(40))] == [ack.position for ack in first]
            remember(writer)
    with shop.log().writer() as writer:
        assert [ack.position for ack in many(writer, range(40))] == [ack.position for ack in first]
    assert log.info().last_position == 59
    check(log)


def test_refreshing_needs_bounds(shop: Shop) -> None:
    """An id that never ages cannot be made younger: it is refused, not passed over."""
    with pytest.raises(InvalidArgument, match="needs bounds"):
        shop.log(LogSettings(window=Window(refresh_on_hit=True)))
