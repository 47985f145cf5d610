"""The tests mirror the tree, so that the tests of a module are found by the module's name."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOMS = TESTS.parent / "src" / "oncelog"
CROSSING = {"bad_input", "crash", "docs", "examples", "golden", "hostile", "models", "project"}
"""Folders of tests that cross rooms."""


def _names(folder: Path) -> set[str]:
    """Return the words that the name of a test in a folder may begin with: the modules there, and the room."""
    room = ROOMS / folder
    return {path.stem for path in room.glob("*.py")} | {path.name for path in room.glob("*/")} | {room.name}


def _is_placed(test: Path) -> bool:
    folder, name = test.parent, test.stem.removeprefix("test_")
    if folder.parts and folder.parts[0] in CROSSING:
        return True
    return any(name == word or name.startswith(f"{word}_") for word in _names(folder))


def test_every_test_is_where_its_module_says() -> None:
    """A test is named for a module beside which it would stand in ``src``, or for its room, or crosses rooms."""
    tests = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    assert tests
    strays = sorted(str(test) for test in tests if not _is_placed(test))
    assert not strays, f"CONTRIBUTING.md, part Tests, says where a test goes: {strays}"


def test_a_stray_is_noticed() -> None:
    """The rule refuses a folder that is no room, and a name that is no module's."""
    assert _is_placed(Path("log/upkeep/test_sealing.py"))
    assert _is_placed(Path("log/upkeep/test_sealing_scale.py"))
    assert not _is_placed(Path("life/test_sealing.py"))
    assert not _is_placed(Path("log/upkeep/test_trouble.py"))
    assert not _is_placed(Path("test_misc.py"))
