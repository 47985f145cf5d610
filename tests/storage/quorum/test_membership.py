"""Making and changing a quorum: what cannot be one is refused, with what to do."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import oncelog
from oncelog.clock import SYSTEM
from oncelog.connect import Database
from oncelog.errors import InvalidArgument, NotFound, OncelogError
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.quorum import health, membership
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.storage.urls import quorum_store


def folders(root: Path, count: int = 3) -> dict[str, str]:
    """Return nodes in folders."""
    return {f"n{n}": (root / f"node-{n}").as_uri() for n in range(count)}


def make(root: Path, ack: int | None = 2) -> str:
    """Make a quorum; return the URL of its store."""
    store = LocalStorage(root / "store")
    membership.create(store, folders(root), ack, {}, SYSTEM)
    return (root / "store").as_uri()


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
        health.replace(storage, "n1", (tmp_path / "store" / "n1").as_uri(), SYSTEM)
    with pytest.raises(InvalidArgument, match="one place"):
        health.replace(storage, "n1", (tmp_path / "node-0").as_uri(), SYSTEM)
    storage.close()
    assert not (tmp_path / "store" / "n1").exists()


def test_a_replacement_that_leaves_too_few_nodes_says_what_to_do(tmp_path: Path) -> None:
    """Two of three nodes were replaced, and a segment was on all three: nobody could fence it any more."""
    url = make(tmp_path)
    with oncelog.connect(f"quorum:{url}") as db, db.log("orders", create=True).writer() as w:
        w.append(b"x", id="1")
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    health.replace(storage, "n1", (tmp_path / "new-1").as_uri(), SYSTEM)
    storage.close()
    storage = QuorumStorage(LocalStorage(tmp_path / "store"))
    with pytest.raises(InvalidArgument, match=f"1 of its 3 nodes, and needs 2 .*oncelog quorum drain {url}"):
        health.replace(storage, "n2", (tmp_path / "new-2").as_uri(), SYSTEM)
    storage.close()
    assert not (tmp_path / "new-2").exists()


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
    short = health.short(storage)
    assert [one.segment for one in short] == [0]
    assert [node.name for node in health.nodes(storage, short, SYSTEM) if node.trouble] == ["n1"]
    assert {node.name for node in health.nodes(storage, short, SYSTEM) if node.behind} == {"n1"}
    made = health.replace(storage, "n1", (tmp_path / "node-1b").as_uri(), SYSTEM)
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
