"""Making and changing a quorum: what cannot be one is refused, with what to do."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import oncelog
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import InvalidArgument, NotFound, OncelogError, Unavailable, Unsupported
from oncelog.storage.base import Chunk, LogHome
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.local.home import LocalHome, LocalStorage
from oncelog.storage.quorum import ensemble, health, membership, node
from oncelog.storage.quorum.ensemble import Ensemble
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.storage.quorum.node import Node
from oncelog.storage.quorum.registers import Registers
from oncelog.storage.urls import node_options, quorum_store
from tests.cli.shell import shell
from tests.log.watched import until
from tests.storage.quorum.place import UNSEALED


def folders(root: Path, count: int = 3) -> dict[str, str]:
    """Return nodes in folders."""
    return {f"n{n}": (root / f"node-{n}").as_uri() for n in range(count)}


def make(root: Path, ack: int | None = 2) -> str:
    """Make a quorum; return the URL of its store."""
    store = LocalStorage(root / "store")
    membership.create(store, folders(root), ack, {}, SYSTEM)
    return (root / "store").as_uri()


class KilledError(BaseException):
    """Stands for the end of a process."""


def cut_short(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the process at the so manyth step of: formatting each node, storing the membership."""
    steps = itertools.count(1)

    def stepped(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: object) -> Any:
            if next(steps) == number:
                raise KilledError
            return real(*args)

        return step

    for module, name in ((node, "format_node"), (membership, "_store")):
        monkeypatch.setattr(module, name, stepped(getattr(module, name)))


@pytest.mark.parametrize(
    ("nodes", "ack", "said"),
    [
        ({"a": "file:///a"}, None, "2 to 9 nodes"),
        ({"a": "file:///a", "b": "file:///b", "c": "file:///c"}, 1, "majority"),
        ({"a": "file:///a", "b": "file:///b", "c": "file:///c"}, 4, "majority"),
        ({"a": "file:///a", "b": "file:///a/"}, None, "one place"),
        ({"a": "file:///a", "b": "file:///a/b"}, None, "one place"),
        ({"a": "s3://a/b", "b": "s3://a"}, None, "one place"),
        ({"a": "file:///a", "B": "file:///b"}, None, "node name"),
        ({"a": "file:///a", "b": "https://b"}, None, "a node is a folder"),
    ],
)
def test_what_cannot_be_a_quorum_is_refused(tmp_path: Path, nodes: dict[str, str], ack: int | None, said: str) -> None:
    """Each mistake has its own sentence, and nothing is made."""
    store = LocalStorage(tmp_path / "store")
    with pytest.raises(InvalidArgument, match=said):
        membership.create(store, nodes, ack, {}, SYSTEM)
    assert membership.newest(store) is None


def test_a_node_inside_the_store_is_refused(tmp_path: Path) -> None:
    """It would be lost with the store."""
    nodes = folders(tmp_path) | {"n2": (tmp_path / "store" / "n2").as_uri()}
    with pytest.raises(InvalidArgument, match="inside the store"):
        membership.create(LocalStorage(tmp_path / "store"), nodes, 2, {}, SYSTEM)


def test_a_quorum_that_could_not_be_made_leaves_no_node_behind(tmp_path: Path) -> None:
    """One node does not answer: the others are not formatted, so the second attempt does not find them taken."""
    store, nodes = LocalStorage(tmp_path / "store"), folders(tmp_path)
    (tmp_path / "node-2").write_text("not a folder")
    with pytest.raises(OncelogError, match="node-2"):
        membership.create(store, nodes, 2, {}, SYSTEM)
    (tmp_path / "node-2").unlink()
    assert [member.name for member in membership.create(store, nodes, 2, {}, SYSTEM).nodes] == list(nodes)


def test_a_replacement_that_is_refused_was_not_formatted(tmp_path: Path) -> None:
    """A place inside the store is refused before anything is written to it."""
    make(tmp_path)
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    with pytest.raises(InvalidArgument, match="inside the store"):
        health.replace(storage, "n1", (tmp_path / "store" / "n1").as_uri(), UNSEALED, SYSTEM)
    with pytest.raises(InvalidArgument, match="one place"):
        health.replace(storage, "n1", (tmp_path / "node-0").as_uri(), UNSEALED, SYSTEM)
    storage.close()
    assert not (tmp_path / "store" / "n1").exists()


def with_one_replaced(tmp_path: Path, url: str) -> QuorumStorage:
    """Store a record on three nodes, then replace one of them."""
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders", create=True).writer() as w:
        w.append(b"x", id="1")
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    health.replace(storage, "n1", (tmp_path / "new-1").as_uri(), UNSEALED, SYSTEM)
    storage.close()
    return QuorumStorage(LocalStorage(tmp_path / "store"))


def test_a_replacement_that_leaves_too_few_nodes_says_what_to_do(tmp_path: Path) -> None:
    """Two of three nodes were replaced, and a segment was on all three: nobody could fence it any more."""
    url = make(tmp_path)
    storage = with_one_replaced(tmp_path, url)
    with pytest.raises(InvalidArgument, match=f"1 of its 3 nodes, and needs 2 .*oncelog quorum drain {url}"):
        health.replace(storage, "n2", (tmp_path / "new-2").as_uri(), UNSEALED, SYSTEM)
    storage.close()
    assert not (tmp_path / "new-2").exists()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_create_that_was_cut_short_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The process dies before it formats a node, after one, after two, or before it stores who the nodes are."""
    store, nodes = LocalStorage(tmp_path / "store"), folders(tmp_path)
    cut_short(monkeypatch, number)
    with pytest.raises(KilledError):
        membership.create(store, nodes, 2, {}, SYSTEM)
    monkeypatch.undo()
    assert [member.name for member in membership.create(store, nodes, 2, {}, SYSTEM).nodes] == list(nodes)
    with oncelog.connect(f"quorum:{store.url}") as db, db.log("orders", create=True).writer() as w:
        w.append(b"x", id="1")
    storage = QuorumStorage(store)
    assert not any(one.trouble for one in health.nodes(storage, [], SYSTEM))
    storage.close()


def test_a_replacement_that_was_cut_short_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the format of the new place and the new membership: the place is not taken for ever.

    Another name, another quorum, and a place that was a node once, are still refused.
    """
    make(tmp_path)
    new = (tmp_path / "new").as_uri()
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    cut_short(monkeypatch, 2)
    with pytest.raises(KilledError):
        health.replace(storage, "n1", new, UNSEALED, SYSTEM)
    monkeypatch.undo()
    assert storage.refresh().version == 1
    with pytest.raises(InvalidArgument, match="belongs to a quorum already, as 'n1'"):
        health.replace(storage, "n2", new, UNSEALED, SYSTEM)
    other = LocalStorage(tmp_path / "other" / "store")
    membership.create(other, folders(tmp_path / "other"), 2, {}, SYSTEM)
    foreign = QuorumStorage(other)
    with pytest.raises(InvalidArgument, match="belongs to a quorum already"):
        health.replace(foreign, "n1", new, UNSEALED, SYSTEM)
    made = health.replace(storage, "n1", new, UNSEALED, SYSTEM)
    assert made.named("n1").url == new
    with pytest.raises(InvalidArgument, match="belongs to a quorum already"):
        health.replace(storage, "n1", (tmp_path / "node-1").as_uri(), UNSEALED, SYSTEM)
    assert not any(one.trouble for one in health.nodes(storage, [], SYSTEM))
    storage.close()
    foreign.close()


def test_a_replacement_whose_answer_is_lost_has_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the create of the new membership underneath, and finds its own."""
    make(tmp_path)
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    real = LocalHome.create

    def create(self: LocalHome, key: str, data: Sequence[Chunk]) -> bool:
        real(self, key, data)
        return real(self, key, data)

    monkeypatch.setattr(LocalHome, "create", create)
    assert health.replace(storage, "n1", (tmp_path / "new").as_uri(), UNSEALED, SYSTEM).version == 2
    storage.close()


def test_a_replacement_waits_for_nodes_that_may_hold_the_only_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node was replaced; of the two others one is to be replaced, and the last one does not answer.

    That it answers nothing does not mean that it holds nothing: the segment on it may not be sealed.
    """
    url = make(tmp_path)
    storage = with_one_replaced(tmp_path, url)
    (silent,) = [one.bucket for one in storage.nodes if one.name == "n0"]
    monkeypatch.setattr(silent, "below", mock.Mock(side_effect=Unavailable("away")))
    with pytest.raises(Unavailable, match="node n0 does not answer"):
        health.replace(storage, "n2", (tmp_path / "new-2").as_uri(), UNSEALED, SYSTEM)
    storage.close()
    assert not (tmp_path / "new-2").exists()


def test_a_node_without_conditional_creates_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second create replaces the first: two writers would not notice each other. Nothing is formatted."""
    real = node.open_bucket

    def opened(url: str, options: Mapping[str, str]) -> Bucket:
        bucket = real(url, options)
        if url.endswith("node-1"):
            monkeypatch.setattr(bucket, "create", partial(_overwrite, bucket))
        return bucket

    monkeypatch.setattr(node, "open_bucket", opened)
    store = LocalStorage(tmp_path / "store")
    with pytest.raises(Unsupported, match=r"node-1: .*conditional creates.*: use a store that does"):
        membership.create(store, folders(tmp_path), 2, {}, SYSTEM)
    assert membership.newest(store) is None
    assert not list(tmp_path.rglob(node.IDENTITY))


def _overwrite(bucket: Bucket, path: str, data: Sequence[Chunk]) -> bool:
    """Store an object as a bucket does that takes no notice of ``if-none-match``."""
    bucket.delete(path)
    return type(bucket).create(bucket, path, data)


def test_a_node_that_is_another_one_is_away(tmp_path: Path) -> None:
    """One node stands in the place of another, and its own place is empty: neither is believed, and status says why."""
    make(tmp_path)
    (tmp_path / "node-0").rename(tmp_path / "kept")
    (tmp_path / "node-1").rename(tmp_path / "node-0")
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    troubles = {one.name: one.trouble for one in health.nodes(storage, [], SYSTEM)}
    storage.close()
    assert troubles["n2"] is None
    for name in ("n0", "n1"):
        assert f"node {name} " in str(troubles[name])
        assert "is not the one that was formatted: it was wiped, or replaced" in str(troubles[name])


def test_wrong_credentials_of_a_node_are_told_and_stop_nothing(
    tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is away: appends go on with the two others, and status says that access was denied."""
    nodes = folders(tmp_path, 2) | {"n2": bucket_url}
    monkeypatch.setenv("ONCELOG_NODE_N2_SECRET_ACCESS_KEY", "wrong")
    store = LocalStorage(tmp_path / "store")
    with pytest.raises(Unavailable, match=r"node n2 .*nothing was changed: .*access denied: check the credentials"):
        membership.create(store, nodes, 2, node_options(os.environ), SYSTEM)
    membership.create(store, nodes, 2, {}, SYSTEM)
    with oncelog.connect(f"quorum:{store.url}") as db, db.log("orders", create=True).writer() as w:
        assert w.append(b"x", id="1").position == 0
    status = shell("quorum", "status", store.url, "--json")
    assert status.code == 1
    told = {one["name"]: one["trouble"] for one in status.json["nodes"]}
    assert "access denied: check the credentials" in told.pop("n2")
    assert told == {"n0": None, "n1": None}


def test_a_store_becomes_a_quorum_once(tmp_path: Path) -> None:
    """A second create, nodes of another quorum, and a store with plain logs are refused."""
    make(tmp_path)
    with pytest.raises(InvalidArgument, match="already"):
        make(tmp_path)
    with pytest.raises(InvalidArgument, match="belongs to a quorum already"):
        membership.create(LocalStorage(tmp_path / "other"), folders(tmp_path), 2, {}, SYSTEM)
    with oncelog.connect((tmp_path / "plain").as_uri()) as db:
        db.log("orders", create=True)
    with pytest.raises(InvalidArgument, match="no quorum's"):
        membership.create(LocalStorage(tmp_path / "plain"), folders(tmp_path / "x"), 2, {}, SYSTEM)


def test_a_quorums_store_is_not_opened_as_a_plain_database(tmp_path: Path) -> None:
    """Its blocks are on nodes: opened plainly, acknowledged records would be missing, and the log would be cut."""
    url = make(tmp_path)
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders", create=True).writer() as w:
        w.append(b"x", id="1")
    with pytest.raises(InvalidArgument, match=f"quorum:{url}"):
        oncelog.connect(url)
    with pytest.raises(InvalidArgument, match="never made"):
        oncelog.connect(f"quorum:{(tmp_path / 'nothing').as_uri()}")


def test_a_bucket_that_is_a_quorums_store_is_not_opened_plainly(tmp_path: Path, bucket_url: str) -> None:
    """A plain reader would miss records and say nothing; a plain writer would cut the log, or make one without nodes.

    A connection that was plain before the store became a quorum's does not cut a segment either.
    """
    membership.create(quorum_store(bucket_url), folders(tmp_path), 2, {}, SYSTEM)
    with oncelog.connect(f"quorum:{bucket_url}") as db:
        writer = db.log("orders", create=True).writer()
        writer.append(b"x", id="1")
        with oncelog.connect(bucket_url) as plain:
            for wanted, create in (("orders", False), ("fresh", True)):
                with pytest.raises(InvalidArgument, match=f"connect to quorum:{bucket_url}"):
                    plain.log(wanted, create=create)
            with pytest.raises(InvalidArgument, match="quorum:"):
                plain.logs()
        with Database(quorum_store(bucket_url)) as older, pytest.raises(InvalidArgument, match="quorum:"):
            older.log("orders").writer(takeover="force")
        writer.append(b"y", id="2")  # its segment was not fenced
    with oncelog.connect(f"quorum:{bucket_url}") as db, db.log("orders").writer() as w:
        assert w.append(b"x", id="1").duplicate
        assert w.append(b"y", id="2").duplicate


def test_a_replaced_node_is_used_by_the_next_segment(tmp_path: Path) -> None:
    """A node was lost. Its replacement gets what is written from then on; nothing that was acknowledged is lost."""
    url = make(tmp_path)
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders", create=True).writer() as w:
        first = [w.append(b"%d" % n, id=str(n)) for n in range(5)]
    lost = tmp_path / "node-1"
    lost.rename(tmp_path / "gone")
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    short = health.short(storage, UNSEALED)
    assert [one.segment for one in short] == [0]
    assert [node.name for node in health.nodes(storage, short, SYSTEM) if node.trouble] == ["n1"]
    assert {node.name for node in health.nodes(storage, short, SYSTEM) if node.behind} == {"n1"}
    made = health.replace(storage, "n1", (tmp_path / "node-1b").as_uri(), UNSEALED, SYSTEM)
    assert made.version == 2
    with pytest.raises(NotFound):
        made.named("n9")
    storage.close()
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders").writer() as w:
        assert [w.append(b"%d" % n, id=str(n)).position for n in range(5)] == [ack.position for ack in first]
        numbers = itertools.count()
        while not any((tmp_path / "node-1b").rglob("000000000?")):  # an append waits for two of three nodes
            w.append(b"new", id=f"new-{next(numbers)}")
        assert db.log("orders").verify().ok


def test_only_ensembles_of_segments_that_are_not_sealed_are_read(tmp_path: Path) -> None:
    """An ensemble stays as long as its log. Status, check and replace of an old log read those that matter alone."""
    url = make(tmp_path)
    with oncelog.connect(f"quorum:{url}") as db:
        log = db.log("orders", create=True)
        for number in range(4):
            with log.writer() as w:
                w.append(b"x", id=str(number))
            if number < 3:
                log.seal()
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    assert len(storage.home("orders").store.list("ensembles/")) == 4
    real, read = ensemble.read, []

    def noted(store: LogHome, segment: int) -> Ensemble | None:
        read.append(segment)
        return real(store, segment)

    with mock.patch.object(ensemble, "read", noted):
        health.short(storage, UNSEALED)
        health.check(storage, UNSEALED)
        health.replace(storage, "n1", (tmp_path / "new").as_uri(), UNSEALED, SYSTEM)
    storage.close()
    assert set(read) == {3}


def test_a_segment_that_is_sealed_during_a_check_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment was open when the check began, and its writer was at work. Its records are in a file by now."""
    url = make(tmp_path)
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    with oncelog.connect(f"quorum:{url}") as db:
        log = db.log("orders", create=True)
        writer = log.writer()
        for number in range(3):
            writer.append(b"x", id=str(number))
        real = Registers.problems
        seen: list[dict[str, str]] = []

        def problems(self: Registers, number: int) -> dict[str, str]:
            if not seen:
                writer.close()
                with log.writer() as following:  # closes the segment of the writer before
                    following.append(b"next")
                log.seal()
            seen.append(real(self, number))
            return seen[-1]

        monkeypatch.setattr(Registers, "problems", problems)
        assert health.check(storage, UNSEALED) == []
    assert seen == [dict.fromkeys(("n0", "n1", "n2"), "missing")] * 3
    storage.close()


def test_reading_begins_with_the_near_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONCELOG_NEAR names the node that is asked first; a name that no node has is refused."""
    url = make(tmp_path)
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders", create=True).writer() as w:
        w.append(b"x", id="1")
        until(lambda: len(list(tmp_path.glob("node-*/**/0000000000"))) == 3)  # an append waits for two of three nodes
    asked: list[str] = []
    real = Node.read

    def noted(self: Node, path: str) -> pa.Buffer | None:
        asked.append(self.name)
        return real(self, path)

    monkeypatch.setattr(Node, "read", noted)
    monkeypatch.setattr(node, "LATE_S", 60.0)  # however busy the machine is
    for name in ("n2", "n1"):
        asked.clear()
        monkeypatch.setenv("ONCELOG_NEAR", name)
        with oncelog.connect(f"quorum:{url}") as db:
            assert [entry.value for entry in db.log("orders").read()] == [b"x"]
        assert set(asked) == {name}
    monkeypatch.setenv("ONCELOG_NEAR", "az9")
    with pytest.raises(NotFound, match="no node 'az9': there are n0, n1, n2"):
        oncelog.connect(f"quorum:{url}")


def test_options_of_a_node_come_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From ``connect`` or from the environment; ``connect`` wins. Each node gets its own, and none is stored."""
    url = make(tmp_path)
    given: dict[str, dict[str, str]] = {}
    real = node.open_bucket

    def opened(where: str, options: Mapping[str, str]) -> Bucket:
        given[where.rpartition("/")[2]] = dict(options)
        return real(where, options)

    monkeypatch.setattr("oncelog.storage.quorum.home.open_bucket", opened)
    monkeypatch.setenv("ONCELOG_NODE_N0_ENDPOINT", "http://from-the-environment")
    monkeypatch.setenv("ONCELOG_NODE_N1_ENDPOINT", "http://from-the-environment")
    monkeypatch.setenv("ONCELOG_NODE_N1_SECRET_ACCESS_KEY", "hush-hush")
    with oncelog.connect(f"quorum:{url}", options={"n1.endpoint": "http://given"}):
        pass
    assert given == {
        "node-0": {"endpoint": "http://from-the-environment"},
        "node-1": {"endpoint": "http://given", "secret_access_key": "hush-hush"},
        "node-2": {},
    }
    stored = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not any(b"hush-hush" in data or b"http://" in data for data in stored)
