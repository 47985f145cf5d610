"""``oncelog quorum`` as a process: make one, lose a node, look, repair."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import oncelog
from tests.cli.shell import shell


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a quorum on three folders, with a log of five blocks that was closed."""
    assert shell("quorum", "try", str(tmp_path)).code == 0
    with oncelog.connect(f"quorum:{(tmp_path / 'store').as_uri()}") as db, db.log("orders", create=True).writer() as w:
        for number in range(5):
            w.append(b"%d" % number, id=str(number))
        while len(list(tmp_path.glob("node-*/**/000000000?"))) < 15:  # an append waits for two of three nodes
            continue
    return tmp_path


def test_a_lost_node_is_told_and_replaced(root: Path) -> None:
    """Status and check say what is missing; after replace and drain everything is sound again."""
    store = (root / "store").as_uri()
    shutil.rmtree(root / "node-1")
    status = shell("quorum", "status", store, "--json")
    assert status.code == 1
    assert [node["name"] for node in status.json["nodes"] if node["trouble"]] == ["n1"]
    checked = shell("quorum", "check", store, "--json")
    assert checked.code == 1
    assert {one["node"] for one in checked.json["bad_copies"]} == {"n1"}
    assert not any(one["lost"] for one in checked.json["bad_copies"])
    info = shell("log", "info", "orders", "--json", url=f"quorum:{store}")
    assert info.json["at_risk"] == 1
    assert shell("quorum", "replace", store, "n1", (root / "new").as_uri()).code == 0
    assert shell("quorum", "drain", store, "--json").json == {"sealed": {"orders": 5}}
    assert shell("quorum", "status", store).code == 0
    assert shell("quorum", "check", store).out == b"every copy of every block is sound\n"
    info = shell("log", "info", "orders", "--json", url=f"quorum:{store}")
    assert (info.json["at_risk"], info.json["sealed_segments"]) == (0, 1)


def test_a_damaged_copy_is_found(root: Path) -> None:
    """A flipped bit on one node is no loss, and is told; on the only node that has the block it is one."""
    store = (root / "store").as_uri()
    blocks = sorted((root / "node-2").rglob("0000000002"))
    assert len(blocks) == 1
    data = bytearray(blocks[0].read_bytes())
    data[-1] ^= 1
    blocks[0].chmod(0o600)
    blocks[0].write_bytes(data)
    checked = shell("quorum", "check", store, "--json")
    assert [(one["node"], one["number"], one["lost"]) for one in checked.json["bad_copies"]] == [("n2", 2, False)]
    for name in ("node-1", "node-3"):
        for path in (root / name).rglob("0000000002"):
            path.unlink()
    checked = shell("quorum", "check", store, "--json")
    assert {(one["number"], one["lost"]) for one in checked.json["bad_copies"]} == {(2, True)}
    assert b"no sound copy left" in shell("quorum", "check", store).out


def test_a_block_that_no_node_has_is_lost(root: Path) -> None:
    """All copies of a closed segment are gone: check and verify say so. A sealed segment needs no copies."""
    store = (root / "store").as_uri()
    for path in root.glob("node-*/**/000000000?"):
        path.unlink()
    checked = shell("quorum", "check", store, "--json")
    assert checked.code == 1
    assert {(one["number"], one["lost"]) for one in checked.json["bad_copies"]} == {(n, True) for n in range(5)}
    assert b"gone from every node" in shell("log", "verify", "orders", url=f"quorum:{store}").out
