"""The line of each key in a TOML file, for messages about mistakes: the TOML parser does not keep lines."""

from __future__ import annotations

import re

Path = tuple[str, ...]

_TABLE = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\]]+?)\s*\]{1,2}")
_KEY = re.compile(
    r"\s*(?P<name>(?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=(?P<rest>.*)"
)
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")
_LONG = ('"""', "'''")


def lines_of(text: str) -> dict[Path, int]:
    r"""Return the line of each table and key, by its path. Keys of inline tables are where their table is.

    >>> lines_of('name = "x"\n[source]\nformat = "json"\noptions.header = true')
    {('name',): 1, ('source',): 2, ('source', 'format'): 3, ('source', 'options', 'header'): 4}
    """
    found: dict[Path, int] = {}
    table: Path = ()
    until: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if until is not None:
            until = None if until in line else until
            continue
        if match := _KEY.match(line):
            found.setdefault((*table, *parts(match["name"])), number)
            until = _left_open(match["rest"])
        elif match := _TABLE.match(line):
            table = parts(match["name"])
            found.setdefault(table, number)
    return found


def parts(name: str) -> Path:
    """Return the parts of a dotted key.

    >>> parts('run.conf."spark.sql.shuffle.partitions"')
    ('run', 'conf', 'spark.sql.shuffle.partitions')
    """
    return tuple(next(part for part in match.groups() if part is not None) for match in _PART.finditer(name))


def _left_open(rest: str) -> str | None:
    """Return the quotes of a long string that begins here and does not end here."""
    for quotes in _LONG:
        if rest.count(quotes) == 1:
            return quotes
    return None


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a key, or of the nearest thing around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)
