"""A server that is killed, and started again, while a writer goes on."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import oncelog
from benchmarks.seaweedfs import BUCKET, SeaweedFS
from oncelog import Ack, LogSettings
from tests.log.watched import until

RECORDS = 60
LONG_S = 120.0


def test_a_server_that_is_killed_under_load(tmp_path: Path) -> None:
    """Everything that was sent is there once, where it was told to be, and nothing had to be sent again."""
    server = SeaweedFS(tmp_path / "server")
    try:
        url = f"s3://{BUCKET}/outage"
        settings = LogSettings(commit_interval_s=0.005, block_records=3)
        with oncelog.connect(url, options=server.options) as db, db.log("orders", settings, create=True).writer() as w:
            futures: list[Future[Ack]] = []
            landed = threading.Event()

            def send(count: int) -> None:
                futures.extend(w.submit(b"%d" % n, id=str(n)) for n in range(len(futures), len(futures) + count))
                futures[0].add_done_callback(lambda _: landed.set())

            send(RECORDS)
            assert landed.wait(LONG_S)
            server.end()
            send(RECORDS)
            until(lambda: w.counts().storage_failures > 0)
            server.start()
            send(RECORDS)
            acks = [future.result(LONG_S) for future in futures]
            assert [ack.position for ack in acks] == list(range(3 * RECORDS))
            again = w.append_many([oncelog.Record(b"%d" % number, id=str(number)) for number in range(3 * RECORDS)])
            assert all(ack.duplicate for ack in again)
            assert [ack.position for ack in again] == [ack.position for ack in acks]
        with oncelog.connect(url, options=server.options) as db:
            entries = list(db.log("orders").read())
            assert [entry.value for entry in entries] == [b"%d" % number for number in range(3 * RECORDS)]
            assert db.log("orders").verify().ok
    finally:
        server.end()
