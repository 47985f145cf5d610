"""What must hold in a manifest. It is checked, because others may be able to write the file.

The kinds of numbers and names are checked while a body is decoded, and here what code relies on without looking. Gaps
between segments are left to those who read them, and to ``verify``, which says where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from oncelog import settings as log_settings
from oncelog.errors import CorruptionError, InvalidArgument

if TYPE_CHECKING:
    from oncelog.format.manifest import Manifest, Segment
    from oncelog.format.runs.run import Run
    from oncelog.settings import LogSettings

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A position, a size, a number of something."""

Checksum = Annotated[int, Meta(ge=0)]
"""msgpack has no integers beyond 64 bits."""

Micros = Annotated[int, Meta(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)]
"""Microseconds since 1970, as far as a calendar of four-digit years goes."""

Key = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9_~%-][A-Za-z0-9._~%-]{0,199}/){0,8}[A-Za-z0-9_~%-][A-Za-z0-9._~%-]{0,199}\Z")
]
"""The key of an object: a relative path, no part of which begins with a dot."""

Part = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_~%-][A-Za-z0-9._~%-]{0,199}\Z")]
"""A part of a key."""

Doomed = Annotated[str, Meta(pattern=r"^(blocks:[0-9]{1,19}|[A-Za-z0-9_~%-][A-Za-z0-9._~%/-]*)\Z")]
"""What is to be deleted: the blocks of a segment, or an object by its key."""


def check_manifest(manifest: Manifest, what: str) -> None:
    """Raise ``CorruptionError`` if a manifest contradicts itself."""
    try:
        log_settings.check(manifest.settings)
    except InvalidArgument as error:
        message = f"{what}: checksum holds but the content does not make sense: {error}"
        raise CorruptionError(message) from error
    if manifest.open_segment is not None and manifest.open_segment >= manifest.next_segment:
        _refuse(what, f"segment {manifest.open_segment} is open, and the next is to be {manifest.next_segment}")
    newest = max((segment.number for segment in manifest.segments), default=-1)
    if newest >= manifest.next_segment:  # a writer would start it again, in vain, for ever
        _refuse(what, f"segment {newest} is there, and the next is to be {manifest.next_segment}")
    check_segments(manifest.segments, what)
    check_segments(manifest.conflicts, what)
    check_runs(manifest.memory, what)


def check_runs(runs: Sequence[Run], what: str) -> None:
    """Raise ``CorruptionError`` unless runs follow each other, and each has the parts that its ids are divided into."""
    position = 0
    for run in runs:
        if not position <= run.first_position <= run.next_position:
            _refuse(what, f"{run.key} covers positions {run.first_position} to {run.next_position}, behind {position}")
        if len(run.parts).bit_count() != 1 or sum(part.ids for part in run.parts) != run.ids:
            _refuse(what, f"{run.key} has {len(run.parts)} parts, which do not have its {run.ids} ids")
        position = run.next_position


def check_segments(segments: Sequence[Segment], what: str) -> None:
    """Raise ``CorruptionError`` unless each segment has its blocks or its file."""
    for segment in segments:
        if segment.identities is not None and segment.file is None:
            _refuse(what, f"segment {segment.number} was adopted and has no file")


def _refuse(what: str, why: str) -> None:
    message = f"{what}: checksum holds but the content does not make sense: {why}"
    raise CorruptionError(message)


__all__ = ["Checksum", "Count", "Doomed", "Key", "Micros", "Part", "check_manifest", "check_runs", "check_segments"]


def configured(manifest: Manifest, settings: LogSettings) -> Manifest:
    """Return the manifest with other settings, or raise ``InvalidArgument`` for what cannot be changed."""
    if manifest.settings.id_scope != settings.id_scope:
        message = (
            f"id_scope of log {manifest.name!r} is {manifest.settings.id_scope!r}, and never changes: copy the log"
        )
        raise InvalidArgument(message)
    return manifest if manifest.settings == settings else msgspec.structs.replace(manifest, settings=settings)
