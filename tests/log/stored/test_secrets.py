"""The key of a log's hashes: readers never see it, writers cannot do without it, and a copy has it."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import oncelog
from oncelog import Database, IdConflict, Record
from oncelog.clock import SYSTEM
from oncelog.errors import CorruptionError, InvalidArgument
from oncelog.format import manifest as manifests_format
from oncelog.log.stored import secrets
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import LogHome
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage
from tests.golden.make import MANIFEST

RECORDS = [Record(b"paid", id=f"order-{number}") for number in range(20)]


def manifest_of(home: LogHome) -> manifests_format.Manifest:
    """Return the newest manifest in a home."""
    known = Manifests(home, SYSTEM).newest()
    assert known is not None
    return known.manifest


def fill(db: Database) -> None:
    """Store records, some of them sealed."""
    log = db.log("orders", create=True)
    with log.writer() as writer:
        writer.append_many(RECORDS)
        writer.snapshot()
    log.seal()


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """Begin as a process that has read no secret."""
    secrets._known.clear()


def test_no_file_but_one_has_the_secret(tmp_path: Path) -> None:
    """Manifests are for everybody who may read the log; the secret is in a file of its own, for its owner alone."""
    with oncelog.connect(f"file://{tmp_path}/shop") as db:
        fill(db)
    home = LocalStorage(tmp_path / "shop").home("orders")
    secret = secrets.read(home, manifest_of(home))
    assert len(secret) == 32
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert [path.parent.name for path in holding] == ["secret"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert manifest_of(home).secret == b""


class Refusing:
    """A home as a reader has it whom the policy of a bucket keeps from secrets, or as a writer has it."""

    def __init__(self, inner: LogHome) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def read(self, key: str, start: int = 0, length: int | None = None, *, mapped: bool = False) -> pa.Buffer:
        """Read anything but secrets."""
        if key.startswith(secrets.PREFIX):
            message = f"{key}: permission denied"
            raise InvalidArgument(message)
        return self._inner.read(key, start, length, mapped=mapped)


class ReadersStorage(MemoryStorage):
    """A storage whose homes refuse secrets."""

    def home(self, key: str) -> LogHome:  # type: ignore[override]
        """Return a home that refuses secrets."""
        return Refusing(super().home(key))  # type: ignore[return-value]


def test_a_reader_needs_no_secret_and_a_writer_does() -> None:
    """All that reads works without; what recognises ids says what it lacks, and nothing is written."""
    storage = ReadersStorage()
    plain = MemoryStorage()
    fill(Database(plain))
    storage._homes = plain._homes
    secrets._known.clear()
    log = Database(storage).log("orders")
    assert [entry.id for entry in log.read()] == [record.id for record in RECORDS]
    assert sum(batch.num_rows for batch in log.read_arrow()) == len(RECORDS)
    assert log.info().last_position == len(RECORDS) - 1
    with pytest.raises(InvalidArgument, match="permission denied"):
        log.writer()


@pytest.mark.parametrize("damage", ["gone", "other", "short"])
def test_a_secret_that_is_lost_is_told(damage: str, tmp_path: Path) -> None:
    """With another secret no id would be known again, and everything would be stored twice."""
    with oncelog.connect(f"file://{tmp_path}/shop") as db:
        fill(db)
    (path,) = (tmp_path / "shop" / "logs" / "orders" / "secret").iterdir()
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage == "other" else content[:40])
    secrets._known.clear()
    with oncelog.connect(f"file://{tmp_path}/shop") as db, pytest.raises(CorruptionError, match="secret"):
        db.log("orders").writer()


def test_a_copy_recognises_what_was_stored(tmp_path: Path) -> None:
    """The secret goes with a copy: a retry against the copy is a duplicate, and other content a conflict."""
    with oncelog.connect(f"file://{tmp_path}/shop") as db, oncelog.connect(f"file://{tmp_path}/copy") as other:
        fill(db)
        db.copy("orders", other)
        db.copy("orders", other)
        secrets._known.clear()
        with other.log("orders").writer() as writer:
            assert writer.append(b"paid", id="order-7").duplicate
            with pytest.raises(IdConflict):
                writer.append(b"refunded", id="order-7")


def test_a_log_from_before_keeps_its_secret_where_it_is() -> None:
    """A manifest of format 1 has the secret inside: such a log is opened, recognised and written as it is."""
    home = MemoryStorage().home("orders")
    assert secrets.read(home, MANIFEST) == MANIFEST.secret
    assert not home.list(secrets.PREFIX)
    secrets.copy(home, home, MANIFEST)
    assert not home.list(secrets.PREFIX)


def test_an_older_version_refuses_a_log_whose_secret_it_would_not_find() -> None:
    """It would hash with an empty key, and store every retry again: bodies have a number it does not know."""
    body = manifests_format.encode_body(msgspec.structs.replace(MANIFEST, secret=b""))
    assert int.from_bytes(body[4:6], "little") == 2


def test_who_comes_second_leaves_no_secret_behind() -> None:
    """Two that create a log at once have a secret each; that of the second is of no use to anybody."""
    storage = MemoryStorage()
    home = storage.home("orders")
    fill(Database(storage))
    from oncelog.log import open_log
    from oncelog.settings import LogSettings

    found = open_log._create("orders", home, Manifests(home, SYSTEM), SYSTEM, LogSettings())
    assert found is not None
    assert home.list(secrets.PREFIX) == [secrets.key_of(found.manifest.log_id)]
