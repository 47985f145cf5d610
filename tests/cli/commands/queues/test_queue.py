"""``oncelog queue``: what operators type, and what they see."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import oncelog
from oncelog import Message, Queue
from oncelog.cli import app
from tests.cli.shell import COMMAND, Outcome, environment, shell

Call = Callable[..., Outcome]
ROOT: Any = typer.main.get_command(app)
QUEUE: dict[str, Any] = ROOT.commands["queue"].commands
COMMANDS: dict[tuple[str, ...], Any] = {
    ("queue", name): command for name, command in QUEUE.items() if name != "dlq"
} | {("queue", "dlq", name): command for name, command in QUEUE["dlq"].commands.items()}


@pytest.fixture
def queue(url: str, call: Call) -> Iterator[Queue]:
    """Return a queue that the shell made, to see what it did."""
    assert call("queue", "create", "emails").code == 0
    with oncelog.connect(url) as db:
        yield db.queue("emails")


def test_every_command_is_there() -> None:
    """What operators were promised."""
    promised = {"create", "send", "consume", "stats", "peek", "pause", "resume", "groups", "remove-group", "trim"}
    promised |= {"list", "info", "set", "delete", "dlq list", "dlq show", "dlq redrive", "dlq discard"}
    assert {" ".join(words[1:]) for words in COMMANDS} == promised


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_examples_that_parse(call: Call, words: tuple[str, ...]) -> None:
    """Each command takes a URL and --json, and shows examples that are calls it takes."""
    shown = call(*words, "--help")
    assert shown.code == 0
    command = COMMANDS[words]
    assert {"--url", "--json"} <= {option for parameter in command.params for option in parameter.opts}
    examples = re.findall(r"\[cyan\](oncelog .*)\[/\]", command.epilog)
    assert examples
    for example in examples:
        parts = shlex.split(example.split("|")[0].split("<")[0])
        assert tuple(parts[1 : 1 + len(words)]) == words
        with command.make_context(words[-1], parts[1 + len(words) :]):
            pass


def test_send_and_consume(call: Call, queue: Queue) -> None:
    """What is sent comes out once, acknowledged; sent again under its id, it is there once."""
    assert call("queue", "send", "emails", "welcome", "--id", "user-7", "--key", "k", "--json").json["sent"] == 1
    again = call("queue", "send", "emails", "welcome", "--id", "user-7", "--key", "k", "--json").json
    assert (again["sent"], again["duplicates"]) == (0, 1)
    [line] = call("queue", "consume", "emails", "-g", "mailer", "--json").lines
    assert (line["value"], line["id"], line["key"], line["attempts"]) == ("welcome", "user-7", "k", 1)
    assert call("queue", "consume", "emails", "-g", "mailer").out == b""
    assert queue.lag("mailer") == 0


def test_send_takes_lines(url: str, queue: Queue) -> None:
    """A pipe of lines is as many messages; consume writes them as they were."""
    done = shell("queue", "send", "emails", url=url, given=b"one\ntwo\nthree\n")
    assert (done.code, done.err) == (0, b"")
    assert shell("queue", "consume", "emails", "--limit", "2", url=url).out == b"one\ntwo\n"
    assert queue.lag() == 1


def test_what_a_broken_pipe_left_unwritten_is_not_held(url: str, queue: Queue) -> None:
    """A reader that goes away leaves nothing in nobody's hands: what was not written comes again."""
    queue.send_many([Message(b"x" * 1_000) for _ in range(1_000)])
    command = [*COMMAND, "queue", "consume", "emails"]
    with subprocess.Popen(command, env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr is not None
        assert reading.stderr.read() == b""
    group = queue.stats().groups["default"]
    assert (group.leased, group.acked + group.lag, group.refused > 0) == (0, 1_000, True)


def test_delay_and_deadline(call: Call, queue: Queue) -> None:
    """Durations are written as people write them."""
    call("queue", "send", "emails", "later", "--delay", "1h", "--deadline", "2h")
    assert call("queue", "consume", "emails").out == b""
    [waiting] = call("queue", "peek", "emails", "--json").lines
    assert (waiting["standing"], waiting["value"]) == ("waiting", "later")
    assert 3500 < waiting["due_in_s"] <= 3600
    assert b"waiting" in call("queue", "peek", "emails").out


def test_stats_and_pause(call: Call, queue: Queue) -> None:
    """An operator sees the lag, stops delivery, and lets it go on."""
    queue.send(b"a")
    queue.consume("mailer").close()
    assert call("queue", "stats", "emails", "--json").json["groups"]["mailer"]["lag"] == 1
    assert call("queue", "pause", "emails").code == 0
    assert b"paused" in call("queue", "stats").out
    paused = call("queue", "consume", "emails", "-g", "mailer")
    assert (paused.out, b"paused" in paused.err) == (b"", True)
    assert call("queue", "resume", "emails").code == 0
    assert call("queue", "consume", "emails", "-g", "mailer").out == b"a\n"


def test_dead_letters(call: Call, queue: Queue) -> None:
    """They are listed, shown and sent back."""
    queue.send(b"bad \xff", id="x", headers={"trace": b"1"})
    with queue.consume("mailer") as consumer:
        consumer.receive()[0].nack("never", retry=False)
    assert b"never" in call("queue", "dlq", "list", "emails").out
    [letter] = call("queue", "dlq", "list", "emails", "--json").lines
    assert (letter["last_error"], letter["value_base64"], letter["headers"]) == ("never", "YmFkIP8=", {"trace": "1"})
    position = str(letter["position"])
    assert call("queue", "dlq", "show", "emails", position, "--json").json == letter
    assert b"never" in call("queue", "dlq", "show", "emails", position).out
    assert call("queue", "dlq", "redrive", "emails", position, "--json").json["redriven"] == 1
    assert b"no dead letters" in call("queue", "dlq", "list", "emails").out
    assert len(call("queue", "consume", "emails", "-g", "mailer", "--json").lines) == 1


def test_delete(call: Call, queue: Queue, url: str) -> None:
    """A queue goes with what is in it: not by mistake, and not while it is in use unless one says so."""
    queue.send_many([Message(b"a"), Message(b"b"), Message(b"c")])
    with queue.consume("mailer") as consumer:
        consumer.receive()[0].nack("never", retry=False)
        consumer.receive()
    queue.close()
    assert call("queue", "delete", "emails").code == 2
    assert call("queue", "delete", "emails", "--yes").code != 0
    deleted = call("queue", "delete", "emails", "--yes", "--force", "--json").json
    assert (deleted["messages"], deleted["dead_letters"]) == (2, 1)
    assert call("queue", "stats", "emails").code == 2
    assert call("queue", "delete", "emails", "--yes").code == 2


def test_a_lost_state(call: Call, queue: Queue, tmp_path: Path) -> None:
    """The message says what is there and what is not, and how to begin again."""
    queue.send(b"a")
    queue.close()
    for left in (tmp_path / "db" / "queues").iterdir():
        left.unlink()
    assert b"adopt" in call("queue", "consume", "emails").err
    assert call("queue", "create", "emails").code == 2
    assert call("queue", "create", "emails", "--adopt").code == 0
    assert call("queue", "consume", "emails").out == b"a\n"


def test_what_is_not_there_is_told(call: Call) -> None:
    """One line that says what to do, and the exit code of a wrong call."""
    missing = call("queue", "stats", "nowhere")
    assert (missing.code, b"nowhere" in missing.err) == (2, True)
    assert call("queue", "send", "nowhere", "a").code == 2
    assert b"no queues" in call("queue", "stats").out
    call("queue", "create", "emails")
    assert call("queue", "dlq", "show", "emails", "7").code == 2
    assert call("queue", "send", "emails", "a", "b", "--id", "x").code == 2
    assert call("queue", "create", "emails", "--partitions", "3").code == 2


def test_a_misspelt_group_is_found_and_removed(call: Call, queue: Queue) -> None:
    """It kept every message for ever: nothing could be trimmed, and nobody saw why."""
    assert b"has no group yet" in call("queue", "groups", "emails").out
    queue.send_many([Message(b"x") for _ in range(3)])
    call("queue", "consume", "emails", "-g", "mailer")
    call("queue", "consume", "emails", "-g", "mialer", "--limit", "1")
    lags = {line["group"]: line["lag"] for line in call("queue", "groups", "emails", "--json").lines}
    assert lags == {"mailer": 0, "mialer": 2}
    assert b"mialer" in call("queue", "groups", "emails").out
    assert call("queue", "remove-group", "emails", "mialer").code == 2  # nobody to be asked
    assert call("queue", "remove-group", "emails", "mialer", "--yes").code == 0
    assert queue.groups() == ["mailer"]
    assert call("queue", "remove-group", "emails", "mialer", "--yes").code == 2
    assert call("queue", "trim", "emails", "--json").json["first_positions"] == queue.trim()


def test_a_conflict_names_the_id_that_was_given(call: Call, queue: Queue) -> None:
    """Not the one that the log has made of tenant, key and id."""
    call("queue", "send", "emails", "a", "--id", "user-7", "--key", "customer-7")
    done = call("queue", "send", "emails", "b", "--id", "user-7", "--key", "customer-7")
    assert done.code != 0
    assert b"id 'user-7'" in done.err
    assert b"0:10:" not in done.err


def test_looking_at_dead_letters_makes_no_group(call: Call, queue: Queue) -> None:
    """Looking creates nothing."""
    assert call("queue", "dlq", "list", "emails").code == 0
    assert queue.groups() == []
    with oncelog.connect(queue._topic.logs[0]._home._folders._root.as_uri()) as db:  # type: ignore[attr-defined]
        assert db.queues() == ["emails"]


def test_a_queue_is_made_by_the_first_send_if_asked_to_and_is_listed(tmp_path: Path) -> None:
    """``--create`` makes it; without it a name that is not there stays an error. The list counts what was sent."""
    url = tmp_path.as_uri()
    assert shell("queue", "send", "mails", "hello", url=url).code == 2
    assert shell("queue", "send", "mails", "hello", "--id", "1", "--create", url=url).code == 0
    assert shell("queue", "send", "mails", "hello", "--id", "1", "--create", url=url).code == 0
    (row,) = shell("queue", "list", "--json", url=url).lines
    assert (row["name"], row["sent"], row["groups"]) == ("mails", 1, 0)


def test_set_changes_what_is_given_and_info_shows_it(call: Call, queue: Queue) -> None:
    """Each option changes its setting and no other; what is wrong is refused, and changes nothing."""
    before = queue.settings
    assert call("queue", "set", "emails", "--max-attempts", "3", "--backoff", "2s").code == 0
    changed = queue.settings
    assert (changed.retry.max_attempts, changed.retry.backoff_s) == (3, 2.0)
    assert (changed.retry.max_backoff_s, changed.ack_timeout_s) == (before.retry.max_backoff_s, before.ack_timeout_s)
    given = ("--max-attempts", "never", "--ack-timeout", "5m", "--gate", "1h", "--trim", "never", "--jitter", "0.5")
    assert call("queue", "set", "emails", *given, "--max-backoff", "1h").code == 0
    shown = call("queue", "info", "emails", "--json").json["settings"]
    assert shown["retry"] == {"max_attempts": None, "backoff_s": 2.0, "max_backoff_s": 3600.0, "jitter": 0.5}
    assert (shown["ack_timeout_s"], shown["gate_s"], shown["trim_s"]) == (300.0, 3600.0, None)
    assert "for ever" in call("queue", "info", "emails").seen
    assert call("queue", "set", "emails").code == 2
    assert call("queue", "set", "emails", "--max-attempts", "many").code == 2
    assert call("queue", "set", "emails", "--ack-timeout", "0s").code == 2
    assert call("queue", "set", "none", "--gate", "1h").code == 2
    assert queue.settings.ack_timeout_s == 300.0


def test_discard_gives_up_what_it_is_told_and_asks_first(call: Call, queue: Queue) -> None:
    """Letters by their positions, or all; one of the two must be said."""
    call("queue", "set", "emails", "--max-attempts", "1")
    queue.send_many([Message(b"x", id=f"m{n}") for n in range(3)])
    with queue.consume("g") as consumer:
        for delivery in consumer.receive(3, timeout_s=60):
            delivery.nack("no")
    while len(queue.dead_letters.list()) < 3:
        with queue.consume("g") as consumer:
            consumer.receive(timeout_s=0.1)
    assert call("queue", "dlq", "discard", "emails").code == 2
    assert call("queue", "dlq", "discard", "emails", "0", "--all").code == 2
    assert call("queue", "dlq", "discard", "emails", "0", "--yes", "--json").json == {"queue": "emails", "discarded": 1}
    assert len(queue.dead_letters.list()) == 2
    assert "2 dead letters discarded" in call("queue", "dlq", "discard", "emails", "--all", "--yes").seen
    assert queue.dead_letters.list() == []
