"""Damages stored bytes, makes their checksums right again, and reads them: as somebody would who can write the storage.

``python -m tests.hostile.fuzzer KIND SEED COUNT`` tries that many inputs, in a process of its own, so that a crash is
seen. It prints one JSON object: how many were tried, refused and read, and each that went wrong. The number of the
input that is being tried is on stderr, so that a crash can be repeated: ``KIND SEED COUNT --only NUMBER``.

Every input must be refused with ``CorruptionError`` (or ``Unsupported``, for what looks like a newer version), or be
read: never another error, never a crash, never an unbounded wait, never gigabytes.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from google.protobuf.message import DecodeError

import oncelog
from oncelog import LogSettings, OncelogError, Record
from oncelog.errors import CorruptionError, Unsupported
from oncelog.format import base, block, frame, gather, identities, manifest, sealed, snapshot, streams
from oncelog.format.payload import columns
from oncelog.format.runs import pages, parts, times
from oncelog.format.runs.run import Digest
from oncelog.log.stored import secrets
from oncelog.types import Ack, moment
from oncelog.wire import failures, frames
from tests.golden import make as golden

MEMORY_BYTES_MAX = 6 << 30
CASE_S_MAX = 30
EDGES = (
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    127,
    128,
    255,
    256,
    1 << 15,
    (1 << 16) - 1,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
WIDE = (*EDGES, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
LEAVES: tuple[Any, ...] = (
    *(number for edge in WIDE for number in (edge, -edge) if -(1 << 63) <= number < 1 << 64),
    None, True, 1.5, float("nan"), "", "..", "../../x", "/etc/passwd", "a//b", "blocks:x", "\x1b[2J",
    "x" * 300, b"", bytes(16), b"\xff",
    [], {}, [1], {"a": 1}, [[]],
)  # fmt: skip


class Hung(BaseException):
    """An input took longer than any may."""


# Damage.


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Return bytes of which some were replaced: by others, by numbers at the edges, or by a stretch of themselves."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not changed:
            break
        at = chance.randrange(len(changed))
        how = chance.randrange(5)
        if how == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            changed[at] = chance.randrange(256)
        elif how == 2:
            at -= at % 4
            changed[at : at + 4] = struct.pack("<I", chance.choice(EDGES))[: len(changed) - at]
        elif how == 3:
            at -= at % 8
            changed[at : at + 8] = struct.pack("<Q", chance.choice(WIDE))[: len(changed) - at]
        else:
            begin = chance.randrange(len(changed))
            part = changed[begin : begin + chance.randrange(1, 64)]
            changed[at : at + len(part)] = part[: len(changed) - at]
    return bytes(changed)


def resized(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that were cut short, or have more behind them, or neither."""
    how = chance.randrange(12)
    if how == 0:
        return data[: chance.randrange(len(data) + 1)]
    return data + chance.randbytes(chance.randrange(1, 70)) if how == 1 else data


def repacked(packed: bytes, chance: random.Random) -> bytes:
    """Return a msgpack document with one of its leaves replaced; what is no document is flipped."""
    try:
        document = msgspec.msgpack.decode(packed)
    except (msgspec.MsgspecError, ValueError):
        return flipped(packed, chance)
    places = list(_places(document))
    if not places:
        return flipped(packed, chance)
    parent, key = chance.choice(places)
    parent[key] = chance.choice(LEAVES)
    return msgspec.msgpack.encode(document)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = range(len(document)) if isinstance(document, list) else list(document) if isinstance(document, dict) else ()
    for key in keys:
        yield document, key
        yield from _places(document[key])


def mutated(data: bytes, chance: random.Random, *, packed: bool) -> bytes:
    """Return damaged bytes: of a document mostly a leaf of it."""
    if packed and chance.random() < 0.7:
        return repacked(data, chance)
    return resized(flipped(data, chance), chance)


# Making checksums right.


def reframed(data: bytes, chance: random.Random) -> bytes:
    """Return an envelope with a damaged payload and a checksum that holds."""
    kind, version = data[:4], int.from_bytes(data[4:6], "little")
    return frame.wrap(kind, version, mutated(bytes(frame.unwrap(kind, version, data, "")), chance, packed=True))


def reheaded(data: bytes, chance: random.Random) -> bytes:
    """Return a snapshot, or identities, with damaged arrays or a damaged head, and checksums that hold."""
    kind = data[:4]
    packed, head_bytes = frame.unwrap_front(kind, 1, data, "")
    head: Any = msgspec.msgpack.decode(packed)
    if chance.random() < 0.5:
        return frame.wrap(kind, 1, mutated(bytes(packed), chance, packed=True)) + data[head_bytes:]
    if kind == identities.KIND:
        arrays = flipped(data[head_bytes:], chance)
        return frame.wrap(kind, 1, msgspec.msgpack.encode([head[0], xxhash.xxh3_64_intdigest(arrays)])) + arrays
    first = head_bytes + -head_bytes % 64
    details_at = len(data) - head["details_bytes"]
    arrays, details = data[first:details_at], data[details_at:]
    if chance.random() < 0.5:
        arrays = flipped(arrays, chance)
    else:
        details = mutated(details, chance, packed=True)
    head |= {"arrays_checksum": xxhash.xxh3_64_intdigest(arrays), "details_checksum": xxhash.xxh3_64_intdigest(details)}
    head["details_bytes"] = len(details)
    framed = frame.wrap(kind, 1, msgspec.msgpack.encode(head))
    return framed + bytes(-len(framed) % 64) + arrays + details


def rehashed(data: bytes, chance: random.Random) -> bytes:
    """Return a block with a damaged body, or damaged fields of its header, and checksums that hold."""
    head, body = bytearray(data[: block.HEADER_BYTES]), data[block.HEADER_BYTES :]
    if chance.random() < 0.9:
        body = resized(flipped(body, chance), chance)
        body += bytes(-len(body) % block.ALIGNMENT_BYTES)
    else:
        head[8 : block.CHECKED_BYTES] = flipped(bytes(head[8 : block.CHECKED_BYTES]), chance)
    if chance.random() < 0.95:
        struct.pack_into("<QQ", head, 96, len(body), xxhash.xxh3_64_intdigest(body))
    struct.pack_into("<Q", head, block.CHECKED_BYTES, xxhash.xxh3_64_intdigest(head[: block.CHECKED_BYTES]))
    return bytes(head) + body


# What is tried: each takes chance, makes an input, and reads it.


def _payloads() -> list[bytes]:
    rows = [*golden.RECORDS, *(Record(b"v" * (row % 90), id=f"id-{row}", type="t") for row in range(700))]
    full = columns.from_records(rows, [row % 3 > 0 for row in range(len(rows))])
    few = columns.from_records(golden.RECORDS, golden.STARTS)
    one = block.encode_one(b"paid", b"order-1", **golden.STAMP)
    blocks = [block.encode(part, **golden.STAMP) for part in (full, few, full.select(["value", "id"]))]
    return [b"".join(map(bytes, found.chunks)) for found in (*blocks, one)]


BLOCKS = _payloads()


def try_block(chance: random.Random) -> None:
    """Read a block in every way there is."""
    data = pa.py_buffer(rehashed(chance.choice(BLOCKS), chance))
    block.scan(data, bodies=True)
    found = next(gather.gather([data]))
    columns.view(found.payload, 0, 0, 0, 0).nbytes  # noqa: B018
    found.payload.take(list(range(found.payload.num_rows))[::-1])
    columns.entries(found.payload, found.first_position, found.segment, found.first_entry, found.row_timestamps_us())
    block.decode(data, full=True)


def try_envelope(chance: random.Random) -> None:
    """Read a manifest's version, body and page, and a base."""
    reads: dict[str, tuple[bytes, Callable[[pa.Buffer, str], Any]]] = ENVELOPES
    data, decode = reads[chance.choice(sorted(reads))]
    decode(pa.py_buffer(reframed(data, chance)), "object")


def _envelopes() -> dict[str, tuple[bytes, Callable[[pa.Buffer, str], Any]]]:
    segment = manifest.Segment(
        0, 10, 10, 1, 64, 1, 64, 1, 2, 3, 4, manifest.File("sealed/a.parquet", 0, 9, 9), "ids/x", 3
    )
    following = msgspec.structs.replace(segment, number=1, first_position=20)
    page = manifest.Page("pages/x", 1, 0, 10, 1, 9)
    mark = manifest.Mark("p", "o", 1, (manifest.MarkedBatch(1, 2, 3),))
    body = manifest.Manifest(
        name="orders", log_id="6f1d0c52a3e94d0bb0f3a7f2c8d5e611", secret=bytes(32), settings=LogSettings(),
        created_us=1, segments=(segment,), pages=(page,), marks=(mark,), doomed=("blocks:1", "sealed/b.parquet"),
        forgotten=(("p", 3),),
        base="bases/x", open_segment=1, next_segment=2, next_position=20,
    )  # fmt: skip
    row = streams.StreamPage("l", 0, *golden_rows())
    found: dict[str, tuple[bytes, Callable[[pa.Buffer, str], Any]]] = {
        "version": (manifest.encode_version(manifest.Version(1, 1, bytes(8), "bodies/x", 1)), manifest.decode_version),
        "body": (manifest.encode_body(body), manifest.decode_body),
        "page": (manifest.encode_page((segment, following)), manifest.decode_page),
        "base": (base.encode(base.Base(log_id="l", position=1, streams={"a": 1})), base.decode),
        "streams": (streams.encode_page(row), streams.decode_page),
        "secret": (frame.wrap(secrets.KIND, secrets.VERSION, bytes(range(32))), _read_secret),
    }
    for data, decode in found.values():
        decode(pa.py_buffer(data), "undamaged")
    return found


def _read_secret(data: pa.Buffer, what: str) -> None:
    home = mock.Mock(spec=["read", "location"])
    home.read.return_value = data
    secrets._read(home, what)


def golden_rows() -> tuple[Any, Any]:
    """Return the numbers and versions of a page of streams."""
    return np.arange(9, dtype=np.int32), np.arange(9, dtype=np.int32)


ENVELOPES = _envelopes()
HEADED: dict[str, tuple[bytes, Callable[[pa.Buffer, str], Any]]] = {
    "snapshot": (b"".join(snapshot.encode(golden.make_snapshot(40))), snapshot.decode),
    "identities": (b"".join(map(bytes, identities.encode(golden.make_identities(40)))), identities.decode),
}


def try_headed(chance: random.Random) -> None:
    """Read a snapshot, or the identities of a file."""
    data, decode = HEADED[chance.choice(sorted(HEADED))]
    decode(pa.py_buffer(reheaded(data, chance)), "object")


SEALED = golden.make_sealed()


def try_sealed(chance: random.Random) -> None:
    """Read a sealed file whose checksum, as a whole, was made right; those of its pages are Parquet's own."""
    file = sealed.SealedFile(pa.py_buffer(resized(flipped(SEALED, chance), chance)), "sealed")
    for piece in file.pieces(0, min(file.rows, 1 << 20)):
        times = piece.timestamps_us if piece.timestamps_us is not None else 0
        columns.entries(piece.payload, 0, 0, 0, times)


# Runs of ids, with their timestamps.


def _runs() -> list[tuple[bytes, Any, Callable[[bytes, Any], None]]]:
    commits = times.Commits(np.arange(0, 900, 3, dtype=np.int64), np.arange(300, dtype=np.int64) * 1000 + 10**15)
    told, pieces = times.encode("log", commits)
    entries = pages.PAGE_ENTRIES + 9
    made = pages.empty_pages(pages.page_count(entries))
    part, chunks = parts.encode("log", 0, 0, entries, Digest(1, 2), np.arange(64, dtype=np.uint64), [made])
    return [(b"".join(pieces), told, _read_times), (b"".join(map(bytes, chunks)), part, _read_part)]


def _read_times(data: bytes, told: Any) -> None:
    head, _ = times.decode_front(pa.py_buffer(data), told, "times")
    for number in range(head.pages):
        start = told.front_bytes + number * pages.PAGE_BYTES
        times.decode_page(memoryview(data)[start : start + pages.PAGE_BYTES], number, head, "times")


def _read_part(data: bytes, told: Any) -> None:
    front = parts.decode_front(pa.py_buffer(data), told, "run")
    front.index_is_whole()
    for chunk in range(len(front.head.filter_checksums) // 8):
        front.chunk_is_whole(chunk)
    for number in range(front.head.pages):
        start = told.front_bytes + number * pages.PAGE_BYTES
        page = memoryview(data)[start : start + pages.PAGE_BYTES]
        pages.is_whole(page, number, front.head.entries_in(number), front.head.seed)


def try_run(chance: random.Random) -> None:
    """Read a part of a run, or timestamps, with a damaged head that the manifest names, or damaged pages."""
    data, told, read = chance.choice(RUNS)
    packed, framed_bytes = frame.unwrap_front(data[:4], 1, data, "")
    if chance.random() < 0.6:
        framed = frame.wrap(data[:4], 1, mutated(bytes(packed), chance, packed=True))
        told = msgspec.structs.replace(told, checksum=xxhash.xxh3_64_intdigest(framed))
        data = framed + data[framed_bytes if chance.random() < 0.5 else len(framed) :]
    else:
        data = resized(data[:framed_bytes] + flipped(data[framed_bytes:], chance), chance)
    if chance.random() < 0.3:
        name = chance.choice(told.__struct_fields__)
        told = msgspec.structs.replace(told, **{name: chance.choice(WIDE)})
    read(data, told)


RUNS = _runs()


# What comes over the wire.


def _wire() -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    acks: list[Ack | OncelogError] = [Ack(7, 0, 7, moment(10**15), False, False), oncelog.InvalidArgument("no")]
    rows = pa.table({"value": pa.array([b"v" * 90] * 40, pa.binary()), "id": [f"id-{row}" for row in range(40)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(rows)
    batch = rows.to_batches()[0]
    error = failures.trailer(oncelog.NotFound("gone", first=3))
    return {
        "raw": (frames.pack(frames.Raw(frames.Kind.TABLE, b"body", 9, 8, 1.5)), frames.unpack),
        "table": (frames.table_bytes(rows).to_pybytes(), frames.table),
        "compressed": (sink.getvalue().to_pybytes(), frames.table),
        "placed": (frames.placed_bytes(acks[:1]).to_pybytes(), frames.placed),
        "refused": (frames.refused_bytes(acks).to_pybytes(), frames.placed),
        "columns": (frames.refused_bytes(acks).to_pybytes(), frames.column_acks),
        "read": (frames.read_bytes(batch, 40, 50), frames.read_message),
        "error": (error, _read_error),
    }


def _read_error(data: bytes) -> None:
    try:
        failures.from_trailer(data)
    except DecodeError as error:  # the callers know it
        raise CorruptionError(str(error)) from error


def try_wire(chance: random.Random) -> None:
    """Read what a client sends, or what a server answers: any ``OncelogError`` will do."""
    data, read = WIRE[chance.choice(sorted(WIRE))]
    try:
        read(resized(flipped(data, chance), chance))
    except OncelogError as error:
        raise CorruptionError(str(error)) from error


WIRE = _wire()


# A whole log.


def _made_log(folder: Path) -> None:
    settings = LogSettings(seal="off")
    with oncelog.connect(f"file://{folder}") as db:
        log = db.log("orders", settings, create=True)
        with log.writer() as writer:
            writer.append_many([Record(bytes(900), id=f"a-{row}", type="t", stream="s") for row in range(150)])
        log.seal()
        with log.writer(producer="importer") as writer:
            for row in range(5):
                writer.append(b"p", sequence=row)
            writer.snapshot()
        with log.writer() as writer:
            writer.append_many([Record(b"v", id=f"b-{row}", headers={"h": b"1"}) for row in range(20)])


class Whole:
    """A log on a disk, of which one object is damaged at a time; what points to the object is made right, too."""

    def __init__(self, folder: Path) -> None:
        self.made = folder / "made"
        self.used = folder / "used"
        _made_log(self.made)

    def __call__(self, chance: random.Random) -> None:
        """Damage an object and use the log in every way."""
        shutil.rmtree(self.used, ignore_errors=True)
        shutil.copytree(self.made, self.used)
        home = self.used / "logs" / "orders"
        self._damage(home, chance)
        self._use()

    def _damage(self, home: Path, chance: random.Random) -> None:
        version_path = max((home / "manifest").iterdir())
        version = manifest.decode_version(pa.py_buffer(version_path.read_bytes()), "")
        body = manifest.decode_body(pa.py_buffer((home / version.body_key).read_bytes()), "")
        what = chance.choice(("version", "body", "blocks", "sealed", "snapshot", "published"))
        if what == "version":
            version_path.write_bytes(reframed(version_path.read_bytes(), chance))
            return
        data = (home / version.body_key).read_bytes()
        if what == "body":
            data = reframed(data, chance)
        elif what == "blocks":
            body = self._damage_blocks(home, body, chance)
            data = manifest.encode_body(body)
        elif what == "sealed":
            data = manifest.encode_body(self._damage_sealed(home, body, chance))
        elif what == "snapshot":
            path = max((home / "dedup_snapshot").rglob("snapshot*"))
            path.write_bytes(reheaded(path.read_bytes(), chance))
        else:
            path = home / "published"
            path.write_bytes(flipped(path.read_bytes(), chance))
        (home / version.body_key).write_bytes(data)
        fixed = msgspec.structs.replace(version, body_checksum=xxhash.xxh3_64_intdigest(data))
        version_path.write_bytes(manifest.encode_version(fixed))

    def _damage_blocks(self, home: Path, body: manifest.Manifest, chance: random.Random) -> manifest.Manifest:
        """Damage the last block of a segment, so that no other names its checksum."""
        number = chance.choice([number for number, found in enumerate(body.segments) if found.file is None])
        segment = body.segments[number]
        path = home / "segments" / f"{segment.number:020d}.blocks"
        if not path.exists():
            (path,) = (home / "segments").glob(f"{segment.number:020d}*")
        data = path.read_bytes()
        last = block.scan(data, 0, segment.end).offsets[-1]
        damaged = rehashed(data[last : segment.end], chance)
        path.write_bytes(data[:last] + damaged)
        checksum = int.from_bytes(damaged[block.CHECKED_BYTES : block.HEADER_BYTES], "little")
        changed = msgspec.structs.replace(segment, end=last + len(damaged), checksum=checksum)
        segments = (*body.segments[:number], changed, *body.segments[number + 1 :])
        return msgspec.structs.replace(body, segments=segments)

    def _damage_sealed(self, home: Path, body: manifest.Manifest, chance: random.Random) -> manifest.Manifest:
        (key,) = {found.file.key for found in body.segments if found.file is not None}
        data = resized(flipped((home / key).read_bytes(), chance), chance)
        (home / key).write_bytes(data)
        checksum = xxhash.xxh3_64_intdigest(data)
        segments = tuple(
            found
            if found.file is None
            else msgspec.structs.replace(
                found, file=msgspec.structs.replace(found.file, size_bytes=len(data), checksum=checksum)
            )
            for found in body.segments
        )
        return msgspec.structs.replace(body, segments=segments)

    def _use(self) -> None:
        refused: OncelogError | None = None
        with oncelog.connect(f"file://{self.used}") as db:
            for use in (_read, _read_arrow, _verify, _copy, _write):
                try:
                    use(db)
                except (CorruptionError, Unsupported) as error:
                    refused = error
                except OncelogError as error:
                    is_other = "another log is there" in str(error)
                    if use is not _write and not is_other:  # other settings, say, let a writer refuse what is right
                        raise
                    refused = error
        if refused is not None:
            raise CorruptionError(str(refused))


def _read(db: oncelog.Database) -> None:
    for _ in db.log("orders").read():
        pass


def _read_arrow(db: oncelog.Database) -> None:
    for batch in db.log("orders").read_arrow():
        batch.validate(full=True)


def _verify(db: oncelog.Database) -> None:
    log = db.log("orders")
    log.info()
    log.verify()


def _write(db: oncelog.Database) -> None:
    log = db.log("orders")
    with log.writer(wait_s=1) as writer:
        writer.append_many([Record(bytes(900), id="a-7", type="t", stream="s"), Record(b"new", id="new")], timeout_s=5)
    log.seal()
    log.truncate(before=3)


def _copy(db: oncelog.Database) -> None:
    with oncelog.connect("memory://fuzz") as other:
        db.copy("orders", other)


# Running.

KINDS: dict[str, Callable[[Path], Callable[[random.Random], None]]] = {
    "block": lambda _: try_block,
    "envelope": lambda _: try_envelope,
    "headed": lambda _: try_headed,
    "sealed": lambda _: try_sealed,
    "run": lambda _: try_run,
    "wire": lambda _: try_wire,
    "log": Whole,
}


class Report(msgspec.Struct):
    """What became of the inputs."""

    kind: str
    tried: int = 0
    refused: int = 0
    read: int = 0
    wrong: list[str] = []


def run(kind: str, seed: int, numbers: range) -> Report:
    """Try inputs, each made from the seed and its number alone. What is not damaged at all must be read."""
    report = Report(kind)
    with tempfile.TemporaryDirectory() as folder:
        attempt = KINDS[kind](Path(folder))
        for number in numbers:
            sys.stderr.write(f"{kind} {seed} {number}\n")
            _try(attempt, random.Random(f"{kind} {seed} {number}"), number, report)
    return report


def _try(attempt: Callable[[random.Random], None], chance: random.Random, number: int, report: Report) -> None:
    report.tried += 1
    signal.alarm(CASE_S_MAX)
    try:
        attempt(chance)
        report.read += 1
    except (CorruptionError, Unsupported):
        report.refused += 1
    except (Exception, Hung):  # noqa: BLE001  each is a finding
        report.wrong.append(f"{number}: {traceback.format_exc()}")
    finally:
        signal.alarm(0)


def _hang(*_: object) -> None:
    message = f"took more than {CASE_S_MAX} s"
    raise Hung(message)


def main(kind: str, seed: str, count: str, *rest: str) -> None:
    """Try inputs within bounds, and print what became of them."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.signal(signal.SIGALRM, _hang)
    only = int(rest[1]) if rest[:1] == ("--only",) else None
    numbers = range(int(count)) if only is None else range(only, only + 1)
    sys.stdout.write(msgspec.json.encode(run(kind, int(seed), numbers)).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
