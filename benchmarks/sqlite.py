"""SQLite: WAL, ``synchronous=FULL``, a transaction a batch."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence

from benchmarks.contender import Contender
from benchmarks.records import Batch

_INSERT = "INSERT INTO log (id, value) VALUES (?, ?) ON CONFLICT DO NOTHING"


class SQLite(Contender):
    """In this process, as Oncelog is. Every id is kept for good."""

    name = "SQLite"
    note = "WAL, synchronous=FULL, executemany with ON CONFLICT DO NOTHING, 256 MB cache"

    def open(self) -> None:
        """Make the table."""
        self._db = sqlite3.connect(self.folder / "log.sqlite", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-262144", "wal_autocheckpoint=10000"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS log "
            "(position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, value BLOB NOT NULL)"
        )

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def prepare(self, batches: Sequence[Batch]) -> list[list[tuple[str, bytes]]]:
        """Return rows."""
        return [batch.rows() for batch in batches]

    def append(self, prepared: list[list[tuple[str, bytes]]]) -> None:
        """Insert each batch in a transaction of its own."""
        for rows in prepared:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_INSERT, rows)
            self._db.execute("COMMIT")

    def append_one(self, id: str, value: bytes) -> None:
        """Insert one row."""
        self._db.execute(_INSERT, (id, value))

    def count(self) -> int:
        """Count the rows."""
        return int(self._db.execute("SELECT count(*) FROM log").fetchone()[0])

    def read(self) -> int:
        """Fetch all rows in order."""
        cursor = self._db.execute("SELECT id, value FROM log ORDER BY position")
        cursor.arraysize = 10_000
        return sum(map(len, iter(cursor.fetchmany, [])))

    def crash(self) -> None:
        """Go on with a copy of the files as they are while they are open: what a crash would leave."""
        shutil.copytree(self.folder, crashed := self.folder.with_name("sqlite-crashed"))
        self._db.close()
        self.folder = crashed

    def reopen(self) -> None:
        """Open the copy, and ask it something."""
        self.open()
        self._db.execute("SELECT max(position) FROM log").fetchone()
