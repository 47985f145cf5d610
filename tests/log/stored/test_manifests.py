"""The newest manifest: found from what this process knows, and never on top of another log."""

from __future__ import annotations

import msgspec
import pytest

from oncelog.errors import CorruptionError, InvalidArgument, NotFound
from oncelog.format.manifest import Manifest
from oncelog.log.stored.manifests import BODIES_KEPT, Manifests, version_key
from oncelog.settings import LogSettings
from oncelog.testing.clock import SimulatedClock
from tests.log.stored.test_manifests_scale import CountedHome, segment


def created(home: CountedHome, clock: SimulatedClock, log_id: str = "00") -> Manifests:
    """Make a log, and return its manifests."""
    manifests = Manifests(home, clock)
    manifest = Manifest(name="orders", log_id=log_id, secret=b"", settings=LogSettings(), created_us=0, epoch=1)
    assert manifests.create(manifest) is not None
    return manifests


def next_epoch(manifest: Manifest) -> Manifest:
    """Change something."""
    return msgspec.structs.replace(manifest, epoch=manifest.epoch + 1)


def test_what_a_thread_has_seen_others_do_not_read_again() -> None:
    """A writer and its housekeeper change the manifest in turn. Each read what the other had written, five requests
    for every look.
    """
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)
    old = manifests.newest()
    assert old is not None
    newest = [manifests.update(next_epoch, old) for _ in range(3)][-1]
    assert home.cost(lambda: manifests.newest(old)) == {"exists": 1}
    assert manifests.newest(old) == newest
    assert home.cost(manifests.newest)["read"] == 1, "the version says that its body is the known one"
    assert manifests.newest() == newest


def test_the_newest_is_found_from_the_last_that_was_seen() -> None:
    """A read begins with the newest manifest: to search for it from the first one took ten requests each time."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)
    newest = [manifests.update(next_epoch) for _ in range(40)][-1]
    cost = home.cost(manifests.newest)
    assert (cost["read"], cost["exists"]) == (1, 2)
    assert manifests.newest() == newest


def test_a_version_that_is_missing_is_noticed_from_the_last_that_was_seen() -> None:
    """The manifest before the hole would be taken for the newest, and later records for not written."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    here, there = created(home, clock), Manifests(home, clock)
    here.newest()
    for _ in range(2):
        there.update(next_epoch)
    home.delete(version_key(2))
    with pytest.raises(CorruptionError, match="is missing"):
        here.newest()


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_the_newest_of_a_log_that_was_made_again_is_its_own(versions: int) -> None:
    """However many versions the new log has: the last that was seen is of the old one."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)
    manifests.update(next_epoch)
    for key in home.list(""):
        home.delete(key)
    assert manifests.newest() is None
    new = created(home, clock, log_id="11")
    for _ in range(versions - 1):
        new.update(next_epoch)
    found = manifests.newest()
    assert found is not None
    assert (found.version, found.manifest.log_id) == (versions, "11")


def test_a_change_of_the_known_manifest_looks_for_no_newer_one() -> None:
    """Appends wait while a segment is closed: one look whose log it is, one body, one version."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)
    known = manifests.newest()
    cost = home.cost(lambda: manifests.update(next_epoch, known))
    assert (cost["read"], cost["exists"], cost["create"]) == (1, 0, 2)
    later = [manifests.update(next_epoch) for _ in range(BODIES_KEPT)][-1]
    cost = home.cost(lambda: manifests.update(next_epoch, later))
    assert (cost["read"], cost["exists"], cost["create"], cost["delete"]) == (1, 0, 2, 1), "an old body goes, too"
    assert len(home.list("bodies/")) == BODIES_KEPT


def test_a_change_that_fails_or_does_nothing_looks_for_a_newer_manifest() -> None:
    """What is known may be old: it decides nothing but where to begin."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    here, there = created(home, clock), Manifests(home, clock)
    old = here.newest()
    for _ in range(3):
        there.update(next_epoch)

    def from_four_on(manifest: Manifest) -> Manifest:
        if manifest.epoch < 4:
            message = "too early"
            raise InvalidArgument(message)
        return next_epoch(manifest)

    assert here.update(from_four_on, old).manifest.epoch == 5
    here._last = None
    there.update(next_epoch)
    assert here.update(lambda manifest: manifest, old).manifest.epoch == 6
    here._last = None
    assert here.update(lambda manifest: manifest if manifest.epoch == 1 else next_epoch(manifest), old).version == 7


def test_a_page_for_a_version_that_another_wins_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who seals a file looks, works for seconds, and begins with an old manifest. No sweep would find the page."""
    monkeypatch.setattr("oncelog.log.stored.manifests.INLINE_SEGMENTS_MAX", 1)
    monkeypatch.setattr("oncelog.log.stored.manifests.PAGE_SEGMENTS", 1)
    clock = SimulatedClock()
    home = CountedHome(clock)
    here, there = created(home, clock), Manifests(home, clock)
    old = here.newest()
    there.update(next_epoch)
    segments = tuple(segment(number) for number in range(3))
    newest = here.update(lambda manifest: msgspec.structs.replace(manifest, segments=segments), old)
    assert len(newest.manifest.pages) == 2
    assert home.list("pages/") == sorted(page.key for page in newest.manifest.pages)


def test_two_processes_note_no_more_bodies_than_there_are() -> None:
    """Who wins a version deletes an old body, whoever made it. What each has noted of its own must not grow."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    both = created(home, clock), Manifests(home, clock)
    for number in range(200):
        both[number * number % 7 % 2].update(next_epoch)
    assert all(len(each._bodies) <= 2 * BODIES_KEPT for each in both)
    assert len(home.list("bodies/")) <= BODIES_KEPT


def test_a_change_is_not_made_to_a_log_that_was_made_again_meanwhile() -> None:
    """It was deleted between the first look and the next version."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)

    def too_late(manifest: Manifest) -> Manifest:
        for key in home.list(""):
            home.delete(key)
        new = created(home, clock, log_id="11")
        new.update(next_epoch)
        return next_epoch(manifest)

    with pytest.raises(NotFound, match="was it deleted"):
        manifests.update(too_late)
    assert (newest := Manifests(home, clock).newest()) is not None
    assert (newest.version, newest.manifest.log_id) == (2, "11")


def test_a_newer_manifest_of_another_process_is_found() -> None:
    """What this process has seen last is where it begins to look, not where it ends."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    here, there = created(home, clock), Manifests(home, clock)
    old = here.newest()
    assert old is not None
    here.update(next_epoch, old)
    newest = [there.update(next_epoch) for _ in range(5)][-1]
    assert here.newest(old) == newest


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_a_log_that_was_made_again_is_not_changed_as_the_old_one(versions: int) -> None:
    """However many versions the new log has: fewer than this process has seen of the old one, as many, or more."""
    clock = SimulatedClock()
    home = CountedHome(clock)
    manifests = created(home, clock)
    old = manifests.newest()
    assert old is not None
    manifests.update(next_epoch, old)
    for key in home.list(""):
        home.delete(key)
    new = created(home, clock, log_id="11")
    for _ in range(versions - 1):
        new.update(next_epoch)
    before = new.newest()
    with pytest.raises(NotFound):
        manifests.update(next_epoch, old)
    assert new.newest() == before
