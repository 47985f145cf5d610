"""Which files of a source Spark has taken, by its own notes.

Spark notes each file that it takes, with the time of its last change, in its checkpoint. So files that were not taken
are known, and files that were replaced under the same name since: Spark does not read those again.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from oncelog.spark.pipeline import spec
from oncelog.spark.pipeline.rows import source_files
from oncelog.spark.pipeline.spec import FILE_FORMATS, Spec

_TAKEN = "into-log/sources/0"


class TakenFiles(msgspec.Struct, frozen=True):
    """Files of a source: how many were taken, which wait, and which were replaced after they were taken.

    ``passed_over`` are files that Spark does not list: those in a folder inside of the source that is no partition, and
    those whose name is not UTF-8.
    """

    taken: int
    waiting: tuple[str, ...]
    replaced: tuple[str, ...]
    passed_over: tuple[str, ...] = ()


class _Taken(msgspec.Struct):
    path: str
    timestamp: int


def files(given: Spec) -> TakenFiles | None:
    """Return which files of a source were taken, wait, or were replaced; ``None`` where that cannot be told."""
    source, checkpoint = given.source, spec.local_path(given.checkpoint)
    path = spec.local_path(source.path) if source.path is not None else None
    if path is None or checkpoint is None or not source.is_streaming or source.format.lower() not in FILE_FORMATS:
        return None
    taken = _taken(checkpoint / _TAKEN)
    waiting, replaced, passed_over = [], [], []
    for found in source_files.listed(path, source_files.option(given, "pathGlobFilter")):
        known = taken.get(found)
        if known is None and _is_passed_over(given, path, found):
            passed_over.append(os.fsencode(found).decode(errors="backslashreplace"))
        elif known is None:
            waiting.append(found)
        elif known != os.stat(found).st_mtime_ns // 1_000_000:  # noqa: PTH116 (a text is what is compared)
            replaced.append(found)
    return TakenFiles(len(taken), tuple(sorted(waiting)), tuple(sorted(replaced)), tuple(sorted(passed_over)))


def _is_passed_over(given: Spec, path: Path, file: str) -> bool:
    """Tell whether Spark does not list a file."""
    if not _is_utf8(file):
        return True
    inner = Path(file).parts[len(path.parts) : -1]
    everywhere = source_files.is_set(given, "recursiveFileLookup") or "**" in path.parts
    return bool(inner) and "=" not in inner[0] and not everywhere


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _taken(folder: Path) -> dict[str, int]:
    """Return the files that Spark took, with their times in milliseconds; the newest note of a file counts."""
    found: dict[str, int] = {}
    for note in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0])):
        for line in note.read_bytes().split(b"\n")[1:]:
            if line:
                one = msgspec.json.decode(line, type=_Taken)
                found[unquote(urlsplit(one.path).path)] = one.timestamp  # a URL, in which names are escaped
    return found
