"""Names in the package: a reader who searches for a name finds one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "oncelog"


def _classes(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the modules that define a class, by the name of the class; each module comes with its source."""
    found = defaultdict(list)
    for module, source in modules:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return found


def _repeated(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    return {name: places for name, places in _classes(modules).items() if len(places) > 1}


def test_no_class_name_stands_twice_in_the_package() -> None:
    """A traceback, a search or a review names a class without its module: the name must say which one."""
    repeated = _repeated((str(path.relative_to(PACKAGE)), path.read_text()) for path in PACKAGE.rglob("*.py"))
    assert not repeated, f"give each class a name of its own: {repeated}"


def test_a_repeated_name_is_noticed() -> None:
    """Two classes of one name in two modules are found; a class beside a function of another name is not."""
    one, two = ("a.py", "class Session:\n    pass\n"), ("b.py", "def f():\n    class Session:\n        pass\n")
    assert _repeated([one, two]) == {"Session": ["a.py", "b.py"]}
    assert _repeated([one, ("c.py", "class Other:\n    pass\n")]) == {}


LINES_MAX = 600


def test_no_module_is_too_long_to_be_read_at_a_sitting() -> None:
    """A module that passes 400 lines is asked why; one that passes 600 is divided by a noun."""
    lengths = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > LINES_MAX} == {}
