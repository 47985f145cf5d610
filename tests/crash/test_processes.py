"""Two processes on one log: one writes, any number read, and none has to trust the other to end well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import LogBusy
from oncelog.log.log import Log
from tests.crash.processes import Process
from tests.crash.work import LOG


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a database that has the log."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log(LOG, create=True)
    return tmp_path.as_uri()


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """Yield the log, opened in this process."""
    with oncelog.connect(url) as db:
        yield db.log(LOG)


def test_log_held_by_another_process_is_busy_and_says_by_whom(url: str, log: Log) -> None:
    """Who gets ``LogBusy`` must know which process to end, and that the log is as it was."""
    with Process("puppet", url) as holder:
        assert holder.ask("hold 0") == ["held"]
        with pytest.raises(LogBusy, match=str(holder.pid)) as busy:
            log.writer(wait_s=0)
        assert busy.value.pid == holder.pid
        assert "wait" in str(busy.value)
        assert holder.ask("append mine") == ["ack", "0"]
        assert [entry.value for entry in log.read()] == [b"mine"]


def test_force_does_not_take_a_local_log_from_a_living_process(url: str, log: Log) -> None:
    """A local disk cannot fence: to take the log by force would be two writers at once."""
    with Process("puppet", url) as holder:
        assert holder.ask("hold 0") == ["held"]
        with pytest.raises(LogBusy, match="end that process") as busy:
            log.writer(wait_s=0, takeover="force")
        assert busy.value.pid == holder.pid
        assert holder.ask("append mine") == ["ack", "0"]


def test_log_held_in_this_process_is_busy_too(log: Log) -> None:
    """A second writer in one process is as wrong as in two, and would wait for itself."""
    with log.writer() as writer:
        with pytest.raises(LogBusy) as busy:
            log.writer(wait_s=0)
        assert busy.value.pid == os.getpid()
        assert writer.append(b"mine").position == 0


@pytest.mark.parametrize("end", ["release", "exit", "kill"])
def test_waiting_writer_gets_the_log_when_its_holder_ends(url: str, log: Log, end: str) -> None:
    """However the holder goes, who waits has the log then, with all that was acknowledged and its window."""
    with Process("puppet", url) as holder, Process("puppet", url) as waiter:
        assert holder.ask("hold 0") == ["held"]
        assert holder.ask("append first") == ["ack", "0"]
        assert waiter.ask("hold 600") == ["waiting"]
        if end == "release":
            assert holder.ask("release") == ["released"]
        elif end == "exit":
            assert holder.finish() == 0
        else:
            holder.kill()
        assert waiter.hear() == ["held"]
        assert waiter.ask("append first") == ["ack", "0"]
        assert waiter.ask("append second") == ["ack", "1"]
    assert [entry.value for entry in log.read()] == [b"first", b"second"]


def test_wait_that_is_over_is_busy(url: str, log: Log) -> None:
    """``wait_s`` ends: who said how long it can wait is not kept for ever."""
    with Process("puppet", url) as holder, Process("puppet", url) as waiter:
        assert holder.ask("hold 0") == ["held"]
        assert waiter.ask("hold 0.05") == ["waiting"]
        assert waiter.hear()[:2] == ["busy", str(holder.pid)]


def test_processes_take_turns(url: str, log: Log) -> None:
    """Each finds what the other left, and recognises its ids."""
    with Process("puppet", url) as one, Process("puppet", url) as other:
        for turn in range(6):
            process = (one, other)[turn % 2]
            assert process.ask("hold 600") == ["held"]
            assert process.ask(f"append {turn}") == ["ack", str(turn)]
            assert process.ask(f"append {turn // 2}") == ["ack", str(turn // 2)]
            assert process.ask("release") == ["released"]
    assert [entry.id for entry in log.read()] == [str(turn) for turn in range(6)]


def test_reader_sees_what_a_living_writer_appends(url: str, log: Log) -> None:
    """Readers need no lock: they follow a writer in another process, through its death and into the next one's life."""
    with log.tail("earliest") as entries:
        for life in range(3):
            with Process("puppet", url) as writer:
                assert writer.ask("hold 600") == ["held"]
                for number in range(3):
                    name = f"{life}-{number}"
                    assert writer.ask(f"append {name}") == ["ack", str(3 * life + number)]
                    entry = entries.poll(timeout_s=600)
                    assert entry is not None
                    assert (entry.position, entry.value) == (3 * life + number, name.encode())


def test_stopped_holder_keeps_its_log(url: str, log: Log) -> None:
    """A process that sleeps is not dead: to take its log would be two writers when it wakes."""
    with Process("puppet", url) as holder:
        assert holder.ask("hold 0") == ["held"]
        holder.signal(signal.SIGSTOP)
        holder.wait_until_stopped()
        with pytest.raises(LogBusy) as busy:
            log.writer(wait_s=0)
        assert busy.value.pid == holder.pid
        holder.signal(signal.SIGCONT)
        assert holder.ask("append awake") == ["ack", "0"]
        holder.signal(signal.SIGSTOP)
        holder.wait_until_stopped()
        holder.kill()
    with log.writer(wait_s=600) as writer:
        assert writer.append(b"awake", id="awake").duplicate


def uses(process: Process) -> dict[str, str]:
    """Return what each handle did in the forked child, until it had closed them all."""
    found = {}
    while (line := process.hear())[0] != "child":
        found[line[1]] = line[2]
    assert line == ["child", "closed", "all"]
    return found


def test_forked_child_cannot_use_its_parents_handles(url: str, log: Log) -> None:
    """Every use is ``Closed``, closing them harms nothing, and the child does not keep the log locked."""
    with Process("forker", url) as process:
        assert process.hear()[0] == "child"
        found = uses(process)
        assert len(found) == 19
        assert set(found.values()) == {"Closed"}, found
        assert process.ask("go on") == ["parent", "1", "2"]
        assert process.hear() == ["parent", "released"]
        with log.writer(wait_s=600) as writer:  # the child lives
            assert writer.append(b"mine").position == 2


def test_child_of_a_killed_parent_does_not_keep_the_log(url: str, log: Log) -> None:
    """A lock that a worker's child inherits would keep the log from everybody until that child ends, too."""
    with Process("forker", url) as process:
        child = int(process.hear()[1])
        uses(process)
        process.kill()
        os.kill(child, 0)  # it lives
        with log.writer(wait_s=600) as writer:
            assert writer.append(b"before", id="before").duplicate


def test_fork_while_every_lock_is_held(url: str) -> None:
    """A lock that another thread held at the fork is held in the child for ever: who asked for it would hang."""
    with Process("fork_with_locks_held", url) as process:
        assert process.hear()[0] == "child"
        assert set(uses(process).values()) == {"Closed"}
        process.tell("end")
        assert process.finish() == 0
