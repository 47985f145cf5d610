"""An Arrow Flight server in front of a log: what reading through a server is measured against."""

from __future__ import annotations

import sys
from pathlib import Path

from pyarrow import flight

import oncelog


class LogFlight(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every ticket by the last records of one log, ids and values."""

    def __init__(self, log: oncelog.Log, records: int) -> None:
        """Listen on a free port of loopback."""
        super().__init__("grpc://127.0.0.1:0")
        self._log = log
        self._records = records

    def do_get(self, context: object, ticket: object) -> flight.FlightDataStream:
        """Return a stream of batches, as the log has them."""
        del context, ticket
        start = max(0, self._log.end_position() - self._records)
        batches = self._log.read_arrow(start, columns=["value", "id"])
        first = next(batches)

        def all_batches() -> object:
            yield first
            yield from batches

        return flight.GeneratorStream(first.schema, all_batches())


def main() -> None:
    """Serve the log ``bench`` of a folder until the process is ended; print the port."""
    with oncelog.connect(Path(sys.argv[1])) as db:
        server = LogFlight(db.log("bench"), int(sys.argv[2]))
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        server.serve()


if __name__ == "__main__":
    main()
