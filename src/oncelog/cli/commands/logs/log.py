"""``oncelog log``: logs, from their creation to their end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import oncelog
from oncelog.cli.commands.logs import describe, records
from oncelog.cli.commands.logs import settings as given
from oncelog.cli.commands.logs.opened import opened
from oncelog.cli.commands.logs.settings import DEFAULTS
from oncelog.cli.terminal import asking, places
from oncelog.cli.terminal.options import Json, Name, SourceUrl, Url, Wait, Yes
from oncelog.cli.terminal.outcome import ExitCode
from oncelog.cli.terminal.output import meter, note, plural, print_json, say
from oncelog.cli.terminal.plain import Verbs
from oncelog.cli.terminal.quantities import PLACES, show_count, show_time, start
from oncelog.errors import CorruptionError, NotFound, OncelogError, Unsupported
from oncelog.names import CONFLICTS
from oncelog.settings import LogSettings, Window, differences

if TYPE_CHECKING:
    from oncelog.connect import Database
    from oncelog.log.info import LogInfo
    from oncelog.log.upkeep.sealing import Sealing

app = Verbs("log", "Logs: make them, fill them, read them, keep them in order.")


def _infos(db: Database, name: str) -> list[LogInfo]:
    """Return what there is to tell of a log and, if rows in conflict with it were put aside, of those."""
    found = [db.log(name).info()]
    with suppress(OncelogError):  # none were, or who asks may not read them
        aside = db.log(f"{CONFLICTS}{name}").info()
        found += [aside] if aside.last_position >= 0 else []
    return found


@app.verb("list", "list --url file:///var/lib/shop --json | jq -r .name", name="list")
def list_logs(url: Url, *, json: Json = False) -> None:
    """List the logs there are, with their records and sizes, and what conflicts with them.

    The size is that of closed segments and sealed files. With --json: one object a line, with the keys of info.
    """
    with oncelog.connect(url) as db:
        infos, failed = [], None
        for name in db.logs():
            try:
                infos += _infos(db, name)
            except (CorruptionError, Unsupported) as error:  # one bad log does not hide the others
                note((name, "cyan"), f": {error}")
                failed = error
        if not json:
            describe.print_list(url, infos)
        for info in infos if json else ():
            print_json(describe.as_json(info))
        if failed is not None:
            raise failed


@app.verb(
    "create orders",
    "create orders --window 1h --max-keys 1000000 --retention 30d",
    "create clicks --idempotence content --segment-size 256MiB",
)
def create(
    name: Name,
    url: Url,
    *,
    idempotence: given.IdempotenceOption = DEFAULTS.idempotence,
    window: given.WindowOption = DEFAULTS.window.duration_s,
    max_keys: given.MaxKeys = DEFAULTS.window.max_keys,
    refresh_on_hit: given.RefreshOnHit = DEFAULTS.window.refresh_on_hit,
    on_conflict: given.OnConflictOption = DEFAULTS.on_conflict,
    segment_size: given.SegmentSize = DEFAULTS.segment_bytes,
    segment_age: given.SegmentAge = DEFAULTS.segment_age_s,
    block_size: given.BlockSize = DEFAULTS.block_bytes,
    block_records: given.BlockRecords = DEFAULTS.block_records,
    commit_interval: given.CommitInterval = DEFAULTS.commit_interval_s,
    snapshot_interval: given.SnapshotInterval = DEFAULTS.snapshot_interval_s,
    snapshot_records: given.SnapshotRecords = DEFAULTS.snapshot_records,
    seal: given.SealOption = DEFAULTS.seal,
    retention: given.Retention = DEFAULTS.retention_s,
    retention_size: given.RetentionSize = DEFAULTS.retention_bytes,
    pending_size: given.PendingSize = DEFAULTS.pending_bytes,
    pending_records: given.PendingRecords = DEFAULTS.pending_records,
    producers: given.ProducersOption = None,
    producer_inactivity: given.ProducerInactivity = None,
    max_producers: given.MaxProducers = None,
    id_scope: given.IdScopeOption = DEFAULTS.id_scope,
    json: Json = False,
) -> None:
    """Create a log.

    One that is there with the same settings is left as it is. A DURATION is 250ms, 30s, 10m, 1h30m, 7d, or seconds; a
    SIZE is 64MiB, 1.5GiB, 500MB, or bytes.
    """
    settings = LogSettings(
        idempotence=idempotence,
        window=Window(duration_s=window, max_keys=max_keys, refresh_on_hit=refresh_on_hit),
        on_conflict=on_conflict,
        segment_bytes=segment_size,
        segment_age_s=segment_age,
        block_bytes=block_size,
        block_records=block_records,
        commit_interval_s=commit_interval,
        snapshot_interval_s=snapshot_interval,
        snapshot_records=snapshot_records,
        seal=seal,
        retention_s=retention,
        retention_bytes=retention_size,
        pending_bytes=pending_size,
        pending_records=pending_records,
        producers=given.policy(producers, producer_inactivity, max_producers),
        id_scope=id_scope,
    )
    with oncelog.connect(url) as db:
        there = _is_there(db, name)
        info = db.log(name, settings, create=True).info()
    if json:
        print_json({"created": not there, **describe.as_json(info)})
    else:
        say((name, "cyan"), " is there already, with these settings" if there else " is created")


def _is_there(db: oncelog.Database, name: str) -> bool:
    try:
        db.log(name)
    except NotFound:
        return False
    return True


@app.verb(
    "set orders --window 1h --max-keys 1000000", "set orders --unbounded", "set orders --retention 30d", name="set"
)
def set_settings(
    name: Name,
    url: Url,
    *,
    idempotence: given.SetIdempotence = None,
    window: given.SetWindow = None,
    max_keys: given.SetMaxKeys = None,
    unbounded: given.Unbounded = False,
    on_conflict: given.SetOnConflict = None,
    segment_size: given.SetSegmentSize = None,
    seal: given.SetSeal = None,
    retention: given.SetRetention = None,
    retention_size: given.SetRetentionSize = None,
    json: Json = False,
) -> None:
    """Change the settings of a log. Writers that are opened after this keep to them.

    With --unbounded, all ids in the log are known from the next writer on: of a log with more than five million records
    run oncelog rebuild first. What is not given stays as it is; never switches a retention off.
    """
    changes = {"idempotence": idempotence, "on_conflict": on_conflict, "segment_bytes": segment_size, "seal": seal}
    kept = {"retention_s": retention, "retention_bytes": retention_size}
    with opened(url, name) as log:
        before = log.settings
        found: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
        found |= {field: None if value < 0 else value for field, value in kept.items() if value is not None}
        found["window"] = given.changed_window(before.window, window, max_keys, unbounded=unbounded)
        log.configure(msgspec.structs.replace(before, **found))
        info = log.info()
    if json:
        print_json(describe.as_json(info))
    else:
        different = differences(before, info.settings)
        say((name, "cyan"), ": ", "; ".join(different) if different else "its settings are these already")


@app.verb("find orders order-42", "find orders order-42 --json | jq .position")
def find(
    name: Name,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a record.", show_default=False)],
    url: Url,
    *,
    stream: Annotated[
        str | None, typer.Option(help="Its stream, in a log whose ids are of their stream.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Tell where the record with an id is, from what the log remembers.

    Exits with 1 if the log does not remember the id.
    """
    with opened(url, name) as log:
        found = log.find(id, stream=stream)
        needs_stream = stream is None and log.settings.id_scope == "stream"
    if json:
        print_json({"log": name, "id": id, "found": found is not None, **(msgspec.to_builtins(found) if found else {})})
    elif found is None:
        hint = ": an id of this log belongs to a stream, say --stream" if needs_stream else ""
        say((name, "cyan"), f" does not remember {id!r}{hint}")
    else:
        where = f"position {found.position:,}, segment {found.segment:,}, entry {found.entry:,}"
        say((name, "cyan"), f": {where}, stored {show_time(found.timestamp)}, fingerprint {found.fingerprint:016x}")
    if found is None:
        raise typer.Exit(1)


@app.verb("info orders", "info orders --json | jq .last_position")
def info(name: Name, url: Url, *, json: Json = False) -> None:
    """Show a log's positions, segments, snapshots and settings."""
    with opened(url, name) as log:
        if json:
            print_json(describe.as_json(log.info()))
            return
        describe.print_info(log.info())
    if not name.startswith(CONFLICTS):
        with oncelog.connect(url) as db:
            describe.print_conflicts(_infos(db, name)[1:])


app.verb(
    "append orders day.txt",
    "append orders records.jsonl",
    "append orders --id-field order.id day-1.jsonl day-2.jsonl",
    "append orders --value-field payload --id-field key day.parquet",
)(records.append)
app.verb(
    "cat orders --from 1000 --limit 10",
    "cat orders --from 2026-01-31 --to 2026-02-01 --json | jq .value",
    "cat orders --columns position,id,value --output orders.parquet",
)(records.cat)
app.verb(
    "tail orders", "tail orders -f", "tail orders -f --from 2026-01-31T12:00Z --json", "tail orders -n 1 --format raw"
)(records.tail)


@app.verb("verify orders", "verify orders --json | jq '.findings[]'")
def verify(name: Name, url: Url, *, json: Json = False) -> None:
    """Read everything and check it.

    Checksums, order, ids at most once within their window, files, snapshots. An error breaks a promise, and makes the
    exit code 1; a warning costs time, not records; a note is worth knowing.
    """
    with opened(url, name) as log, meter("verifying") as bar:
        found = log.verify(lambda done, total: bar.to(done, done, total))
    if json:
        print_json({"log": name, "ok": found.ok, **msgspec.to_builtins(found)})
    else:
        describe.print_verification(name, found)
    if not found.ok:
        raise typer.Exit(ExitCode.FINDINGS)


@app.verb("truncate orders --before 1000000", "truncate orders --before 2026-01-01 --yes")
def truncate(
    name: Name,
    url: Url,
    *,
    before: Annotated[Any, typer.Option(parser=start, metavar="PLACE", help=f"Keep from here on: {PLACES}.")],
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove the oldest records.

    Only as far as neither the dedup window nor a reader needs them: the answer says what held it back. The space of
    whole segments comes back.
    """
    from oncelog.cli.records import reading  # noqa: PLC0415 (pyarrow is not for those who ask for help)

    with opened(url, name) as log:
        first = log.info().first_position
        position = reading.position_of(log, before)
        if not yes and position > first:
            asking.confirm(f"Remove {show_count(position - first, 'record')} before position {position:,} from {name}?")
        done = log.truncate(position)
    describe.tell_truncation(name, first, done, as_json=json)


@app.verb("retain orders")
def retain(name: Name, url: Url, *, json: Json = False) -> None:
    """Remove what the retention settings do not want kept.

    A writer does this by itself.
    """
    with opened(url, name) as log:
        first = log.info().first_position
        done = log.retain()
    describe.tell_truncation(name, first, done, as_json=json)


@app.verb("seal orders")
def seal(name: Name, url: Url, *, json: Json = False) -> None:
    """Turn closed segments into Parquet files.

    Small neighbours share a file. A writer does this by itself, unless the log was created with --seal off.
    """
    with opened(url, name) as log, meter("sealing") as bar:
        total = log.info().last_position + 1 - log.info().first_position - sum(file.records for file in log.files())
        records = 0

        def tell(part: Sealing) -> None:
            nonlocal records
            records += part.records
            bar.to(records, records, max(records, total))  # small files that are merged again come on top

        bar.to(0, 0, max(0, total))
        done = log.seal(tell)
    describe.tell_sealing(name, done, as_json=json)


@app.verb("copy orders s3://bucket/shop", "copy file:///var/lib/shop#orders s3://bucket/shop#orders-2024")
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A log's name, or URL#NAME.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", help="A URL, or URL#NAME.", show_default=False)],
    *,
    url: SourceUrl = None,
    json: Json = False,
) -> None:
    """Copy a log to another place, with its positions, ids and dedup window.

    A copy that was cut short goes on where it stopped when the command is given again; so does one of a log that has
    grown, as long as nobody has written to the copy.
    """
    source_url, name = places.source(source, url)
    target_url, wanted = places.target(target, name)
    with oncelog.connect(source_url) as db, oncelog.connect(target_url) as to, meter("copying") as bar:
        done = db.copy(name, to, rename=wanted, progress=lambda records, total: bar.to(records, records, total))
    describe.tell_copy(name, f"{target_url}#{wanted}", done, as_json=json)


@app.verb("snapshot orders")
def snapshot(name: Name, url: Url, *, wait: Wait = 5.0, json: Json = False) -> None:
    """Store a snapshot of the dedup window.

    With it, the next writer opens sooner. A writer does this by itself, by time and by count.
    """
    with opened(url, name) as log:
        with log.writer(wait_s=wait) as writer:
            writer.snapshot()
        found = log.info().snapshots
    newest = max(found, key=lambda key: (found[key], key), default=None)
    if json:
        print_json({"log": name, "snapshot": newest, "position": found[newest] if newest else None})
    elif newest is None:
        say((name, "cyan"), ": no snapshot, since its idempotence is off")
    else:
        say((name, "cyan"), f": snapshot up to position {found[newest]:,}, {newest}")


@app.verb("delete orders", "delete orders --yes")
def delete(name: Name, url: Url, *, yes: Yes = False, json: Json = False) -> None:
    """Delete a log and everything in it, for good."""
    with opened(url, name) as log:
        count = log.info().last_position + 1 - log.info().first_position
    if not yes:
        asking.confirm_name(f"{show_count(count, 'record')} will be gone. Type the log's name to go on", name)
    with oncelog.connect(url) as db:
        db.delete(name)
    if json:
        print_json({"log": name, "deleted": True, "records": count})
    else:
        say((name, "cyan"), " is deleted, with ", plural(count, "record"))
