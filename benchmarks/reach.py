"""The ratios that Oncelog is to reach, from one run's measurements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks import (
    bucket,
    faces,
    files,
    first,
    inbox,
    jobs,
    known,
    queues,
    quorum,
    reading,
    remote,
    serving,
    spark,
    startup,
    tasks,
)
from benchmarks.embedded import COMPILED
from benchmarks.measure import Measurement
from benchmarks.remembering import BOUNDED, ONE_CORE, P99_MERGING, UNBOUNDED
from benchmarks.served import Http, Remote, RemoteTasks, Unary
from benchmarks.workloads import NO_RETRIES, OVERLAPPED, RETRIES

_ONCE = "Oncelog, append_arrow"
_APPEND = "append, 100-byte values"
_APPEND_1K = "append, 1 KB values"
_LIMITED = "append, 1 KB values, disk held to 400 MB/s"
_RAW = "raw pwritev + fdatasync"
_RAW_FILLED = f"{_RAW}, zero-filled before"


class Reached(msgspec.Struct, frozen=True):
    """One ratio: what was to be reached, what was, and the verdict (``None``: reported, nothing was asked)."""

    work: str
    goal: str
    value: float
    unit: str
    reached: bool | None


class Table:
    """One run's measurements, by workload and contender."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        """Leave out what was not measured."""
        self.rows = [row for row in measurements if row.rounds]

    def best(self, workload: str, *contenders: str) -> float:
        """Return the best of the best; ``KeyError`` when none was measured."""
        found = [row for row in self.rows if row.workload == workload and row.contender in contenders]
        if not found:
            raise KeyError(workload, contenders)
        pick = max if found[0].larger_is_better else min
        return pick(row.best for row in found)

    def worst(self, workload: str, contender: str) -> float:
        """Return the worst of a contender; ``KeyError`` when it was not measured."""
        row = self._row(workload, contender)
        return min(row.rounds) if row.larger_is_better else max(row.rounds)

    def median(self, workload: str, contender: str) -> float:
        """Return the middle round of a contender; ``KeyError`` when it was not measured."""
        return self._row(workload, contender).median

    def more(self, workload: str, contender: str, name: str) -> float:
        """Return what else was seen of a contender; ``KeyError`` when it was not measured."""
        return self._row(workload, contender).more[name]

    def _row(self, workload: str, contender: str) -> Measurement:
        for row in self.rows:
            if row.workload == workload and row.contender == contender:
                return row
        raise KeyError(workload, contender)

    def has(self, workload: str, contender: str) -> bool:
        """Tell whether a contender was measured."""
        return any(row.workload == workload and row.contender == contender for row in self.rows)

    def best_peer(self, workload: str) -> Measurement:
        """Return the durable peer that came out best."""
        peers = [row for row in self.rows if row.workload == workload and row.durable and _is_peer(row)]
        if not peers:
            raise KeyError(workload)
        return max(peers, key=lambda row: row.best)


def _is_peer(row: Measurement) -> bool:
    return not row.contender.startswith(("Oncelog", "raw", "pyarrow"))


def reach(measurements: Sequence[Measurement]) -> list[Reached]:
    """Return every ratio that the measurements allow."""
    table = Table(measurements)
    found: list[Reached] = []
    for part in (
        _append,
        _first,
        _startup,
        _content,
        _off,
        _off_elsewhere,
        _retries,
        _single,
        _submit,
        _window,
        _memory,
        _remembering,
        _open,
        _read,
        _bucket,
        _quorum,
        _server,
        _queue,
        _inbox,
        _spark,
        _known,
        _files,
        _jobs,
        _faces,
        _remote,
        _tasks,
    ):
        try:
            found += part(table)
        except KeyError:
            continue
    return found


def _ours(table: Table, workload: str, ids: str) -> float:
    return table.best(workload, f"{_ONCE}, {ids}", f"Oncelog, {OVERLAPPED}, {ids}")


def _append(table: Table) -> Iterator[Reached]:
    ours = _ours(table, _APPEND, "explicit ids")
    work = "idempotent append, columnar, 100-byte values, 10,000 a commit"
    raw = ours / table.best(_APPEND, _RAW)
    yield Reached(f"{work}, against raw, both with zeros kept ahead alike", "0.45 x", raw, "x", raw >= 0.45)
    if table.has(_APPEND, f"{_ONCE}, explicit ids{COMPILED}"):
        compiled = _ours(table, _APPEND, f"explicit ids{COMPILED}") / table.best(_APPEND, _RAW)
        yield Reached(f"{work}, with numba, against raw alike", "0.6 x", compiled, "x", compiled >= 0.6)
    filled = ours / table.best(_APPEND, _RAW_FILLED)
    yield Reached(f"{work}, against raw into a file zero-filled before", "reported", filled, "x", None)
    peer = table.best_peer(_APPEND)
    ratio = ours / peer.best
    yield Reached(f"{work}, against the best peer ({peer.contender})", "10 x", ratio, "x", ratio >= 10)


def _first(table: Table) -> Iterator[Reached]:
    ratio = table.best(first.WORKLOAD, first.FirstRows.name) / table.best(first.WORKLOAD, "SQLite")
    work = f"the first {first.COMMITS * first.COMMIT_RECORDS:,} rows of a process, fresh files, against SQLite"
    yield Reached(work, "10 x", ratio, "x", ratio >= 10)


def _startup(table: Table) -> Iterator[Reached]:
    seconds = table.best(startup.WORKLOAD, startup.OURS)
    yield Reached("import oncelog, connect and append in a fresh process", "under 0.25 s", seconds, "s", seconds < 0.25)


def _content(table: Table) -> Iterator[Reached]:
    ratio = _ours(table, _APPEND, "content ids") / _ours(table, _APPEND, "explicit ids")
    yield Reached("content ids against explicit ids, columnar, 100-byte values", "0.6 x", ratio, "x", ratio >= 0.6)
    many = table.best(_APPEND, "Oncelog, append_many, explicit ids")
    yield Reached("append_many, 100-byte values", "1,200,000/s", many, "/s", many >= 1_200_000)
    ratio = many / _ours(table, _APPEND, "explicit ids")
    yield Reached("append_many against append_arrow, 100-byte values", "0.5 x", ratio, "x", ratio >= 0.5)


def _off(table: Table) -> Iterator[Reached]:
    ratio = _slower(table, _LIMITED, "explicit ids")
    work = "idempotence on against off, 1 KB values, explicit ids, disk held to 400 MB/s"
    yield Reached(work, "at most 10 % slower", ratio, "% slower", ratio <= 10)


def _off_elsewhere(table: Table) -> Iterator[Reached]:
    for workload, ids in itertools.product((_APPEND, _APPEND_1K), ("explicit ids", "content ids")):
        ratio = _slower(table, workload, ids)
        yield Reached(f"idempotence on against off, {workload[8:]}, {ids}", "reported", ratio, "% slower", None)


def _slower(table: Table, workload: str, ids: str) -> float:
    return 100 * (1 - _ours(table, workload, ids) / _ours(table, workload, "idempotence off"))


def _retries(table: Table) -> Iterator[Reached]:
    ratio = _ours(table, RETRIES, "explicit ids") / _ours(table, NO_RETRIES, "explicit ids")
    yield Reached("50 % retries against none, per attempt", "no slower (1 x)", ratio, "x", ratio >= 1)
    many = "Oncelog, append_many, explicit ids"
    ratio = table.best(RETRIES, many) / table.best(NO_RETRIES, many)
    yield Reached("50 % retries against none, per attempt, append_many", "no slower (1 x)", ratio, "x", ratio >= 1)


def _single(table: Table) -> Iterator[Reached]:
    workload = "one append at a time"
    ratio = table.best(workload, _RAW) / table.best(workload, "Oncelog, append, explicit ids")
    yield Reached(
        "one append at a time, against raw on a file kept ahead alike", "within 1.25 x", ratio, "x", ratio <= 1.25
    )
    ratio = table.best(workload, "Oncelog, append, explicit ids") / table.best(workload, "SQLite")
    yield Reached("one append at a time, against SQLite", "ahead (1 x)", ratio, "x", ratio >= 1)
    ours = table.more(workload, "Oncelog, append, explicit ids", "p99_us")
    ratio = table.more(workload, "SQLite", "p99_us") / ours
    yield Reached("one append at a time, p99, against SQLite", "ahead (1 x)", ratio, "x", ratio >= 1)


def _submit(table: Table) -> Iterator[Reached]:
    rate = table.best("submit from one thread", "Oncelog, submit, explicit ids")
    yield Reached("submit from one thread", "250,000/s", rate, "/s", rate >= 250_000)


def _window(table: Table) -> Iterator[Reached]:
    workload = "window of 100,000 keys"
    size = table.best(workload, "Oncelog, memory") / 1e6
    yield Reached("window of 100,000 keys, memory", "at most 5 MB", size, "MB", size <= 5)
    for which in ("absent", "present"):
        rate = table.best(workload, f"Oncelog, batch look-up, {which}") / 1e6
        yield Reached(f"window of 100,000 keys, batch look-ups, {which}", "20 M/s", rate, "M/s", rate >= 20)


def _memory(table: Table) -> Iterator[Reached]:
    workload = next((row.workload for row in table.rows if row.workload.startswith("memory of ")), "")
    peers = ("RocksDB", "SQLite", "PostgreSQL")
    best = max(peers, key=lambda peer: table.best(workload, f"{peer}, new ids") if _has(table, workload, peer) else 0)
    for ours, goal in (("Oncelog", 4), (f"Oncelog{COMPILED}", 5)):
        ratio = table.best(workload, f"{ours}, new ids") / table.best(workload, f"{best}, new ids")
        work = f"{workload}, new ids, {ours.removeprefix('Oncelog').lstrip(', ') or 'numpy'}, against the best ({best})"
        yield Reached(work, f"{goal} x", ratio, "x", ratio >= goal)
    size = table.best(workload, "Oncelog, at rest")
    yield Reached(f"{workload}, bytes at rest", "32 and 8 a commit", size, "bytes", size <= 33)


def _remembering(table: Table) -> Iterator[Reached]:
    workload = next((row.workload for row in table.rows if row.workload.startswith("append with ")), "")
    for suffix, goal, goal_one_core in (("", 0.85, 0.65), (COMPILED, 0.95, 0.75)):
        kind = suffix.removeprefix(", ") or "numpy"
        rate = {
            (way, window): table.median(workload, f"Oncelog, {way}, {window}{suffix}")  # the best round has no merge
            for way in ("append_arrow", "append", P99_MERGING, ONE_CORE)
            for window in (BOUNDED, UNBOUNDED)
        }
        ratio = rate["append_arrow", UNBOUNDED] / rate["append_arrow", BOUNDED]
        yield Reached(
            f"{workload}, {kind}, every id remembered against 100,000", f"{goal} x", ratio, "x", ratio >= goal
        )
        ratio = rate["append", BOUNDED] / rate["append", UNBOUNDED]
        yield Reached(f"{workload}, {kind}, one at a time, the same", "1.05 x its time", ratio, "x", ratio <= 1.05)
        ratio = rate[ONE_CORE, UNBOUNDED] / rate[ONE_CORE, BOUNDED]
        yield Reached(
            f"{workload}, {kind}, merging on the same core", f"{goal_one_core} x", ratio, "x", ratio >= goal_one_core
        )
        ratio = rate[P99_MERGING, UNBOUNDED] / rate[P99_MERGING, BOUNDED]
        yield Reached(f"{workload}, {kind}, one at a time, p99 while merging", "2 x its time", ratio, "x", ratio <= 2)
        seconds = 1 / table.best(workload, f"Oncelog, append_arrow, known ids, {UNBOUNDED}{suffix}")
        yield Reached(f"{workload}, {kind}, a known row answered", "3 µs", 1e6 * seconds, "µs", seconds <= 3e-6)
        seconds = table.best(workload, f"Oncelog, open, {UNBOUNDED}{suffix}")
        yield Reached(f"{workload}, {kind}, open", "1 s", seconds, "s", seconds <= 1)


def _has(table: Table, workload: str, peer: str) -> bool:
    return table.has(workload, f"{peer}, new ids")


def _open(table: Table) -> Iterator[Reached]:
    rows = [row for row in table.rows if row.workload == "open after a crash" and not _is_peer(row)]
    for row in rows:
        goal_s = 0.3 if "blocks of one record" in row.contender else 1.0
        work = f"open after a crash: {row.contender.removeprefix('Oncelog, ')}"
        yield Reached(work, f"under {goal_s:g} s", row.best, "s", row.best < goal_s)


def _read(table: Table) -> Iterator[Reached]:
    for ours, plain in ((reading.BLOCKS, reading.MAPPED), (reading.SEALED, reading.PARQUET)):
        ratio = table.best(reading.WORKLOAD, ours) / table.best(reading.WORKLOAD, plain)
        work = f"read, columnar: {ours.removeprefix('Oncelog, ')}, against {plain}"
        yield Reached(work, "as fast (1 x)", ratio, "x", ratio >= 1)


def _bucket(table: Table) -> Iterator[Reached]:
    for ours, plain in ((bucket.APPEND, bucket.PUT), (bucket.READ, bucket.GET)):
        ratio = table.best(bucket.WORKLOAD, plain) / table.best(bucket.WORKLOAD, ours)
        work = f"{bucket.WORKLOAD}: {ours.removeprefix('Oncelog, ')}, against {plain}"
        yield Reached(work, "within 1.3 x", ratio, "x", ratio <= 1.3)
    takeover_s = table.best(bucket.WORKLOAD, bucket.TAKEOVER)
    yield Reached(f"{bucket.WORKLOAD}: takeover, 100,000 keys", "under 2 s", takeover_s, "s", takeover_s < 2)
    requests = table.best(bucket.WORKLOAD, bucket.REQUESTS)
    yield Reached(f"{bucket.WORKLOAD}: requests for a million records", "reported", requests, "", None)


def _quorum(table: Table) -> Iterator[Reached]:
    one_s, three_s, killed_s = (table.best(quorum.SINGLE, name) for name in (quorum.ONE, quorum.THREE, quorum.KILLED))
    ratio = three_s / one_s
    yield Reached(f"{quorum.SINGLE}, p50, against one folder", "within 1.5 x", ratio, "x", ratio <= 1.5)
    ratio = killed_s / three_s
    yield Reached(f"{quorum.SINGLE}, p50, one cut off, against before", "within 1.2 x", ratio, "x", ratio <= 1.2)
    longest_s = table.more(quorum.SINGLE, quorum.KILLED, "longest")
    yield Reached(f"{quorum.SINGLE}, the longest, one cut off", "under 6 s", longest_s, "s", longest_s < 6)
    ratio = table.best(quorum.COLUMNAR, quorum.ONE) / table.best(quorum.COLUMNAR, quorum.THREE)
    yield Reached(f"{quorum.COLUMNAR}, against one folder", "within 3.5 x", ratio, "x", ratio <= 3.5)
    ratio = table.best(quorum.SLOW, quorum.THREE) / table.best(quorum.SLOW, quorum.ONE)
    yield Reached(f"{quorum.SLOW}: p99 of an append, against one", "within 0.5 x", ratio, "x", ratio <= 0.5)
    takeover_s = table.best(quorum.TAKEOVER, quorum.THREE)
    yield Reached(quorum.TAKEOVER, "under 2 s", takeover_s, "s", takeover_s < 2)
    waiting = table.best(quorum.WAITING, quorum.THREE)
    yield Reached(quorum.WAITING, "under 0.05 CPU s/s", waiting, "CPU s/s", waiting < 0.05)
    ratio = table.more(quorum.SLOW, quorum.THREE, "p50") / table.more(quorum.SLOW, quorum.ONE, "p50")
    yield Reached(f"{quorum.SLOW}: p50 of an append, against one", "within 1.5 x", ratio, "x", ratio <= 1.5)
    raw_one_s, raw_three_s = (table.best(quorum.RAW, name) for name in (quorum.ONE, quorum.THREE))
    yield Reached(f"{quorum.RAW}: p50, against one", "reported", raw_three_s / raw_one_s, "x", None)
    own_s = three_s - raw_three_s
    yield Reached(f"{quorum.SINGLE}, p50, besides the disk", "reported", own_s, "s", None)


def _server(table: Table) -> Iterator[Reached]:
    names = (Remote.name, RemoteTasks.name)
    for workload in (serving.ALONE, *map(serving.AMONG.format, serving.CALLERS)):
        for row in table.rows:
            if row.workload == workload and _is_peer(row):
                ratio = table.best(workload, *names) / row.best
                ratio = ratio if row.larger_is_better else 1 / ratio
                goal = None if workload == serving.ALONE or row.contender.startswith("PostgreSQL") else 3
                words = "reported" if goal is None else f"{goal} x"
                yield Reached(
                    f"{workload}, against {row.contender}", words, ratio, "x", None if goal is None else ratio >= goal
                )
    ratio = table.best(serving.CPU, Http.name) / table.best(serving.CPU, Unary.name)
    yield Reached(f"{serving.CPU}: HTTP against gRPC unary", "at most 0.6 x", ratio, "x", ratio <= 0.6)


def _queue(table: Table) -> Iterator[Reached]:
    ours = table.best(queues.WORKLOAD, queues.OncelogQueue.name)
    for row in table.rows:
        if row.workload == queues.WORKLOAD and _is_peer(row) and row.rounds:
            ratio, goal = ours / row.best, 3 if row.contender.startswith("PostgreSQL") else 1
            work = f"send, deliver and acknowledge, durable, against {row.contender}"
            yield Reached(work, "ahead (1 x)" if goal == 1 else f"{goal} x", ratio, "x", ratio > goal)
    waited_s = table.best(queues.LATENCY, queues.OncelogQueue.name)
    yield Reached("from send to an idle consumer, median", "reported", waited_s, "s", None)


def _inbox(table: Table) -> Iterator[Reached]:
    for driver, more in inbox.added(table.rows).items():
        work = f"round trips that an effect with a result adds to a transaction, {driver}"
        yield Reached(work, "at most 1", more, "", more <= 1)
    for workload in (inbox.FIRST, inbox.AGAIN):
        if table.has(workload, inbox.POWERTOOLS):
            ratio = table.best(workload, inbox.OURS) / table.best(workload, inbox.POWERTOOLS)
            yield Reached(f"{workload}, against AWS Powertools", "ahead (1 x)", ratio, "x", ratio > 1)


def _known(table: Table) -> Iterator[Reached]:
    workload = next((row.workload for row in table.rows if row.workload.startswith("Spark sink among ")), "")
    ratio = table.best(workload, known.KNOWN) / table.best(workload, known.NEW)
    yield Reached(f"{workload}: {known.KNOWN}, against {known.NEW}", "no slower (1 x)", ratio, "x", ratio >= 1)
    ratio = table.best(workload, known.TEN) / table.best(workload, known.TEN_EMPTY)
    yield Reached(f"{workload}: {known.TEN}, against {known.TEN_EMPTY}", "as quick (1.1 x)", ratio, "x", ratio <= 1.1)


def _spark(table: Table) -> Iterator[Reached]:
    ratio = table.best(spark.SOURCE, spark.OURS) / table.best(spark.SOURCE, spark.REPEATED)
    yield Reached("Spark source, against a source that repeats one Arrow batch", "0.8 x", ratio, "x", ratio >= 0.8)
    if table.has(spark.SOURCE, spark.COLUMNS):
        ratio = table.best(spark.SOURCE, spark.OURS) / table.best(spark.SOURCE, spark.COLUMNS)
        yield Reached(f"Spark source, against {spark.COLUMNS}", "1 x", ratio, "x", ratio >= 1)
    ours = table.best(spark.SINK, spark.OURS)
    for peer, goal in ((spark.PARQUET, 1), (spark.DROPPED, 3)):
        ratio = ours / table.best(spark.SINK, peer)
        yield Reached(f"Spark sink, ids deduplicated, against {peer}", f"{goal} x", ratio, "x", ratio >= goal)
    share = table.best(spark.DRIVER, spark.OURS)
    yield Reached("Spark sink, the driver's own share of a job", "under 20 %", share, "%", share < 20)
    added_s = table.best(spark.MICRO, spark.OURS) - table.best(spark.MICRO, spark.NOOP)
    yield Reached("Spark sink, a micro-batch, beside a sink that does nothing", "reported", added_s, "s more", None)


def _files(table: Table) -> Iterator[Reached]:
    plain = table.best(files.LINES, files.PLAIN)
    ratio = 100 * (plain / table.best(files.LINES, files.COUNTED) - 1)
    yield Reached(
        "Spark's own reader: counts, file names, corrupt lines", "at most 5 % slower", ratio, "% slower", ratio <= 5
    )
    work = "reader of pipelines, JSON lines, time against Spark's reader"
    yield Reached(
        f"{work}, which loses what does not fit", "reported", plain / table.best(files.LINES, files.OURS), "x", None
    )
    ratio = plain / table.best(files.LINES, files.UNKNOWN)
    yield Reached(f"{work}, a field in every line that the schema has not", "reported", ratio, "x", None)
    ratio = table.best(files.LINES, files.NAMED) / table.best(files.LINES, files.OURS)
    yield Reached(
        "reader of pipelines, time against Spark's functions that find as much", "1 x", ratio, "x", ratio <= 1
    )
    best = table.best(files.SMALL, files.BATCH)
    for name in (files.READ, files.STREAM, files.PIPELINE):
        ratio = table.best(files.SMALL, name) / best
        work = f"5,000 files of one row, {name}, against Spark's best batch read"
        asked = name != files.PIPELINE
        yield Reached(work, "within 1.5 x" if asked else "reported", ratio, "x", ratio <= 1.5 if asked else None)


def _jobs(table: Table) -> Iterator[Reached]:
    grouped = table.best(jobs.WORKLOAD, jobs.GROUPED)
    for job in (jobs.AUDIT, jobs.REBUILD, jobs.FIND, jobs.PURGE):
        ratio = table.best(jobs.WORKLOAD, job) / grouped
        work = f"{job.removeprefix('Oncelog, ')} of 10 M records, against Spark that groups them by id"
        yield Reached(work, "within 1.5 x", ratio, "x", ratio <= 1.5)
    for job, bare in ((jobs.INGEST, jobs.BARE_SINK), (jobs.EXPORT, jobs.BARE_SOURCE), (jobs.SMALL_AUDIT, None)):
        added_s = table.best(jobs.STARTED, job) - (table.best(jobs.STARTED, bare) if bare is not None else 0)
        work = f"{job.removeprefix('Oncelog, ')} of next to nothing, beyond Spark's start"
        yield Reached(work, "under 2 s", added_s, "s", added_s < 2)


def _faces(table: Table) -> Iterator[Reached]:
    checked = table.best(faces.SEQUENCED, "Oncelog, sequences checked")
    slower = 100 * (1 - checked / table.best(faces.SEQUENCED, "Oncelog, sequences stored, not checked"))
    yield Reached("sequenced producer against no deduplication", "at most 5 % slower", slower, "% slower", slower <= 5)
    ratio = table.best(faces.VERSIONED, "Oncelog, append_batch") / table.best(
        faces.VERSIONED, "Oncelog, streams, exact version"
    )
    yield Reached("stream append with an exact version, batches of ten", "within 1.5 x", ratio, "x", ratio <= 1.5)
    rate = table.best(faces.FANNED, "Oncelog, events delivered")
    yield Reached("a thousand subscriptions, events delivered", "reported", rate, "/s", None)
    for row in table.rows:
        if row.workload == faces.MILLION:
            yield Reached(row.contender.removeprefix("Oncelog, "), "reported", row.best, row.unit, None)


def _remote(table: Table) -> Iterator[Reached]:
    single = {name: table.best(remote.SINGLE, name) for name in (remote.EMBEDDED, remote.REMOTE, remote.ECHO)}
    most = single[remote.EMBEDDED] + 1.5 * single[remote.ECHO]
    work = "through a server: one append at a time, against embedded and 1.5 empty calls"
    ratio = single[remote.REMOTE] / most
    yield Reached(work, "within 1 x", ratio, "x", ratio <= 1)
    goals = {remote.THREADS.format(32): 0.7, remote.THREADS.format(256): 1, remote.SUBMIT: 1, remote.ARROW: 0.7}
    for workload, goal in goals.items():
        ratio = table.best(workload, remote.REMOTE) / table.best(workload, remote.EMBEDDED)
        yield Reached(f"{workload}, against embedded", f"{goal} x", ratio, "x", ratio >= goal)
    ratio = table.best(remote.READ, remote.REMOTE) / table.best(remote.READ, remote.FLIGHT)
    yield Reached(f"{remote.READ}, against Arrow Flight on the same log", "0.5 x", ratio, "x", ratio >= 0.5)
    ratio = table.best(remote.READ, remote.REMOTE) / table.best(remote.READ, remote.EMBEDDED)
    yield Reached(f"{remote.READ}, against embedded", "reported", ratio, "x", None)
    ratio = table.more(remote.SUBMIT, remote.REMOTE, "server_cpu_us") / table.more(
        remote.SUBMIT, remote.EMBEDDED, "client_cpu_us"
    )
    yield Reached(
        "through a server: submit, the server's processor time against embedded", "0.3 x", ratio, "x", ratio <= 0.3
    )


def _tasks(table: Table) -> Iterator[Reached]:
    ratio = table.best(tasks.WORKLOAD, tasks.TASKS) / table.best(tasks.WORKLOAD, tasks.THREADS)
    yield Reached("256 tasks that append, against 256 threads", "2 x", ratio, "x", ratio >= 2)
    ratio = table.more(tasks.WORKLOAD, tasks.TASKS, "cpu_us") / table.more(tasks.WORKLOAD, tasks.WRAPPED, "cpu_us")
    yield Reached("256 tasks that append, processor time against wrap_future", "0.8 x", ratio, "x", ratio <= 0.8)
    for way in (tasks.TASKS, tasks.FULL_WRITER):
        longest_s = table.worst(tasks.LAG, way)
        work = f"the event loop is never blocked for longer: {way.removeprefix('Oncelog, ')}"
        yield Reached(work, "20 ms", longest_s, "s", longest_s <= 0.02)
