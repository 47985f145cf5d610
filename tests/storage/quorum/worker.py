"""A client of a quorum that is killed: run as ``worker.py <url> <name> <first>``, it says what was acknowledged."""

from __future__ import annotations

import os
import sys

import oncelog
from oncelog.errors import Closed, LogBusy, Unavailable, WriterFenced
from oncelog.log.writer import Writer

LOG = "orders"
AGAIN = 3
"""So many records behind the newest is the one that is sent again."""


def say(*words: object) -> None:
    """Print a line, at once and whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write(writer: Writer, name: str, number: int) -> None:
    """Store a record; say where it is."""
    id = f"{name}-{number}"
    ack = writer.append(id.encode(), id=id, timeout_s=60)
    say(number, ack.position, int(ack.duplicate))


def main(url: str, name: str, first: str) -> None:
    """Store records, each until it is acknowledged, and old ones again, for ever. Others want the log too."""
    number = int(first)
    while True:
        try:
            with oncelog.connect(url) as db, db.log(LOG).writer(wait_s=60) as writer:
                while True:
                    write(writer, name, number)
                    number += 1
                    write(writer, name, max(0, number - AGAIN))
        except (Closed, LogBusy, Unavailable, WriterFenced):
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
