"""Asking for a log that somebody holds, where no lock keeps the others out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncelog.connect import Database
from oncelog.errors import LogBusy, Unavailable, WriterFenced
from oncelog.log import ending
from oncelog.log.log import Log
from oncelog.log.takeover import handover, recovery
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from oncelog.testing.bucket import FaultyBucket
from oncelog.testing.clock import SimulatedClock
from tests.log.watched import until

LONG_S = 60.0


def orders(bucket: Bucket) -> Log:
    """Return the log, as another process opens it."""
    return Database(ObjectStorage(bucket)).log("orders", create=True)


@pytest.fixture(autouse=True)
def _prompt(prompt: None) -> None:
    """Let nobody wait longer than a test needs."""


def test_a_holder_lets_go_when_it_is_asked(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had taken is stored, what comes later is refused as not written, and the one who asked goes on."""
    monkeypatch.setattr(handover, "TENURE_S", 0.0)
    old = orders(memory_bucket).writer()
    future = old.submit(b"taken", id="1")
    with orders(memory_bucket).writer(wait_s=LONG_S) as new:
        assert future.result(LONG_S).position == 0
        again = new.append(b"taken", id="1")
        assert (again.position, again.duplicate) == (0, True)
        with pytest.raises(WriterFenced) as fenced:
            old.append(b"late", id="2")
        assert fenced.value.outcome == "not written"
        assert new.append(b"late", id="2").position == 1
    old.close()


def test_a_holder_keeps_the_log_for_its_tenure(memory_bucket: Bucket) -> None:
    """A writer that does not wait that long learns that the log is busy, and the holder does not notice."""
    with orders(memory_bucket).writer() as holder:
        with pytest.raises(LogBusy, match="wait longer"):
            orders(memory_bucket).writer(wait_s=0.05)
        assert holder.append(b"v").position == 0


def test_whoever_waits_gets_the_log_when_it_is_closed(memory_bucket: Bucket) -> None:
    """A holder that leaves by itself is not waited for any longer."""
    holder = orders(memory_bucket).writer()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: orders(memory_bucket).writer(wait_s=LONG_S))
        holder.close()
        with waiting.result(LONG_S) as writer:
            assert writer.append(b"v").position == 0


def test_a_holder_that_does_not_answer_is_fenced(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the dead; should it live after all, it learns that it lost."""
    cut = FaultyBucket(memory_bucket)
    holder = orders(cut).writer()
    assert holder.append(b"v", id="1").position == 0
    cut.cut_off()
    monkeypatch.setattr(handover, "ANSWER_S", 0.01)
    with orders(memory_bucket).writer() as writer:
        assert writer.append(b"v", id="1").duplicate
        cut.faults.heal()
        with pytest.raises(WriterFenced):
            holder.append(b"w", id="2")
    holder.close()


def test_a_holder_that_answers_and_dies_is_fenced(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is good for as long as it says, and not for ever."""
    cut = FaultyBucket(memory_bucket)
    holder = orders(cut).writer()
    with pytest.raises(LogBusy):
        orders(memory_bucket).writer(wait_s=0)
    cut.cut_off()
    monkeypatch.setattr(handover, "TENURE_S", 0.01)
    monkeypatch.setattr(handover, "ANSWER_S", 0.01)
    with orders(memory_bucket).writer(wait_s=LONG_S) as writer:
        assert writer.append(b"v").position == 0
    cut.faults.heal()
    holder.close()


def test_a_holder_that_answered_and_died_is_not_taken_for_alive_for_ever(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for less than the answer says asks again, and the dead holder does not answer again: it is fenced."""
    cut = FaultyBucket(memory_bucket)
    holder = orders(cut).writer()
    cut.cut_off()
    memory_bucket.create(f"logs/orders/{handover.answer_key(1)}", [b"5000"])  # its last word
    with pytest.raises(LogBusy):
        orders(memory_bucket).writer(wait_s=0)
    monkeypatch.setattr(handover, "ANSWER_S", 0.01)
    with orders(memory_bucket).writer(wait_s=0) as writer:
        assert writer.append(b"v").position == 0
    cut.faults.heal()
    holder.close()


def test_by_force_nobody_is_asked(memory_bucket: Bucket) -> None:
    """The holder has no say, and nothing is left of a question."""
    holder = orders(memory_bucket).writer()
    holder.append(b"v", id="1")
    with orders(memory_bucket).writer(takeover="force") as writer:
        assert writer.append(b"v", id="1").duplicate
        with pytest.raises(WriterFenced):
            holder.append(b"w", id="2")
    holder.close()
    assert not [path for path, _ in memory_bucket.below("") if "/requests/" in path]


def test_questions_and_answers_are_cleared_away(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that changes hands a thousand times is not littered with them."""
    monkeypatch.setattr(handover, "TENURE_S", 0.0)
    writers = [orders(memory_bucket).writer(wait_s=LONG_S) for _ in range(5)]
    for writer in writers:
        writer.close()
    assert not [path for path, _ in memory_bucket.below("") if "/requests/" in path or "/answers/" in path]


def test_a_holder_that_cannot_store_what_it_took_lets_go_all_the_same(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way has an unknown outcome. It is not told to try again, which would be in vain for ever."""
    monkeypatch.setattr(handover, "TENURE_S", 0.0)
    monkeypatch.setattr(ending, "TIMEOUT_S", 0.01)
    faulty = FaultyBucket(memory_bucket)
    log = orders(faulty)
    holder = log.writer()
    holder.append(b"v", id="0")
    faulty.faults.fail_forever(
        lambda kind, what: Unavailable("full") if (kind, "/segments/" in what) == ("create", True) else None
    )
    future = holder.submit(b"v", id="1")
    memory_bucket.create(f"logs/orders/{handover.request_key(log.info().epoch)}", [b"asked"])
    error = future.exception(LONG_S)
    assert isinstance(error, WriterFenced)
    assert error.outcome == "unknown"
    with pytest.raises(WriterFenced) as fenced:
        holder.append(b"v", id="2")
    assert fenced.value.outcome == "not written"
    holder.close()


def test_a_writer_that_lost_its_log_looks_no_more(memory_bucket: Bucket) -> None:
    """Nobody can ask it for anything, and every look is paid for, though its owner may never close it."""
    holder = orders(memory_bucket).writer()
    with orders(memory_bucket).writer(takeover="force"):
        with pytest.raises(WriterFenced):
            holder.append(b"v")
        thread = holder._ending._watch._thread
        assert thread is not None
        thread.join(LONG_S)
        assert not thread.is_alive()
    holder.close()


@pytest.mark.parametrize("answer", [b"", b"soon", b"-1", b"9" * 5_000, "²".encode()])
def test_an_answer_that_no_writer_gives(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """It is worth no more than the longest a writer may ask for."""
    monkeypatch.setattr(handover, "ANSWER_S", 0.0)
    cut = FaultyBucket(memory_bucket)
    holder = orders(cut)
    dead = holder.writer()
    cut.cut_off()
    monkeypatch.setattr(handover, "TENURE_S", 0.01)
    memory_bucket.create(f"logs/orders/{handover.answer_key(orders(memory_bucket).info().epoch)}", [answer])
    with orders(memory_bucket).writer(wait_s=LONG_S) as writer:
        assert writer.append(b"v").position == 0
    cut.faults.heal()
    dead.close()


def test_a_holder_that_recovers_for_long_answers(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has just taken the log is not taken for dead while it reads what is in it."""
    recovering, go_on = threading.Event(), threading.Event()
    recover = recovery.recover

    def slowly(*arguments: Any, **options: Any) -> Any:
        recovering.set()
        assert go_on.wait(LONG_S)
        return recover(*arguments, **options)

    log = orders(memory_bucket)
    monkeypatch.setattr(recovery, "recover", slowly)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(log.writer)
        assert recovering.wait(LONG_S)
        with pytest.raises(LogBusy):
            orders(memory_bucket).writer(wait_s=0)
        go_on.set()
        with opening.result(LONG_S) as holder:
            assert holder.append(b"v").position == 0


def test_who_gives_up_leaves_the_log_to_its_holder(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking steals nothing: the holder let the log go although nobody took it."""
    monkeypatch.setattr(handover, "TENURE_S", 1.0)
    log = orders(memory_bucket)
    with log.writer() as holder:
        with pytest.raises(LogBusy):
            orders(memory_bucket).writer(wait_s=0)
        epoch = log.info().epoch
        assert not log._home.exists(handover.request_key(epoch))
        until(lambda: not log._home.exists(handover.answer_key(epoch)))  # its tenure is over, and nobody waits
        assert holder.append(b"v").position == 0
        with orders(memory_bucket).writer(wait_s=LONG_S) as new:  # who does wait gets it
            assert new.append(b"w").position == 1


def test_who_gives_up_takes_no_answer_from_another(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two look at once: the first is answered, and takes request and answer away before the second has seen them. The
    second took the living holder for dead, and fenced it. A third may have asked meanwhile.
    """
    log = orders(memory_bucket)
    clock = SimulatedClock(auto_advance=True)
    with log.writer() as holder:
        epoch = log.info().epoch
        read = handover._answer
        looks = []

        def late(home: Any, *given: Any) -> int | None:
            """Look for the answer as the second does: it sees none before its patience is over."""
            looks.append(epoch)
            if len(looks) == 2:
                return None
            until(lambda: home.exists(handover.answer_key(epoch)))
            if len(looks) > 2:
                return read(home, *given)
            for key in (handover.request_key(epoch), handover.answer_key(epoch)):  # the first gives up
                home.delete(key)
            home.create(handover.request_key(epoch), [b"of a third"])
            clock.advance(handover.ANSWER_S)
            return None

        monkeypatch.setattr(handover, "_answer", late)
        with pytest.raises(LogBusy):
            handover.ask(log._home, log._manifests, clock, wait_s=0)
        assert len(looks) == 3
        assert holder.append(b"v").position == 0
