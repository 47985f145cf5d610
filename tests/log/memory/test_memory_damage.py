"""Runs that are lost or damaged, and storage that fails: an id is known, or an error says why it cannot be told."""

from __future__ import annotations

import contextlib

import pytest

from oncelog import limits
from oncelog.errors import (
    AppendErrors,
    CorruptionError,
    Unavailable,
)
from oncelog.format.runs.run import Run
from oncelog.log.upkeep.background import Housekeeper
from tests.log.memory.orders import (
    SETTINGS,
    append,
    check,
    labelled,
    many,
    record,
    remember,
    retried,
    submit,
    table,
)
from tests.log.shop import Shop, in_memory

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_is_lost_or_damaged_is_made_up_for(shop: Shop, *, gone: bool) -> None:
    """Its ids come from the log when a writer opens, and a new run takes its place; never is an id taken for new."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    key = log._manifest().memory[0].part_key(0)
    content = bytearray(shop.home.read(key).to_pybytes())
    shop.home.delete(key)
    if not gone:
        content[40] ^= 1
        shop.home.create(key, [content])
    assert any(key.split(".")[0] in finding.where for finding in log.verify().findings)
    log = shop.log()
    with log.writer() as writer:
        assert many(writer, range(100)) == retried(acks)
        remember(writer)
        assert key not in [run.part_key(0) for run in log._manifest().memory]
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_a_large_run_that_is_lost_is_an_error_that_says_rebuild(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer does not read millions of records by itself: the error names the command, and that mends it."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
    shop.home.delete(log._manifest().memory[0].part_key(0))
    monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 10)
    log = shop.log()
    with pytest.raises(CorruptionError, match="oncelog rebuild"):
        log.writer()
    done = log.rebuild()
    assert done.runs > 0
    with log.writer() as writer:
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_a_page_that_is_damaged_under_a_writer_refuses_its_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that need the page are a CorruptionError; others go on; nothing is written for those that failed."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)  # runs are made, and made again, when this test says so
    with log.writer() as writer:
        for first in range(0, 200, 8):
            many(writer, range(first, first + 8))
            writer._keeper._memory.work()
        run = log._manifest().memory[0]
        key = run.part_key(0)
        content = bytearray(shop.home.read(key).to_pybytes())
    part = run.parts[0]
    content[part.front_bytes + 100] ^= 1
    shop.home.delete(key)
    shop.home.create(key, [content])
    log = shop.log()
    with log.writer() as writer:
        before = writer.last_position
        with pytest.raises(CorruptionError):
            writer.append(record(run.first_position).value, id=f"o-{run.first_position}")
        with pytest.raises(AppendErrors) as refused:
            writer.append_many([record(run.first_position), record(1000)])
        assert isinstance(refused.value.results[0], CorruptionError)
        assert refused.value.results[1].position == before + 1
        assert any(finding.where == run.key for finding in log.verify().findings)
        remember(writer)
        assert run.key not in [run.key for run in log._manifest().memory], "it was made again, from the log"
        assert all(ack.duplicate for ack in many(writer, range(200)))
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def damage_a_page(shop: Shop, run: Run) -> None:
    """Change a byte in the first page of a run's entries."""
    key = run.part_key(0)
    content = bytearray(shop.home.read(key).to_pybytes())
    content[run.parts[0].front_bytes + 100] ^= 1
    shop.home.delete(key)
    shop.home.create(key, [content])


def test_a_page_that_no_look_up_touches_does_not_keep_runs_from_being_merged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge that meets the damage has the run made again. Tried as it is, it failed for ever, and with too many
    runs appends would fail.
    """
    monkeypatch.setattr(limits, "MEMORY_RUNS_MAX", 8)
    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(24))
        remember(writer)
    run = shop.log()._manifest().memory[-1]
    damage_a_page(shop, run)
    log = shop.log()
    with log.writer() as writer:
        monkeypatch.setattr(type(writer._admitter._recall.view.runs), "damaged", frozenset())  # no look-up sees it
        for first in range(1000, 1160, 8):
            writer.append_arrow(table(range(first, first + 8)))
            remember(writer)
        assert len(log._manifest().memory) < 8
        assert run not in log._manifest().memory
        assert many(writer, range(24)) == retried(acks)
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


def test_a_damaged_run_that_is_too_large_keeps_no_others_from_being_merged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it is until ``oncelog rebuild``, and the job says so; all others are merged around it."""
    with shop.log(SETTINGS).writer() as writer:
        acks = many(writer, range(24))
        remember(writer)
    run = shop.log()._manifest().memory[-1]
    damage_a_page(shop, run)
    monkeypatch.setattr(limits, "MEMORY_RUNS_MAX", 12)
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)
    log = shop.log()
    with log.writer() as writer:
        monkeypatch.setattr(limits, "MEMORY_FOLD_RECORDS_MAX", 2)
        for first in range(1000, 1160, 8):
            writer.append_arrow(table(range(first, first + 8)))
            with contextlib.suppress(CorruptionError):
                writer._keeper._memory.work()
        assert len(log._manifest().memory) < 12
        assert run in log._manifest().memory
        with pytest.raises(CorruptionError, match="oncelog rebuild"):
            writer._keeper._memory.work()
        log.rebuild()
        remember(writer)
        assert many(writer, range(24)) == retried(acks)
    assert [finding for finding in log.verify().findings if finding.severity == "error"] == []


@pytest.mark.parametrize("gone", [False, True])
def test_timestamps_of_a_run_that_are_lost_or_damaged_are_made_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    """The ack that needs them is refused once. Then the run is made again, and acks are as they always were."""
    with shop.log(SETTINGS).writer() as writer:
        acks = []
        for number in range(24):
            acks += append(writer, [number])
            shop.clock.advance(0.001)
        remember(writer)
    run = shop.log()._manifest().memory[0]
    key = run.times_key(0)
    content = bytearray(shop.home.read(key).to_pybytes())
    shop.home.delete(key)
    if not gone:
        content[-1] ^= 1
        content[run.times[0].front_bytes] ^= 1
        shop.home.create(key, [content])
    monkeypatch.setattr(Housekeeper, "ask", lambda *_: None)  # it would be made again at once
    log = shop.log()
    with log.writer() as writer:
        with pytest.raises(CorruptionError, match="oncelog rebuild"):
            append(writer, [run.first_position])
        remember(writer)
        assert append(writer, range(24)) == retried(acks)
    check(log, 24)


def test_a_run_that_verify_finds_damaged_is_rebuilt(shop: Shop) -> None:
    """Sound runs stay, the damaged one is made again, and its writer need not stop."""
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        acks = many(writer, range(100))
        remember(writer)
        before = log._manifest().memory
        key = before[0].part_key(0)
        content = bytearray(shop.home.read(key).to_pybytes())
        content[before[0].parts[0].front_bytes + 100] ^= 1
        shop.home.delete(key)
        shop.home.create(key, [content])
        done = shop.log().rebuild()
        after = log._manifest().memory
        assert done.runs >= 1
        assert before[0] not in after
        assert set(before[1:]) <= set(after)
        assert many(writer, range(100)) == retried(acks)
    check(log, 100)


def test_storage_that_does_not_answer_a_look_up_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id of which the runs cannot be asked is not taken for new: Unavailable, not written."""
    shop = in_memory()
    log = shop.log(SETTINGS)
    with log.writer() as writer:
        many(writer, range(40))
        remember(writer)
        end = writer.last_position

        def away(*_: object) -> None:
            message = "storage is away"
            raise Unavailable(message)

        with monkeypatch.context() as patch:
            patch.setattr(type(writer._admitter._recall.view.runs), "find_any", away)
            patch.setattr(type(writer._admitter._recall.view.runs), "find_one", away)
            for way in (append, many, submit, labelled):
                with pytest.raises(Unavailable):
                    way(writer, [0])
        assert writer.last_position == end
        assert all(ack.duplicate for ack in many(writer, range(40)))


def test_too_many_ids_that_wait_for_runs_hold_appends_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that takes blocks and no runs does not let the table grow for ever: Unavailable, not written; then on."""
    monkeypatch.setattr(limits, "MEMORY_TABLE_IDS_MAX", 32)
    shop = in_memory(auto_advance=True)
    log = shop.log(SETTINGS)

    def full(*_: object, **__: object) -> None:
        message = "no room for runs"
        raise Unavailable(message)

    with log.writer() as writer:
        with monkeypatch.context() as patch:
            patch.setattr("oncelog.log.upkeep.memory_keeper.store_run", full)
            with pytest.raises(Unavailable, match="faster than storage"):
                append(writer, range(200))
            assert 32 <= writer.last_position < 60
        count = writer.last_position + 1
        assert all(not ack.duplicate for ack in many(writer, range(count, 100)))
    check(log, 100)
