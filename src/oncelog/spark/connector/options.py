"""What ``.option(…)`` was given, checked on the driver before anything is read or written. Names are Kafka's where it
has them; their case does not matter.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NoReturn, Self, cast

import msgspec

from oncelog.errors import InvalidArgument
from oncelog.limits import LEASE_S_MAX
from oncelog.log.ingest.ingester import OnConflict, OnReplay
from oncelog.types import moment

Offset = Literal["earliest", "latest"] | int
READ = (
    "url",
    "log",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "columns",
    "pushFilters",
)
STORAGE = "storage."
"""What the options of a bucket's client begin with, as in ``storage.endpoint``."""
WRITE = (
    "url",
    "log",
    "producer",
    "batchId",
    "idColumn",
    "ids",
    "onConflict",
    "onReplay",
    "create",
    "writerWaitSeconds",
)


FOREIGN = {
    "subscribe": "log", "subscribepattern": "log", "assign": "log", "topic": "log", "kafka.bootstrap.servers": "url",
    "startingoffsetsbytimestamp": "startingTimestamp", "endingoffsetsbytimestamp": "endingTimestamp",
    "maxfilespertrigger": "maxOffsetsPerTrigger", "startingversion": "startingOffsets", "txnappid": "producer",
    "txnversion": "batchId",
}  # fmt: skip
"""Options of other formats, by those that say the same here."""

_SPARKS = ("path", "checkpointlocation", "queryname", "outputmode", "mergeschema")
_logger = logging.getLogger("oncelog.spark")


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and how; only ``url`` and ``log`` are required. ``storage`` is for a bucket's client."""

    url: str
    log: str
    starting: Offset | datetime | None = None
    ending: Offset | datetime = "latest"
    records_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    with_headers: bool = True
    partitions_min: int | None = None
    records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] | None = None
    push_filters: bool = False
    storage: dict[str, str] = {}

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the options of a read; ``InvalidArgument`` names the one that is wrong."""
        options = _Given(given, READ)
        if options.text("startingOffsets") is not None and options.text("startingTimestamp") is not None:
            options.refuse("startingTimestamp", "must not be given together with startingOffsets")
        if options.text("endingOffsets") is not None and options.text("endingTimestamp") is not None:
            options.refuse("endingTimestamp", "must not be given together with endingOffsets")
        url, log = options.place()
        return cls(
            url=url,
            log=log,
            starting=options.timestamp("startingTimestamp") or options.offset("startingOffsets"),
            ending=options.timestamp("endingTimestamp") or options.ending("endingOffsets"),
            records_per_trigger=options.count("maxOffsetsPerTrigger", 1),
            bytes_per_trigger=options.size("maxBytesPerTrigger"),
            with_headers=options.flag("includeHeaders", default=True),
            partitions_min=options.count("minPartitions", 1),
            records_per_partition=options.count("maxRecordsPerPartition", 1),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            columns=options.names("columns"),
            push_filters=options.flag("pushFilters", default=False),
            storage=options.storage(),
        )


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows go, what tells them apart, and what happens to conflicts."""

    url: str
    log: str
    producer: str | None = None
    batch: int | None = None
    id_column: str | None = None
    ids: Literal["column", "content"] = "column"
    on_conflict: OnConflict = "quarantine"
    on_replay: OnReplay = "error"
    create: bool = False
    writer_wait_s: float = 60.0
    storage: dict[str, str] = {}

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the options of a write; ``InvalidArgument`` names the one that is wrong."""
        options = _Given(given, WRITE)
        id_column, ids = options.text("idColumn"), options.choice("ids", ("column", "content"))
        if id_column is not None and ids == "content":
            options.refuse("idColumn", "must not be given with ids=content")
        url, log = options.place()
        return cls(
            url=url,
            log=log,
            producer=options.text("producer"),
            batch=options.count("batchId", 0),
            id_column=id_column,
            ids=cast("Literal['column', 'content']", ids),
            on_conflict=cast("OnConflict", options.choice("onConflict", ("quarantine", "error", "original"))),
            on_replay=cast("OnReplay", options.choice("onReplay", ("error", "skip", "ids"))),
            create=options.flag("create", default=False),
            writer_wait_s=options.seconds("writerWaitSeconds", 60.0),
            storage=options.storage(),
        )


class _Given:
    """Options by their names, whatever their case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        self._check_typos(known)

    def _check_typos(self, known: tuple[str, ...]) -> None:
        """Refuse what looks like one of ours, misspelt, and what is another format's. Spark hands over options of its
        own: what is none of those is let through, with a warning.
        """
        ours = {name.lower(): name for name in (*READ, *WRITE)}
        for name in self._values:
            if name in FOREIGN or name.startswith("kafka."):
                self.refuse(name, f"is of another format; a log takes {FOREIGN.get(name, 'url and log')}")
            if name not in ours and name not in _SPARKS and not name.startswith((STORAGE, "spark.")):
                _logger.warning("option %s is not known here, and does nothing", name)
            alike = difflib.get_close_matches(name, [each.lower() for each in known], 1, 0.8)
            if name not in ours and alike:
                self.refuse(name, f"unknown option; did you mean {ours[alike[0]]}?")

    def refuse(self, name: str, rule: str) -> NoReturn:
        message = f"option {name}: {rule}"
        raise InvalidArgument(message)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            example = 'missing, as in .option("url", "file:///var/lib/shop").option("log", "orders")'
            self.refuse(name, f"{example}; of CREATE TABLE Spark hands no options on: CREATE TEMPORARY VIEW does")
        return value

    def place(self) -> tuple[str, str]:
        """Return the database and the log: by ``url`` and ``log``, or by a path that ends with the log's name."""
        path = (self.text("path") or "").rstrip("/")
        if not path or self.text("url") is not None:
            return self.required("url"), self.required("log")
        if self.text("log") is not None:
            return path, self.required("log")
        url, _, log = path.rpartition("/")
        if not url or url.endswith(":/"):
            self.refuse(
                "path", f'is {path!r}, must end with the log\'s name, as in .load("file:///var/lib/shop/orders")'
            )
        return url, log

    def size(self, name: str) -> int | None:
        """Return a number of bytes, which may be written as in 64k, 16m or 1g."""
        value = self.text(name)
        found = re.fullmatch(r"([0-9]+)\s*([kmg]?)b?", (value or "").strip().lower())
        if value is None:
            return None
        if found is None or not int(found[1]):
            self.refuse(name, f"is {value!r}, must be a number of bytes, as in 1000000, 64k, 16m or 1g")
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]

    def count(self, name: str, least: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < least:
            self.refuse(name, f"is {value!r}, must be a whole number from {least} on")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            found = default if value is None else float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found <= LEASE_S_MAX:
            self.refuse(name, f"is {value!r}, must be a number of seconds")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in {"true", "false"}:
            self.refuse(name, f"is {value!r}, must be true or false")
        return value == "true"

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of the words that are allowed; the first is the default."""
        value = (self.text(name) or allowed[0]).lower()
        if value not in allowed:
            self.refuse(name, f"is {value!r}, must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return value

    def offset(self, name: str) -> Offset | None:
        value = self.text(name)
        if value is None:
            return None
        word = value.strip().lower()
        if word in {"earliest", "latest"}:
            return cast("Literal['earliest', 'latest']", word)
        if not word.isdecimal():
            self.refuse(name, f"is {value!r}, must be earliest, latest or a position")
        return int(word)

    def ending(self, name: str) -> Offset:
        found = self.offset(name)
        if found == "earliest":
            self.refuse(name, "is earliest, must be latest or a position (the first that is not read)")
        return "latest" if found is None else found

    def timestamp(self, name: str) -> datetime | None:
        """Return a moment that was given as milliseconds since 1970, as Kafka's are, or in ISO 8601."""
        value = self.text(name)
        if value is None:
            return None
        try:
            if value.strip().isdecimal():
                return moment(int(value) * 1000)
            found = datetime.fromisoformat(value.strip())
        except (ValueError, OverflowError):
            self.refuse(name, f"is {value!r}, must be milliseconds since 1970, or ISO 8601 as in 2026-01-31T12:00:00Z")
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def storage(self) -> dict[str, str]:
        """Return the options that are for the store's own client."""
        return {name.removeprefix(STORAGE): value for name, value in self._values.items() if name.startswith(STORAGE)}

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        return tuple(part.strip() for part in value.split(","))
