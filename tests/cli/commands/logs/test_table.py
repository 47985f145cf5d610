"""``oncelog table publish`` says what the table has, and what to do when it cannot be."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from oncelog import Database
from tests.cli.conftest import Call


def test_publish(call: Call, db: Database, tmp_path: Path) -> None:
    """Both kinds of tables have the sealed records; the second time there is nothing to do."""
    log = db.log("orders", create=True)
    with log.writer() as writer:
        writer.append(b"paid", id="order-1")
    log.seal()
    delta = call("table", "publish", "orders", "--delta", str(tmp_path / "table"), "--json")
    assert (delta.code, delta.json["added"], delta.json["rows"]) == (0, 1, 1)
    assert DeltaTable(tmp_path / "table").to_pyarrow_table()["id"].to_pylist() == ["order-1"]
    uri, warehouse = f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse=file://{tmp_path}/warehouse"
    iceberg = ("table", "publish", "orders", "--iceberg", "shop.orders", "--option", uri, "--option", warehouse)
    assert "1, positions 0 to 0" in call(*iceberg).seen
    assert "nothing changed" in call(*iceberg).seen
    found = load_catalog("default", **dict(text.split("=", 1) for text in (uri, warehouse))).load_table("shop.orders")
    assert found.scan().to_arrow()["id"].to_pylist() == ["order-1"]


def test_what_cannot_be_published(call: Call, db: Database, tmp_path: Path) -> None:
    """Each refusal says what to do instead, with the exit code of a wrong call."""
    db.log("orders", create=True)
    for arguments, hint in (
        ((), "name one table"),
        (("--delta", str(tmp_path), "--iceberg", "shop.orders"), "name one table"),
        (("--delta", str(tmp_path), "--in-place"), "readers of Delta"),
        (("--delta", f"{tmp_path}/\udcff"), "lone surrogate"),  # a byte of the command line that is no UTF-8
        (("--iceberg", "shop.orders", "--option", "uri"), "KEY=VALUE"),
        (("--iceberg", "orders", "--option", f"uri=sqlite:///{tmp_path}/catalog.db"), "shop.orders"),
    ):
        done = call("table", "publish", "orders", *arguments)
        assert done.code == 2, done.err
        assert hint in done.err.decode()
    assert b"make it with oncelog log create" in call("table", "publish", "other", "--delta", str(tmp_path)).err
