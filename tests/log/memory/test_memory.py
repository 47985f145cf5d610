"""Remembered as long as the record lives: retries meet the original in the table, in a run, in a merged run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec
import pytest

from oncelog import limits
from oncelog.errors import (
    AppendErrors,
    IdConflict,
    PartialOverlap,
    Unsupported,
)
from oncelog.format import frame
from oncelog.format import manifest as manifest_format
from oncelog.log.upkeep import memory_keeper
from oncelog.log.upkeep.background import Housekeeper
from oncelog.log.writer import Writer
from oncelog.settings import Window
from oncelog.types import Ack, Record
from tests.log.memory.orders import (
    SETTINGS,
    WAYS,
    append,
    check,
    labelled,
    many,
    record,
    remember,
    retried,
    runs,
)
from tests.log.shop import Shop, in_memory

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loops", ["numpy", "numba"])
def test_acks_are_the_same_from_table_run_merged_run_and_after_reopening(
    shop: Shop, way: Callable[[Writer, Iterable[int]], list[Ack]], loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position, segment, entry and timestamp of a retry are those of the first attempt, wherever the id is by now."""
    if loops == "numba":
        pytest.importorskip("numba")
        from tests.dedup.test_compiled import Chosen

        Chosen(monkeypatch).by("numba")
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = []
        for number in range(80):
            acks += append(writer, [number])
            shop.clock.advance(0.5)
        assert way(writer, range(80)) == retried(acks)
        remember(writer)
        assert runs(log), "ids are in runs"
        assert writer._core.seen.window is not None
        assert writer._core.seen.window.count <= 8, "and the table forgot them"
        assert way(writer, range(80)) == retried(acks)
    log = shop.log()
    with log.writer() as writer:
        assert way(writer, range(80)) == retried(acks)
        assert labelled(writer, range(80)) == retried(acks)
    check(log, 80)


def test_runs_are_merged_and_cover_the_log_without_a_gap(shop: Shop) -> None:
    """Neighbours of one size become one run; what they replace is deleted, and nothing is left over."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        for start in range(0, 400, 8):
            many(writer, range(start, start + 8))
        remember(writer)
    found = runs(log)
    assert [first for first, _ in found[1:]] == [end for _, end in found[:-1]], "they tile"
    assert found[0][0] == 0
    assert len(found) < 20, "fifty segments are in fewer runs"
    manifest = log._manifest()
    assert not manifest.doomed
    stored = {key for key in shop.home.list("sealed/") if ".ids" in key or ".times" in key}
    assert stored == {key for run in manifest.memory for key in run.keys()}  # noqa: SIM118
    check(log, 400)


def test_a_conflict_is_a_conflict_in_a_run(shop: Shop) -> None:
    """The same id with other content is refused with the position of the first, however long ago that was."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(40))
        remember(writer)
        with pytest.raises(IdConflict) as refused:
            writer.append(b"other", id="o-3")
        assert refused.value.position == acks[3].position
        with pytest.raises(AppendErrors) as errors:
            writer.append_many([record(2), Record(b"other", id="o-3"), record(40)])
        assert isinstance(errors.value.results[1], IdConflict)
    check(log, 41)


def test_batches_are_told_from_runs(shop: Shop) -> None:
    """Exactly a stored batch is answered from a run; a part of it, more, another order or two of them is refused."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        batches = [[record(n) for n in range(start, start + 3)] for start in range(0, 60, 3)]
        acks = [writer.append_batch(batch) for batch in batches]
        single = writer.append(record(60).value, id=record(60).id)
        many(writer, range(61, 80))
        remember(writer)
        assert runs(log)
        for batch, told in zip(batches, acks, strict=True):
            assert writer.append_batch(batch) == retried(told)
        assert writer.append_batch([record(60)]) == retried([single])
        first, second = batches[0], batches[1]
        for wrong in (first[:2], first[1:], first[::-1], [*first, *second], [*first, record(99)], [first[0]]):
            with pytest.raises(PartialOverlap):
                writer.append_batch(wrong)
        with pytest.raises(IdConflict):
            writer.append_batch([Record(b"other", id="o-0"), *first[1:]])
    check(log, 80)


def test_three_hundred_repeats_of_one_id_and_a_switch(shop: Shop) -> None:
    """What a bounded window stored again and again is known by its newest record once the memory is without bounds."""
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=1)))
    with log.writer() as writer:
        for number in itertools.islice(itertools.cycle([0, 1]), 600):
            assert not append(writer, [number])[0].duplicate
    log.configure(SETTINGS)
    with log.writer() as writer:
        assert [ack.position for ack in append(writer, [0, 1])] == [598, 599]
        remember(writer)
        assert [ack.position for ack in append(writer, [0, 1])] == [598, 599]
        many(writer, range(2, 40))
        remember(writer)
    with log.writer() as writer:
        assert [ack.position for ack in append(writer, [0, 1, 2])] == [598, 599, 600]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []
    assert sum(run.ids for run in log._manifest().memory) >= 600, "runs hold the repeats too"


def test_an_older_version_is_told_to_upgrade(shop: Shop) -> None:
    """A body that names runs has a number that an older Oncelog refuses: it would drop them and store ids twice."""
    log = shop.log(SETTINGS)
    data = manifest_format.encode_body(log._manifest())
    with pytest.raises(Unsupported, match="upgrade"):
        frame.unwrap(manifest_format.BODY_KIND, 1, data, "body")


def test_a_sweep_leaves_runs_alone(shop: Shop) -> None:
    """Files that nothing refers to go after a day; runs are referred to, and what a killed build left is not."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(60))
        remember(writer)
    left = "sealed/00000000000000000001-0011223344556677.0.ids"
    shop.home.create(left, [b"of a build that was killed"])
    shop.clock.jump(3 * 86_400)
    assert log.sweep() == [left]
    with shop.log().writer() as writer:
        assert many(writer, range(60)) == retried(acks)
    check(log, 60)


def test_a_copy_remembers_what_its_log_remembers(shop: Shop) -> None:
    """Runs go with the log: the copy's first writer knows every id, and reads no record for it."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    other = in_memory()
    with shop.process() as here, other.process() as there:
        here.copy("orders", there)
        copied = there.log("orders")
        assert runs(copied) == runs(log)
        with copied.writer() as writer:
            assert writer._core.seen.window is not None
            assert writer._core.seen.window.count < 20, "only the tail was read"
            found = many(writer, range(100))
        assert [(ack.position, ack.segment, ack.entry) for ack in found] == [
            (ack.position, ack.segment, ack.entry) for ack in acks
        ]
        assert all(ack.duplicate for ack in found)
        check(copied, 100)
        here.copy("orders", in_memory().process())  # into another place, as often as one likes


def test_what_was_written_under_a_bounded_window_is_known_after_the_switch_and_back(shop: Shop) -> None:
    """Runs stay while the memory is bounded; what came meanwhile is known, too, when it is without bounds again."""
    bounded = msgspec.structs.replace(SETTINGS, window=Window(max_keys=4))
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(40))
        remember(writer)
    log.configure(bounded)
    with log.writer() as writer:
        assert not append(writer, [0])[0].duplicate, "a bounded window forgets"
        many(writer, range(40, 60))
    log.configure(SETTINGS)
    with log.writer() as writer:
        found = many(writer, range(60))
        assert all(ack.duplicate for ack in found)
        assert found[0].position == 40, "the newest record of an id counts"
        remember(writer)
        assert many(writer, range(60)) == found
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_purge_makes_no_id_unknown(shop: Shop) -> None:
    """Rows that were purged keep identity and position: retries meet them, from the runs and from the log."""
    log = shop.log(msgspec.structs.replace(SETTINGS, window=Window(max_keys=4)))
    with log.writer() as writer:
        many(writer, range(40))
        many(writer, range(60))
    log.configure(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(60))
        remember(writer)
    log.seal()
    assert log.purge(remove=True).purged == 40
    for lost in (False, True):
        for run in log._manifest().memory if lost else ():
            shop.home.delete(run.part_key(0))
        with shop.log().writer() as writer:
            assert [ack.position for ack in many(writer, range(60))] == [ack.position for ack in acks]
            remember(writer)
            assert [ack.position for ack in many(writer, range(60))] == [ack.position for ack in acks]
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


@pytest.mark.parametrize("is_long", [False, True])
def test_a_long_merge_is_not_begun_by_each_writer_that_opens(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, is_long: bool
) -> None:
    """A writer that is closed after each batch began it each time, and never ended it. One that goes on makes it."""
    log = shop.log(SETTINGS)
    asked: list[str] = []
    monkeypatch.setattr(Housekeeper, "ask", lambda _, name, __: asked.append(name))
    with monkeypatch.context() as patched, log.writer() as writer:
        patched.setattr(memory_keeper, "to_merge", lambda _: None)
        for first in range(0, 32, 8):
            many(writer, range(first, first + 8))
            remember(writer)
        many(writer, [32, 33])  # too few for a run
        remember(writer)
    assert len(runs(log)) == 4
    if is_long:
        monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 31)
    asked.clear()
    with log.writer() as writer:
        assert ("memory" in asked) == (not is_long)
        many(writer, range(34, 44))  # it closes a segment
        assert "memory" in asked
        remember(writer)
    assert len(runs(log)) < 4
