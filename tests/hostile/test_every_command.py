"""Every command of the shell, with text of others in all that it shows: a terminal shows the text, and obeys none."""

from __future__ import annotations

import logging
import os
import pty
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import oncelog
from oncelog import inner
from oncelog.cli import run
from oncelog.server.fleet import members
from oncelog.storage.quorum import membership
from oncelog.storage.urls import quorum_store
from tests.cli.test_cli_help import EVERY

SEQUENCES = (
    "\x1b[2J", "\x1b]0;t\x07", "\x1b]8;;http://x\x1b\\", "\x9b2J", "\x9d0;t\x9c", "\x08", "\x85", "\u2028", "\u202e",
    "\u2066",
)  # fmt: skip
"""ESC, CSI, OSC with a title and with a link, their one-byte forms, what deletes, ends a line, or turns text around."""

HOSTILE = "owned" + "".join(f"{sequence}owned" for sequence in SEQUENCES) + "\rplanted\nplanted"
NAMED = "owned\u202eowned\u2066owned"
"""A name that logs and queues may have."""

NEVER = (
    "\x1b[2J", "\x1b]0", "\x1b]8", "\x9b", "\x9c", "\x9d", "\x07", "\x08", "\x85", "\u2028", "\u202e", "\u2066",
    "\rplanted", "\nplanted",
)  # fmt: skip
"""What no command of ours sends: Rich moves the cursor and sets colours by other sequences."""

SPEC = """
name = "orders"
[source]
format = "json"
path = "incoming"
schema = "order_id STRING"
[identity]
column = "order_id"
[log]
url = "{root}/db"
name = "{name}"
"""

CASES: dict[str, tuple[str, ...]] = {
    "status": (),
    "doctor": (),
    "log list": (),
    "log create": ("{named}-new",),
    "log set": ("{named}", "--retention=30d"),
    "log find": ("{named}", "{hostile}"),
    "log info": ("{named}",),
    "log append": ("{named}", "{root}/{hostile}"),
    "log cat": ("{named}", "--columns=id,stream,type,headers,tenant,producer,value"),
    "log tail": ("{named}", "--columns=id,stream,type,headers,tenant,producer,value"),
    "log verify": ("{named}",),
    "log truncate": ("{named}", "--before=0", "--yes"),
    "log retain": ("{named}",),
    "log seal": ("{named}",),
    "log copy": ("{named}", "file://{root}/copied"),
    "log snapshot": ("{named}",),
    "log delete": ("{named}", "--yes"),
    "stream append": ("events", "{hostile}", "{root}/lines.txt"),
    "stream read": ("events", "{hostile}"),
    "stream subscribe": ("events", "{hostile}", "--limit=1"),
    "stream create": ("{named}-events",),
    "stream delete": ("{hostile}", "--yes"),
    "stream list": ("events",),
    "queue info": ("{named}",),
    "queue set": ("{named}", "--max-attempts=7"),
    "queue create": ("{named}-new",),
    "queue list": (),
    "queue send": ("{named}", "--id-field={hostile}", "{hostile}"),
    "queue consume": ("{named}", "--group=other", "--limit=1"),
    "queue stats": (),
    "queue peek": ("{named}",),
    "queue pause": ("{named}", "--group=default"),
    "queue resume": ("{named}",),
    "queue groups": ("{hostile}",),
    "queue remove-group": ("{named}", "{hostile}", "--yes"),
    "queue trim": ("{named}",),
    "queue delete": ("{named}", "--yes", "--force"),
    "queue dlq list": ("{named}",),
    "queue dlq show": ("{named}", "0"),
    "queue dlq redrive": ("{hostile}",),
    "queue dlq discard": ("{hostile}", "--all", "--yes"),
    "worker": ("{hostile}:send", "{named}"),
    "inbox list": (),
    "inbox prune": ("--inbox=sqlite:///{root}/{hostile}/inbox.db",),
    "inbox show": ("{hostile}",),
    "inbox resolve": ("{hostile}", "{hostile}"),
    "inbox erase": ("{hostile}", "--yes"),
    "producer list": ("{named}",),
    "producer show": ("{named}", "{hostile}"),
    "producer forget": ("{named}", "{hostile}", "--yes"),
    "producer policy": ("--namespace={hostile}", "--producers=on"),
    "pipeline run": ("{root}/hostile.toml",),
    "pipeline check": ("{root}/hostile.toml",),
    "pipeline backfill": ("{root}/orders.toml", "--from={hostile}", "--to={hostile}"),
    "pipeline compact": ("{root}/hostile.toml",),
    "pipeline status": ("{root}/orders.toml",),
    "pipeline rejected": ("{root}/orders.toml",),
    "pipeline init": ("{root}/{hostile}.toml",),
    "table publish": ("{named}", "--delta={root}/table"),
    "sql": ('SELECT *, 1 AS "owned\u202e[/][link=http://x]owned" FROM "{named}"',),
    "serve": ("--url=what://{hostile}",),
    "server list": (),
    "console": ("--inbox={hostile}",),
    "top": ("file://{root}/db", "--count=1", "--every=1ms"),
    "token create": ("{hostile}", "--allow=read:*"),
    "token list": (),
    "token revoke": ("{hostile}", "--yes"),
    "profile add": ("{hostile}", "{root}"),
    "profile list": (),
    "profile remove": ("{hostile}",),
    "quorum create": ("{root}/new", "--node={hostile}=file://{root}/1", "--node=b=file://{root}/2"),
    "quorum try": ("{root}/{hostile}",),
    "quorum status": ("{root}/quorum/store",),
    "quorum check": ("{root}/quorum/{hostile}",),
    "quorum replace": ("{root}/quorum/store", "{hostile}", "file://{root}/3"),
    "quorum drain": ("{root}/quorum/{hostile}",),
    "ingest": ("{hostile}", "{root}/{hostile}"),
    "export": ("{hostile}", "{root}/{hostile}"),
    "audit": ("{named}", "--by=type"),
    "rebuild": ("{named}",),
    "purge": ("{named}",),
}  # fmt: skip
"""The arguments of each command with which it shows text of others, as a result or in an error."""

RAW = {"log cat", "log tail", "stream read", "stream subscribe", "queue consume"}
"""These hand values to a pipe as they are."""


def _fill(db: oncelog.Database) -> None:
    """Let everything that others can write into a database be made for a terminal."""
    said = oncelog.Record(
        HOSTILE.encode(), id=HOSTILE, stream=HOSTILE, type=HOSTILE, tenant=HOSTILE, headers={HOSTILE: HOSTILE.encode()}
    )
    with db.log(NAMED, create=True).writer() as writer:
        writer.append_many([said, oncelog.Record(b"x", type="other")])
        writer.as_producer(HOSTILE).append(b"x", sequence=1)
    rejected = {"file": HOSTILE.encode(), "line": HOSTILE.encode(), "reason": HOSTILE.encode()}
    with db.log(f"rejected.{NAMED}", create=True).writer() as writer:
        writer.append(HOSTILE.encode(), headers=rejected)
    db.streams("events", create=True).append(HOSTILE, [oncelog.Record(HOSTILE.encode(), type=HOSTILE)])
    queue = db.queue(NAMED, create=True)
    for id in (HOSTILE, f"{HOSTILE}2"):
        queue.send(HOSTILE.encode(), id=id, key=HOSTILE, tenant=HOSTILE)
    for group, retry in (("default", True), ("mailer", False)):
        with queue.consume(group=group) as deliveries:
            next(iter(deliveries)).nack(HOSTILE, retry=retry)
    home = inner.home(db, members.HOME)
    card = members.Card(name=HOSTILE, incarnation=0, grpc=HOSTILE, http=HOSTILE, version=HOSTILE)
    members.join(home, card).leave()


def _fill_inbox(url: str) -> None:
    with oncelog.Inbox(url) as inbox, pytest.raises(ValueError, match="owned"), inbox.once(HOSTILE):
        raise ValueError(HOSTILE)


def _fill_quorum(folder: Path) -> None:
    """Let the newest membership of a quorum name a node with a hostile name at a hostile place."""
    assert run(["quorum", "try", str(folder)]) == 0
    storage = quorum_store((folder / "store").as_uri())
    known = membership.newest(storage)
    assert known is not None
    forged = membership.Member(HOSTILE, f"file://{folder}/{HOSTILE}", HOSTILE)
    nodes = (*known.nodes[:2], forged)
    membership._store(storage, msgspec.structs.replace(known, version=known.version + 1, nodes=nodes))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a database, an inbox, a quorum, profiles, tokens and specs, all full of hostile text."""
    root = tmp_path_factory.mktemp("hostile")
    with oncelog.connect(f"file://{root}/db") as db:
        _fill(db)
    _fill_inbox(f"sqlite:///{root}/inbox.db")
    _fill_quorum(root / "quorum")
    profile = {HOSTILE: {"url": f"file:///{HOSTILE}", "options": {HOSTILE: HOSTILE}}}
    token = {"name": HOSTILE, "sha256": "0" * 64, "allow": ["read:*"], "created_us": 1}
    for name, content in (("profiles.json", profile), ("tokens.json", {"version": 1, "tokens": [token]})):
        (root / name).write_bytes(msgspec.json.encode(content))
        (root / name).chmod(0o600)
    (root / "lines.txt").write_text("a\n")
    (root / "incoming").mkdir()
    escaped = msgspec.json.encode(HOSTILE).decode().strip('"')
    (root / "hostile.toml").write_text(f'name = "{escaped}"\n[source]\nformat = "{escaped}"\n"{escaped}" = 1\n')
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the folder for one command, which the environment names."""
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    (root / "orders.toml").write_text(SPEC.format(root=root, name=NAMED))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "4000")  # nothing is folded, so a line that begins with the text is the text's own
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("ONCELOG_URL", f"file://{root}/db")
    monkeypatch.setenv("ONCELOG_INBOX", f"sqlite:///{root}/inbox.db")
    monkeypatch.setenv("ONCELOG_PROFILES", str(root / "profiles.json"))
    monkeypatch.setenv("ONCELOG_TOKENS", str(root / "tokens.json"))
    return root


@pytest.fixture(autouse=True)
def standard_log() -> Iterator[None]:
    """Leave the standard log as it was: ``serve`` and ``worker`` set it up for their process, which is this one."""
    loggers = [logging.getLogger(name) for name in (None, "oncelog", "grpc._cython.cygrpc")]
    kept = [(logger, logger.level, logger.handlers[:], logger.filters[:]) for logger in loggers]
    yield
    for logger, level, handlers, filters in kept:
        logger.setLevel(level)
        logger.handlers[:], logger.filters[:] = handlers, filters


def on_terminal(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command in this process, with a terminal for stdout and stderr; return all that the terminal gets."""
    ours, theirs = pty.openpty()
    pieces: list[bytes] = []
    reading = threading.Thread(target=lambda: pieces.extend(_pieces(ours)))
    reading.start()
    with open(theirs, "w", encoding="utf-8") as screen, monkeypatch.context() as patched:  # noqa: PTH123
        patched.setattr(sys, "stdout", screen)
        patched.setattr(sys, "stderr", screen)
        run(arguments)
    reading.join()
    os.close(ours)
    return b"".join(pieces).decode()


def _pieces(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(descriptor, 1 << 16)
        except OSError:  # what a terminal says when nobody is there any more
            return


def check(said: str) -> None:
    """Check that the text was shown, and that nothing in it is for the terminal."""
    assert "owned" in said, said
    assert not [found for found in NEVER if found in said], repr(said)


@pytest.mark.parametrize("words", CASES)
def test_no_command_lets_text_of_others_through(
    words: str, root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, keys, errors and values are spelled out on a terminal, in a pipe and in JSON; none begins a line."""
    given = [*words.split(), *(one.format(root=root, named=NAMED, hostile=HOSTILE) for one in CASES[words])]
    check(on_terminal(given, monkeypatch))
    for more in [["--json"]] if words in RAW else [["--json"], list[str]()]:
        capfd.readouterr()
        run([*given, *more])
        said = capfd.readouterr()
        check(said.out + said.err)


def test_every_command_has_a_case() -> None:
    """A command that is added needs one: else nobody looks at what it shows."""
    assert {" ".join(words) for words in EVERY} == set(CASES)
    assert all("--json" in {name for one in command.params for name in one.opts} for command in EVERY.values())
