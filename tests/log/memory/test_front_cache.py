"""Fronts that come from elsewhere are kept on this machine, bounded, and checked all the same."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from oncelog.log.memory import front_cache
from oncelog.log.memory.front_cache import FrontCache
from oncelog.log.memory.objects import RunObjects
from oncelog.log.memory.run_set import RunSet
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.bucket.home import ObjectStorage
from tests.log.memory.ids import Ids


@pytest.fixture
def storage(memory_bucket: Bucket) -> ObjectStorage:
    """Return homes in a bucket."""
    return ObjectStorage(memory_bucket)


def test_a_second_opening_fetches_nothing(tmp_path: Path, storage: ObjectStorage, memory_bucket: Bucket) -> None:
    """One request a part at first; then none for new ids, and one for an id that is there."""
    home = storage.home("shop")
    ids = Ids.random(1, 0, 3000)
    run = ids.stored(home, "sealed/1")
    for fetched in (1, 0):
        before = memory_bucket.requests["get"]
        known = RunSet.open(RunObjects(home, FrontCache(tmp_path / "cache", 1 << 20)), [run])
        assert memory_bucket.requests["get"] - before == fetched
        assert not known.find_many(Ids.random(2, 0, 1000).keys[:700]).found.all()
        before = memory_bucket.requests["get"]
        hit = known.find_one(*ids.keys[42].tolist())
        assert hit is not None
        assert hit.position == 42
        assert memory_bucket.requests["get"] - before == 1


def test_a_damaged_file_is_fetched_again(tmp_path: Path, storage: ObjectStorage) -> None:
    """Cut short, changed in its head or its index, or not a file at all; a changed filter costs time alone."""
    home = storage.home("shop")
    ids = Ids.random(1, 0, 3000)
    run = ids.stored(home, "sealed/1")
    RunSet.open(RunObjects(home, FrontCache(tmp_path, 1 << 20)), [run])
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    used = len(good.rstrip(b"\0"))
    changed = [bytes(byte ^ (at == place) for at, byte in enumerate(good)) for place in (30, used - 3, used // 2)]
    for bad in (*changed, good[:-1], b"", good + b"x"):
        file.write_bytes(bad)
        known = RunSet.open(RunObjects(home, FrontCache(tmp_path, 1 << 20)), [run])
        found = known.find_many(ids.keys)
        assert (found.positions == ids.positions).all()


def test_the_folder_is_bounded(tmp_path: Path, storage: ObjectStorage) -> None:
    """The file that was not used for longest goes first; what was read of a file stays usable."""
    home = storage.home("shop")
    many = [Ids.random(seed, 1000 * seed, 1000) for seed in range(5)]
    runs = [ids.stored(home, f"sealed/{number}") for number, ids in enumerate(many)]
    size = runs[0].parts[0].front_bytes
    cache = FrontCache(tmp_path, 3 * size)
    known = RunSet.open(RunObjects(home, cache), runs[:3])
    for age, number in enumerate((1, 2, 0)):
        (file,) = tmp_path.glob(f"{number}.0.ids-*")
        os.utime(file, ns=(age, age))
    RunSet.open(RunObjects(home, cache), runs[3:])
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "3", "4"]
    for ids in many[:3]:
        assert (known.find_many(ids.keys).positions == ids.positions).all()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, storage: ObjectStorage) -> None:
    """The cache saves requests; nothing depends on it."""
    (tmp_path / "file").write_bytes(b"")
    home = storage.home("shop")
    ids = Ids.random(1, 0, 100)
    run = ids.stored(home, "sealed/1")
    known = RunSet.open(RunObjects(home, FrontCache(tmp_path / "file" / "cache", 1 << 20)), [run])
    assert (known.find_many(ids.keys).positions == ids.positions).all()


def test_files_of_others_are_never_removed(tmp_path: Path, storage: ObjectStorage) -> None:
    """A folder with the user's own files is chosen as the cache: the cache bounds its own files, and no others."""
    others = [tmp_path / name for name in ("report.pdf", "notes.front", "x-0123.front", "folder")]
    for number, path in enumerate(others[:-1]):
        path.write_bytes(bytes(1 << 16))
        os.utime(path, ns=(number, number))
    others[-1].mkdir()
    home = storage.home("shop")
    runs = [Ids.random(seed, 1000 * seed, 1000).stored(home, f"sealed/{seed}") for seed in range(3)]
    RunSet.open(RunObjects(home, FrontCache(tmp_path, runs[0].parts[0].front_bytes)), runs)
    assert all(path.exists() for path in others)
    assert len(list(tmp_path.iterdir())) == len(others) + 1


@pytest.mark.parametrize("what", ["link", "pipe", "link under the temporary name"])
def test_what_somebody_planted_is_neither_followed_nor_waited_for(
    tmp_path: Path, storage: ObjectStorage, what: str
) -> None:
    """A link to a file of the user's would be overwritten, a pipe would never answer."""
    home = storage.home("shop")
    ids = Ids.random(1, 0, 100)
    run = ids.stored(home, "sealed/1")
    folder, victim = tmp_path / "cache", tmp_path / "victim"
    RunSet.open(RunObjects(home, FrontCache(folder, 1 << 20)), [run])
    (file,) = folder.iterdir()
    file.unlink()
    victim.write_bytes(b"precious")
    if what == "link":
        file.symlink_to(victim)
    elif what == "pipe":
        os.mkfifo(file)
    else:
        file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}").symlink_to(victim)
    known = RunSet.open(RunObjects(home, FrontCache(folder, 1 << 20)), [run])
    assert (known.find_many(ids.keys).positions == ids.positions).all()
    assert victim.read_bytes() == b"precious"
    assert file.is_file()
    assert not file.is_symlink()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, storage: ObjectStorage, mode: int) -> None:
    """Somebody else could put a filter there that lacks ids: they would be stored twice."""
    tmp_path.chmod(mode)
    home = storage.home("shop")
    ids = Ids.random(1, 0, 100)
    run = ids.stored(home, "sealed/1")
    known = RunSet.open(RunObjects(home, FrontCache(tmp_path, 1 << 20)), [run])
    assert (known.find_many(ids.keys).positions == ids.positions).all()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_while_it_is_used_changes_nothing(tmp_path: Path, storage: ObjectStorage) -> None:
    """Made shorter, a mapped file would end the process; with its bits cleared, known ids would be taken for new."""
    home = storage.home("shop")
    ids = Ids.random(1, 0, 30_000)
    run = ids.stored(home, "sealed/1")
    for _ in range(2):
        known = RunSet.open(RunObjects(home, FrontCache(tmp_path, 1 << 20)), [run])
    (file,) = tmp_path.iterdir()
    assert (known.find_many(ids.keys).positions == ids.positions).all()
    file.write_bytes(b"")
    assert (known.find_many(ids.keys).positions == ids.positions).all()


def test_a_copy_goes_its_own_way(tmp_path: Path, storage: ObjectStorage) -> None:
    """Two logs with objects of one name: what is kept is told apart by its checksum."""
    cache = FrontCache(tmp_path, 1 << 20)
    for name, seed in (("shop", 1), ("copy", 2)):
        home = storage.home(name)
        ids = Ids.random(seed, 0, 100)
        run = ids.stored(home, "sealed/1")
        assert (RunSet.open(RunObjects(home, cache), [run]).find_many(ids.keys).positions == ids.positions).all()


@pytest.mark.parametrize(
    ("wish", "environment", "expected"),
    [
        (None, {"HOME": "{}/me"}, "{}/me/.cache/oncelog"),
        (None, {"HOME": "{}/me", "XDG_CACHE_HOME": "{}/caches"}, "{}/caches/oncelog"),
        (None, {}, None),
        ("0", {"HOME": "{}/me"}, None),
        ("{}/mine", {"HOME": "{}/me"}, "{}/mine"),
    ],
)
def test_the_environment_says_where_fronts_are_kept(
    tmp_path: Path,
    storage: ObjectStorage,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wish: str | None,
    environment: dict[str, str],
    expected: str | None,
) -> None:
    """In the user's folder for caches, readable by the user alone, or where the user wants them, or nowhere."""
    monkeypatch.setattr(front_cache._CacheChoice, "cache", None)
    known = {name: path.format(tmp_path) for name, path in environment.items()}
    front_cache.choose(None if wish is None else wish.format(tmp_path), known)
    home = storage.home("shop")
    RunSet.open(RunObjects(home), [Ids.random(1, 0, 100).stored(home, "sealed/1")])
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path.parent) for path in kept] == ([] if expected is None else [expected.format(tmp_path)])
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in kept)
