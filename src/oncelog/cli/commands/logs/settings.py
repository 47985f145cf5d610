"""A log's settings as options of ``oncelog log create`` and ``oncelog log set``: one each, in the order of
``LogSettings``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from oncelog.cli.terminal.quantities import duration_s, show_bytes, show_duration, size_bytes
from oncelog.errors import InvalidArgument
from oncelog.settings import Idempotence, IdScope, LogSettings, OnConflict, ProducerPolicy, Seal, Window

DEFAULTS = LogSettings()
_AS_ABOVE = "as its namespace or the database says"
_IDS, _FILES, _KEEP, _LOAD = "Deduplication", "Segments and blocks", "Retention", "Writer"


_WITH_ITS_RECORD = "as long as its record"


def _seconds(name: str, default_s: float | None, help: str, panel: str, none: str = "never") -> Any:
    shown = none if default_s is None else show_duration(default_s)
    return typer.Option(
        name, parser=duration_s, metavar="DURATION", help=help, rich_help_panel=panel, show_default=shown
    )


def _bytes(name: str, default: int | None, help: str, panel: str) -> Any:
    shown = "never" if default is None else show_bytes(default)
    return typer.Option(name, parser=size_bytes, metavar="SIZE", help=help, rich_help_panel=panel, show_default=shown)


def _count(name: str, default: int | None, help: str, panel: str, none: str = "") -> Any:
    shown = none if default is None else f"{default:,}"
    return typer.Option(name, metavar="N", help=help, rich_help_panel=panel, show_default=shown)


IdempotenceOption = Annotated[
    Idempotence,
    typer.Option(
        help="Deduplicate records that carry an id; all the others too, by their content; or none.",
        rich_help_panel=_IDS,
    ),
]
WindowOption = Annotated[
    float | None,
    _seconds(
        "--window", DEFAULTS.window.duration_s, "Remember an id for so long, in writer up-time.", _IDS, _WITH_ITS_RECORD
    ),
]
MaxKeys = Annotated[
    int | None, _count("--max-keys", DEFAULTS.window.max_keys, "Remember so many ids.", _IDS, _WITH_ITS_RECORD)
]
RefreshOnHit = Annotated[
    bool,
    typer.Option(
        "--refresh-on-hit",
        metavar="",
        help="A duplicate makes its id young again (with --window or --max-keys).",
        rich_help_panel=_IDS,
    ),
]
OnConflictOption = Annotated[
    OnConflict,
    typer.Option(help="What the same id with other content gets: an error, or the original.", rich_help_panel=_IDS),
]
SegmentSize = Annotated[
    int, _bytes("--segment-size", DEFAULTS.segment_bytes, "Begin another segment at this size.", _FILES)
]
SegmentAge = Annotated[
    float | None, _seconds("--segment-age", DEFAULTS.segment_age_s, "Or when it is this old.", _FILES)
]
BlockSize = Annotated[int, _bytes("--block-size", DEFAULTS.block_bytes, "The most that one commit writes.", _FILES)]
BlockRecords = Annotated[int, _count("--block-records", DEFAULTS.block_records, "Or so many records.", _FILES)]
CommitInterval = Annotated[
    float | None,
    typer.Option(
        "--commit-interval",
        parser=duration_s,
        metavar="DURATION",
        help="How long a block that is not full waits after the one before.",
        rich_help_panel=_FILES,
        show_default="0 on a disk, 100 ms in a bucket",
    ),
]
SnapshotInterval = Annotated[
    float, _seconds("--snapshot-interval", DEFAULTS.snapshot_interval_s, "Store a dedup snapshot this often.", _IDS)
]
SnapshotRecords = Annotated[
    int, _count("--snapshot-records", DEFAULTS.snapshot_records, "Or after so many records.", _IDS)
]
SealOption = Annotated[
    Seal, typer.Option(help="Whether the writer turns segments into Parquet by itself.", rich_help_panel=_FILES)
]
Retention = Annotated[float | None, _seconds("--retention", DEFAULTS.retention_s, "Remove what is older.", _KEEP)]
RetentionSize = Annotated[
    int | None, _bytes("--retention-size", DEFAULTS.retention_bytes, "Remove the oldest beyond this size.", _KEEP)
]
PendingSize = Annotated[int, _bytes("--pending-size", DEFAULTS.pending_bytes, "How much may wait to be stored.", _LOAD)]
PendingRecords = Annotated[int, _count("--pending-records", DEFAULTS.pending_records, "Or so many records.", _LOAD)]
IdScopeOption = Annotated[
    IdScope,
    typer.Option(
        "--id-scope",
        help="Whether an id is one of the whole log, or of its record's stream (as oncelog stream needs it).",
        rich_help_panel=_IDS,
    ),
]
ProducersOption = Annotated[
    Literal["on", "off"] | None,
    typer.Option(
        "--producers",
        help="Whether the sequences of producers are held against each other.",
        rich_help_panel=_IDS,
        show_default=_AS_ABOVE,
    ),
]
ProducerInactivity = Annotated[
    float | None,
    typer.Option(
        "--producer-inactivity",
        parser=duration_s,
        metavar="DURATION",
        help="Forget a producer that stored nothing for so long, in writer up-time.",
        rich_help_panel=_IDS,
        show_default=_AS_ABOVE,
    ),
]
MaxProducers = Annotated[
    int | None,
    typer.Option(
        "--max-producers",
        metavar="N",
        help="Remember so many producers, the most recently active.",
        rich_help_panel=_IDS,
        show_default=_AS_ABOVE,
    ),
]


def policy(checked: Literal["on", "off"] | None, inactive_s: float | None, max_producers: int | None) -> ProducerPolicy:
    """Return a policy for producers as the three options say."""
    enabled = None if checked is None else checked == "on"
    return ProducerPolicy(enabled=enabled, inactive_s=inactive_s, max_producers=max_producers)


_AS_STORED = "as it is"


def _changed(*names: str, parser: Any = None, metavar: str | None = None, help: str) -> Any:
    return typer.Option(*names, parser=parser, metavar=metavar, help=help, show_default=_AS_STORED)


def _or_never(parse: Any) -> Any:
    """Return a parser that also takes ``never``, as less than nothing."""
    return lambda text: -1 if str(text) == "never" else parse(text)


SetIdempotence = Annotated[
    Idempotence | None, _changed("--idempotence", help="Deduplicate explicit ids, content too, or nothing (off).")
]
SetWindow = Annotated[
    float | None, _changed("--window", parser=duration_s, metavar="DURATION", help="Remember an id for so long.")
]
SetMaxKeys = Annotated[int | None, _changed("--max-keys", metavar="N", help="Remember so many ids.")]
Unbounded = Annotated[
    bool,
    typer.Option(
        "--unbounded", metavar="", help="Remember an id as long as its record is in the log.", show_default=""
    ),
]
SetOnConflict = Annotated[
    OnConflict | None, _changed("--on-conflict", help="What the same id with other content gets.")
]
SetSegmentSize = Annotated[
    int | None,
    _changed("--segment-size", parser=size_bytes, metavar="SIZE", help="Begin another segment at this size."),
]
SetSeal = Annotated[Seal | None, _changed("--seal", help="Whether the writer makes Parquet files by itself.")]
SetRetention = Annotated[
    float | None,
    _changed("--retention", parser=_or_never(duration_s), metavar="DURATION", help="Remove what is older, or never."),
]
SetRetentionSize = Annotated[
    int | None,
    _changed("--retention-size", parser=_or_never(size_bytes), metavar="SIZE", help="Remove beyond it, or never."),
]


def changed_window(before: Window, duration_s: float | None, max_keys: int | None, *, unbounded: bool) -> Window:
    """Return a window as the options of ``set`` change it; what is not given stays."""
    bounded = duration_s is not None or max_keys is not None
    if unbounded and bounded:
        message = "--unbounded: is the opposite of --window and --max-keys: give one of the two"
        raise InvalidArgument(message)
    if unbounded:
        return Window()
    if not bounded:
        return before
    return Window(
        duration_s=before.duration_s if duration_s is None else duration_s,
        max_keys=before.max_keys if max_keys is None else max_keys,
        refresh_on_hit=before.refresh_on_hit,
    )
