"""Logs in tables: for people who look at one, or at all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from oncelog.cli.terminal.output import json_line, note, plural, print_facts, print_json, print_table, say
from oncelog.cli.terminal.quantities import show_bytes, show_count, show_duration
from oncelog.settings import LogSettings, ProducerPolicy, Window

if TYPE_CHECKING:
    from oncelog.cli.records.appending import AppendSummary, RefusedLine
    from oncelog.log.info import LogInfo, MemoryInfo
    from oncelog.log.jobs.copy import Copied
    from oncelog.log.jobs.verify import Verification
    from oncelog.log.upkeep.retention import Truncation
    from oncelog.log.upkeep.sealing import Sealing

_SEVERITIES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def as_json(info: LogInfo) -> dict[str, Any]:
    """Return what there is to know about a log as a JSON object; the same keys for one log and for many."""
    known: dict[str, Any] = msgspec.to_builtins(info)
    return {"name": known.pop("name"), "records": _records(info), **known}


def _records(info: LogInfo) -> int:
    return info.last_position + 1 - info.first_position


def print_list(url: str, infos: Sequence[LogInfo]) -> None:
    """Print one line a log."""
    if not infos:
        say("no logs at ", (url, "cyan"))
        return
    columns = [("log", "fold"), ("records", "right"), ("size", "right"), ("segments", "right"), ("sealed", "right")]
    columns += [("first", "right"), ("last", "right"), ("ids", "left")]
    print_table(
        columns,
        [
            (
                Text(info.name, "cyan"),
                f"{_records(info):,}",
                show_bytes(info.bytes),
                f"{info.segments:,}",
                f"{info.sealed_segments:,}",
                f"{info.first_position:,}",
                f"{info.last_position:,}" if info.last_position >= 0 else "-",
                info.settings.idempotence,
            )
            for info in infos
        ],
    )


def print_info(info: LogInfo) -> None:
    """Print everything about one log."""
    newest = max(info.snapshots.values(), default=None)
    print_facts(
        [
            (
                "",
                [
                    ("log", Text(info.name, "bold cyan")),
                    ("records", f"{_records(info):,}"),
                    ("positions", _span(info)),
                    ("size", show_bytes(info.bytes)),
                    ("segments", f"{info.segments:,} closed, {info.sealed_segments:,} of them sealed"),
                    ("open segment", "-" if info.open_segment is None else str(info.open_segment)),
                    ("up-time", show_duration(info.uptime_s)),
                    ("epoch", f"{info.epoch:,} (manifest version {info.version:,})"),
                    ("permanent id", info.log_id),
                    ("snapshots", _snapshots(info, newest)),
                    *_memory(info.memory),
                    *_adopted(info.adopted_records),
                    *([] if info.at_risk is None else [("short of copies", f"{info.at_risk:,} segments not sealed")]),
                ],
            ),
            ("settings", _settings(info.settings)),
        ]
    )


def print_conflicts(asides: Sequence[LogInfo]) -> None:
    """Say how many rows were put aside because other content has their id, if there are any, and how to see them."""
    for aside in asides:
        rows = show_count(_records(aside), "row")
        note(f"{rows} in conflict, put aside: oncelog log cat {aside.name}")


def _span(info: LogInfo) -> str:
    if not _records(info):
        return f"none yet, the next is {info.last_position + 1:,}"
    return f"{info.first_position:,} to {info.last_position:,}"


def _snapshots(info: LogInfo, newest: int | None) -> str:
    if newest is None:
        return "none"
    age = f", {show_duration(info.snapshot_age_s)} old" if info.snapshot_age_s is not None else ""
    return f"{len(info.snapshots):,}, the newest covers all before {newest:,}{age}"


def _memory(memory: MemoryInfo | None) -> list[tuple[str, str]]:
    if memory is None:
        return []
    since = f"every id since position {memory.since:,}"
    if not memory.runs:
        return [("remembered", f"{since}, in the records themselves: there is no run yet")]
    runs = f"{show_count(memory.runs, 'run')} of {show_count(memory.ids, 'id')}"
    bytes_ = f"{show_bytes(memory.memory_bytes)} of memory, {show_bytes(memory.disk_bytes)} on disk"
    return [("remembered", f"{since}; {runs}, {bytes_}")]


def _adopted(records: int) -> list[tuple[str, str]]:
    return [("adopted", f"the ids of {show_count(records, 'record')}, beside the window's keys")] if records else []


def _settings(settings: LogSettings) -> list[tuple[str, str]]:
    return [
        ("idempotence", settings.idempotence),
        ("window", show_window(settings.window)),
        ("on conflict", settings.on_conflict),
        ("producers", show_policy(settings.producers)),
        ("segments", f"up to {show_bytes(settings.segment_bytes)}{_or_age(settings.segment_age_s)}"),
        ("blocks", f"up to {show_bytes(settings.block_bytes)} or {show_count(settings.block_records, 'record')}"),
        (
            "snapshots",
            f"every {show_duration(settings.snapshot_interval_s)} or {show_count(settings.snapshot_records, 'record')}",
        ),
        ("sealing", settings.seal),
        ("retention", _retention(settings)),
        ("pending", f"up to {show_bytes(settings.pending_bytes)} or {show_count(settings.pending_records, 'record')}"),
    ]


def show_window(window: Window) -> str:
    """Return how long ids are remembered, for people."""
    if window.duration_s is None or window.max_keys is None:
        return "an id is remembered as long as its record is in the log"
    refreshed = ", refreshed by duplicates" if window.refresh_on_hit else ""
    return f"{show_duration(window.duration_s)} or {show_count(window.max_keys, 'id')}{refreshed}"


def show_policy(policy: ProducerPolicy) -> str:
    """Return what a policy for producers says, for people."""
    parts = []
    if policy.enabled is not None:
        parts.append("checked" if policy.enabled else "not checked")
    if policy.inactive_s is not None:
        parts.append(f"forgotten after {show_duration(policy.inactive_s)}")
    if policy.max_producers is not None:
        parts.append(f"at most {policy.max_producers:,}")
    return ", ".join(parts) or "as its namespace or the database says"


def _or_age(age_s: float | None) -> str:
    return "" if age_s is None else f" or {show_duration(age_s)}"


def _retention(settings: LogSettings) -> str:
    limits = []
    if settings.retention_s is not None:
        limits.append(show_duration(settings.retention_s))
    if settings.retention_bytes is not None:
        limits.append(show_bytes(settings.retention_bytes))
    return " or ".join(limits) or "for ever"


def print_verification(name: str, found: Verification) -> None:
    """Print the findings, and whether the log is sound."""
    if found.findings:
        rows = [
            (Text(finding.severity, _SEVERITIES[finding.severity]), finding.where, finding.what)
            for finding in found.findings
        ]
        print_table([("severity", "left"), ("where", "left"), ("what", "fold")], rows)
        say()
    errors = sum(finding.severity == "error" for finding in found.findings)
    verdict = ("damaged", "bold red") if errors else ("sound", "bold green")
    read = f"{show_bytes(found.bytes)} in {show_count(found.segments, 'closed segment')}"
    say((name, "cyan"), " is ", verdict, ": ", plural(found.records, "record"), f", {read}, ", plural(errors, "error"))


def tell_summary(summary: AppendSummary | None, *, as_json: bool) -> None:
    """Tell what became of the records that were to be appended, if it came to that."""
    if summary is None:
        return
    if as_json:
        print_json(summary)
        return
    parts: list[str | tuple[str, str] | Text] = [plural(summary.attempts, "record"), " read"]
    parts += [", ", (f"{summary.stored:,} stored", "green" if summary.stored else "")]
    for count, what, style in (
        (summary.duplicates, "duplicate" if summary.duplicates == 1 else "duplicates", ""),
        (summary.conflicts, "in conflict", "yellow"),
        (summary.refused, "refused", "yellow"),
        (summary.forgotten, "forgotten again by the window: run it twice and they are stored twice", "yellow"),
    ):
        parts += [", ", (f"{count:,} {what}", style)] if count else []
    took = f" ({show_duration(summary.seconds)}, {summary.records_per_second:,} records/s)"
    say((summary.log, "cyan"), ": ", *parts, (took, "dim"))


def refusals(*, as_json: bool) -> Callable[[RefusedLine], None]:
    """Return what tells on stderr that a record did not get in."""

    def tell(refused: RefusedLine) -> None:
        if as_json:
            sys.stderr.write(json_line(refused))
        else:
            where = f"{refused.source}, {refused.place} {refused.number:,}"
            note(("refused:", "bold yellow"), f" {where}: {refused.reason}")

    return tell


def tell_truncation(name: str, first: int, done: Truncation, *, as_json: bool) -> None:
    """Tell how much a truncation removed, and what held it back."""
    removed = done.first_position - first
    if as_json:
        print_json({"log": name, "removed": removed, **msgspec.to_builtins(done)})
        return
    held = f"; the rest is held by the {done.held_by}" if done.held_by else ""
    begins = f" removed, begins at {done.first_position:,}"
    say((name, "cyan"), ": ", plural(removed, "record"), begins, (held, "yellow"))


def tell_sealing(name: str, done: Sealing, *, as_json: bool) -> None:
    """Tell what was sealed."""
    if as_json:
        print_json({"log": name, **msgspec.to_builtins(done)})
    elif done.files:
        sizes = f"{show_bytes(done.bytes_before)} → {show_bytes(done.bytes_after)}"
        what = f" sealed from {show_count(done.segments, 'segment')} into {show_count(done.files, 'file')}, {sizes}"
        say((name, "cyan"), ": ", plural(done.records, "record"), what)
    else:
        say((name, "cyan"), ": nothing to seal")


def tell_copy(name: str, target: str, done: Copied, *, as_json: bool) -> None:
    """Tell what a copy has."""
    if as_json:
        print_json({"log": name, "copy": target, **msgspec.to_builtins(done)})
        return
    stored = f"{show_bytes(done.bytes)} ({show_bytes(done.bytes_stored)} of it new)"
    sizes = f" in {show_count(done.files, 'file')}, {stored}"
    say((name, "cyan"), ": ", plural(done.records, "record"), sizes, " at ", (target, "cyan"))
