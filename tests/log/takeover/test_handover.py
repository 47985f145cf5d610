"""Asking for a log that somebody holds, where no lock keeps the others out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from oncelog.connect import Database
from oncelog.errors import LogBusy, Unavailable, WriterFenced
from oncelog.log import ending
from oncelog.log.append import committer
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


def put_up(bucket: Bucket, log: Log) -> None:
    """Ask for a log once, and do not wait."""
    known = log._manifests.newest()
    assert known is not None
    log._home.create(handover.request_key(known.manifest.epoch), [b"asked"])
    mailboxes = ObjectStorage(bucket).home(handover.MAILBOXES)
    handover.AskingMail(mailboxes, SimulatedClock()).make(known.manifest, again=True, answered=False)


def left_over(bucket: Bucket) -> list[str]:
    """Return what is left of questions, answers and mail."""
    return [path for path, _ in bucket.below("") if {"requests", "answers", handover.MAILBOXES} & set(path.split("/"))]


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
        assert not left_over(memory_bucket)  # the dead does not read its mail
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
    assert not left_over(memory_bucket)


def test_questions_and_answers_are_cleared_away(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that changes hands a thousand times is not littered with them."""
    monkeypatch.setattr(handover, "TENURE_S", 0.0)
    writers = [orders(memory_bucket).writer(wait_s=LONG_S) for _ in range(5)]
    for writer in writers:
        writer.close()
    assert not left_over(memory_bucket)


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
    put_up(memory_bucket, log)
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
        mailbox = holder._ending._watch._mailbox
        assert mailbox is not None
        until(lambda: not mailbox._watches and mailbox._shift is None)
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
        mailboxes = ObjectStorage(memory_bucket).home(handover.MAILBOXES)

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
            handover.ask(log._home, log._manifests, clock, wait_s=0, mailboxes=mailboxes)
        assert len(looks) == 3
        assert holder.append(b"v").position == 0


def test_many_held_logs_cost_one_look_and_no_threads(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is paid for: an idle log that was held cost one a second, and five threads. A process looks into
    its mailbox once a second, whatever it holds, and the threads that stored blocks end when nothing comes.
    """
    monkeypatch.setattr(handover, "LOOK_S", 1.0)
    monkeypatch.setattr(committer, "REST_S", 0.01)
    clock = SimulatedClock()
    before = set(threading.enumerate())
    with Database(ObjectStorage(memory_bucket, clock), clock) as database:
        logs = [database.log(f"log{number}", create=True) for number in range(50)]
        writers = [log.writer() for log in logs]
        pending = [writer.submit(b"v", id="1") for writer in writers]
        clock.advance(1)
        assert [one.result(LONG_S).position for one in pending] == [0] * 50
        until(lambda: [one.name for one in set(threading.enumerate()) - before if one.is_alive()] == ["oncelog-watch"])
        until(lambda: clock.waiting() == 1)
        asked = memory_bucket.requests.total()
        for second in range(1, 11):
            clock.advance(1)
            until(lambda: memory_bucket.requests.total() >= asked + second)  # noqa: B023
            until(lambda: clock.waiting() == 1)
        assert memory_bucket.requests.total() == asked + 10
        assert [one.submit(b"w", id="2") for one in writers]  # the threads start again
        clock.auto_advance = True
        assert [one.append(b"w", id="2").position for one in writers] == [1] * 50
    clock.auto_advance = True
    until(lambda: not set(threading.enumerate()) - before)


def test_one_of_many_held_logs_is_let_go_when_it_is_asked_for(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stay: mail says which log is asked for."""
    monkeypatch.setattr(handover, "TENURE_S", 0.0)
    with Database(ObjectStorage(memory_bucket)) as holder:
        writers = [holder.log(name, create=True).writer() for name in ("orders", "bills", "stock")]
        with orders(memory_bucket).writer(wait_s=LONG_S) as new:
            assert new.append(b"v").position == 0
            with pytest.raises(WriterFenced):
                writers[0].append(b"w")
            assert [writer.append(b"w").position for writer in writers[1:]] == [0, 0]
    assert not left_over(memory_bucket)


def test_mail_that_comes_while_mail_is_read_is_read_too(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of mail is removed before mail is listed: else what comes in between would wait for ever."""
    faulty = FaultyBucket(memory_bucket)
    holder = Database(ObjectStorage(faulty))
    writers = [holder.log(name, create=True).writer() for name in ("orders", "bills")]
    log, late = orders(memory_bucket), Database(ObjectStorage(memory_bucket)).log("bills")
    listed = memory_bucket.below
    came: list[str] = []

    def below(prefix: str, after: str | None = None) -> Any:
        found = listed(prefix, after)
        if "/asked/" in prefix and found and not came:
            came.append(prefix)
            put_up(memory_bucket, late)
        return found

    monkeypatch.setattr(faulty, "below", below)
    put_up(memory_bucket, log)
    for one in (log, late):
        until(lambda: one._home.exists(handover.answer_key(1)))  # noqa: B023
    assert came
    assert not any(writer.closed for writer in writers)
    holder.close()


def test_mail_that_could_not_be_removed_is_read_again(memory_bucket: Bucket) -> None:
    """A look that fails half-way goes on with the next look, although the sign of mail is gone."""
    faulty = FaultyBucket(memory_bucket)
    holder = orders(faulty).writer()
    failed: list[str] = []

    def fails(kind: str, what: str) -> Exception | None:
        if kind == "list" and "/asked/" in what and not failed:
            failed.append(what)
            return Unavailable("away")
        return None

    faulty.faults.fail_forever(fails)
    log = orders(memory_bucket)
    put_up(memory_bucket, log)  # once: nobody puts mail up again
    until(lambda: log._home.exists(handover.answer_key(1)))
    assert failed
    assert holder.append(b"v").position == 0
    holder.close()


def once(kind: str, part: str, error: BaseException) -> Callable[[str, str], None]:
    """Return a fault: the first request of a kind, for a path with this part, raises an error."""
    left = [error]

    def fault(asked: str, what: str) -> None:
        if left and asked == kind and part in what:
            raise left.pop()

    return fault


def test_a_log_is_answered_for_while_another_of_its_process_is_busy(memory_bucket: Bucket) -> None:
    """An adoption holds the lock of its writer while storage works. The mailbox waited for that lock, and a log was
    taken from its living holder.
    """
    with Database(ObjectStorage(memory_bucket)) as holder:
        busy = holder.log("busy", create=True).writer()
        writer = holder.log("orders", create=True).writer()
        log = orders(memory_bucket)
        with busy._committer.lock:
            put_up(memory_bucket, log)
            until(lambda: log._home.exists(handover.answer_key(1)))
        assert writer.append(b"v").position == 0


def test_all_logs_that_are_asked_for_are_answered_for_before_mail_is_removed(memory_bucket: Bucket) -> None:
    """Each removal takes a request: with a hundred logs, the last were taken from their living holder."""
    faulty = FaultyBucket(memory_bucket)
    holder = Database(ObjectStorage(faulty))
    faulty.faults.fail_forever(
        lambda kind, what: Unavailable("away") if (kind, "/asked/" in what) == ("delete", True) else None
    )
    writers = [holder.log(name, create=True).writer() for name in ("a", "b", "c")]
    logs = [Database(ObjectStorage(memory_bucket)).log(name) for name in ("a", "b", "c")]
    for log in logs:
        put_up(memory_bucket, log)
    for log in logs:
        until(lambda: log._home.exists(handover.answer_key(1)))  # noqa: B023
    faulty.faults.heal()
    assert [writer.append(b"v").position for writer in writers] == [0, 0, 0]
    holder.close()


@pytest.mark.parametrize("part", ["/mail", "/requests/"])
def test_a_holder_answers_after_an_error_that_nobody_expected(memory_bucket: Bucket, part: str) -> None:
    """The thread that looks ended, and so did the one that answers: no log of the process was answered for again."""
    faulty = FaultyBucket(memory_bucket)
    holder = orders(faulty).writer()
    faulty.faults.fail_forever(once("head", part, MemoryError()))
    log = orders(memory_bucket)
    put_up(memory_bucket, log)
    until(lambda: log._home.exists(handover.answer_key(1)))
    assert holder.append(b"v").position == 0
    holder.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mailbox_whose_thread_has_ended_starts_another(memory_bucket: Bucket) -> None:
    """The next log that is opened has the mailbox looked into again, for all held logs."""
    faulty = FaultyBucket(memory_bucket)
    faulty.faults.fail_forever(once("head", "/mail", SystemExit()))
    with Database(ObjectStorage(faulty)) as holder:
        writers = [holder.log("orders", create=True).writer()]
        until(lambda: holder._mailbox._shift is None)
        writers.append(holder.log("bills", create=True).writer())
        log = orders(memory_bucket)
        put_up(memory_bucket, log)
        until(lambda: log._home.exists(handover.answer_key(1)))
        assert [writer.append(b"v").position for writer in writers] == [0, 0]


def test_an_open_that_is_interrupted_leaves_nobody_who_answers(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C came while what the last holder left was removed. A watch without a writer answered for ever."""
    clear = handover._clear

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(handover, "_clear", clear)
        raise KeyboardInterrupt

    with Database(ObjectStorage(memory_bucket)) as database:
        log = database.log("orders", create=True)
        monkeypatch.setattr(handover, "_clear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.writer()
        assert not database._mailbox._watches


def test_mail_to_a_holder_that_lost_the_log_is_taken_back(memory_bucket: Bucket) -> None:
    """While one waits, another takes the log from a dead holder: nobody would ever remove the mail of the dead."""
    holder = orders(memory_bucket).writer()
    known = orders(memory_bucket)._manifests.newest()
    holder.close()
    assert known is not None
    mailboxes = ObjectStorage(memory_bucket).home(handover.MAILBOXES)
    mail = handover.AskingMail(mailboxes, SimulatedClock())
    mail.make(msgspec.structs.replace(known.manifest, writer=b"d" * 16), again=True, answered=False)
    mail.make(msgspec.structs.replace(known.manifest, writer=b"e" * 16, epoch=2), again=True, answered=False)
    assert {path.split("/")[2] for path in left_over(memory_bucket)} == {(b"e" * 8).hex()}
    mail.take_back()
    assert not left_over(memory_bucket)


def test_a_holder_without_a_mailbox_gets_no_mail(memory_bucket: Bucket) -> None:
    """A manifest may name a writer by less than a mailbox has: the key of such mail would be none."""
    holder = orders(memory_bucket).writer()
    known = orders(memory_bucket)._manifests.newest()
    holder.close()
    assert known is not None
    mail = handover.AskingMail(ObjectStorage(memory_bucket).home(handover.MAILBOXES), SimulatedClock())
    mail.make(msgspec.structs.replace(known.manifest, writer=b""), again=True, answered=False)
    assert not left_over(memory_bucket)


def test_mailboxes_are_no_logs(memory_bucket: Bucket) -> None:
    """To list the logs asks for nothing there: each request is paid for."""
    database = Database(ObjectStorage(memory_bucket))
    database.log("orders", create=True)
    before = memory_bucket.requests.total()
    database.logs()
    cost = memory_bucket.requests.total() - before
    memory_bucket.create(f"logs/{handover.MAILBOXES}/0/mail", [])
    before = memory_bucket.requests.total()
    assert (database.logs(), database._listed()) == (["orders"], ["orders"])
    assert memory_bucket.requests.total() - before == cost + 1  # and one listing
