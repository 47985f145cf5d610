"""What the inbox costs: round trips added to a user's transaction, and time beside AWS Powertools on one Redis.

``python -m benchmarks.inbox [--effects N]``. Round trips are counted at the socket, by a proxy. Powertools takes part
if it is installed (``pip install 'aws-lambda-powertools[redis]'``), and is said to be missing if not.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import redis
import sqlalchemy

from benchmarks.postgresql import PostgreSQL
from benchmarks.servers import Server, binary, free_port
from oncelog import Inbox

RESULTS = Path(__file__).parent / "results"
INSERT = "INSERT INTO effects VALUES ('x')"


class Counting:
    """A proxy before PostgreSQL's socket that counts how often the client waited for an answer."""

    def __init__(self, listen: Path, server: Path) -> None:
        self.trips = 0
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        other, asking = {client: server, server: client}, False
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(1 << 20)
                if not data:
                    server.close()
                    return
                if ready is server and asking:
                    self.trips += 1
                asking = ready is client
                other[ready].sendall(data)


def round_trips(folder: Path) -> dict[str, dict[str, float]]:
    """Count, for each driver, the round trips of a transaction of one INSERT: alone, and as an effect."""
    with PostgreSQL(folder) as server:
        proxy_folder = folder / "p"
        proxy_folder.mkdir()
        name = f".s.PGSQL.{server._port}"  # noqa: SLF001
        proxy = Counting(proxy_folder / name, server.folder / name)
        url = f"postgresql://bench@/postgres?host={proxy_folder}&port={server._port}"  # noqa: SLF001
        found = {}
        for driver, connect in _drivers(url).items():
            connection = connect()
            run = _runner(connection)
            run("CREATE TABLE IF NOT EXISTS effects (name TEXT)")
            connection.commit()
            inbox = Inbox(connection)
            works: dict[str, Callable[[int], None]] = {
                "alone": lambda _, run=run, connection=connection: _alone(run, connection),  # type: ignore[misc]
                "as an effect": lambda number, run=run, inbox=inbox: _effect(run, inbox, f"{driver}{number}", None),  # type: ignore[misc]  # noqa: B023
                "as an effect with a result": lambda number, run=run, inbox=inbox: _effect(  # type: ignore[misc]
                    run,
                    inbox,
                    f"{driver}r{number}",  # noqa: B023
                    number,
                ),
                "done already": lambda _, run=run, inbox=inbox: _effect(run, inbox, f"{driver}1", None),  # type: ignore[misc]  # noqa: B023
            }
            found[driver] = {words: _count(proxy, work) for words, work in works.items()}
            connection.close()
        return found


def _drivers(url: str) -> dict[str, Callable[[], Any]]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    return {
        "psycopg": lambda: psycopg.connect(url),
        "psycopg, autocommit": lambda: psycopg.connect(url, autocommit=True),
        "SQLAlchemy": engine.connect,
    }


def _runner(connection: Any) -> Callable[[str], object]:
    if isinstance(connection, psycopg.Connection):
        return connection.execute
    return lambda statement: connection.execute(sqlalchemy.text(statement))


def _alone(run: Callable[[str], object], connection: Any) -> None:
    if isinstance(connection, psycopg.Connection):
        with connection.transaction():
            run(INSERT)
    else:
        run(INSERT)
        connection.commit()


def _effect(run: Callable[[str], object], inbox: Inbox, key: str, result: object) -> None:
    with inbox.once(key) as effect:
        if not effect.done:
            run(INSERT)
            effect.result = result


def _count(proxy: Counting, work: Callable[[int], None]) -> float:
    work(0)
    before = proxy.trips
    for number in range(1, 11):
        work(number)
    return (proxy.trips - before) / 10


# Time, on one Redis.


@contextmanager
def redis_port(folder: Path) -> Iterator[int]:
    """Start a Redis on a port: that is what Powertools connects to."""
    port = free_port()
    command = [binary("redis-server", "apt-get install redis-server"), "--port", str(port), "--save", ""]
    client = redis.Redis(port=port)
    server = Server([*command, "--dir", str(folder), "--daemonize", "no"], folder / "redis.log", client.ping)
    try:
        yield port
    finally:
        client.close()
        server.end()


def time_per_effect(folder: Path, effects: int) -> dict[str, float | str]:
    """Measure microseconds an effect that does nothing takes, in turns, the best of three rounds each."""
    with redis_port(folder) as port:
        contenders: dict[str, Callable[[str], object] | str] = {
            "Oncelog": _ours(port),
            "AWS Powertools": _powertools(port),
        }
        best: dict[str, float | str] = {name: each for name, each in contenders.items() if isinstance(each, str)}
        for number in range(3):
            for name, work in contenders.items():
                if isinstance(work, str):
                    continue
                taken = _timed(work, effects, f"{name}-{number}")
                for words, value in taken.items():
                    label = f"{name}, {words}"
                    best[label] = min(value, float(best.get(label, value)))
        return best


def _timed(work: Callable[[str], object], effects: int, prefix: str) -> dict[str, float]:
    found = {}
    for words in ("first time", "again"):
        start = time.perf_counter()
        for number in range(effects):
            work(f"{prefix}-{number}")
        found[words] = (time.perf_counter() - start) / effects * 1e6
    return found


def _ours(port: int) -> Callable[[str], object]:
    inbox = Inbox(redis.Redis(port=port), lease_s=60)

    @inbox.effect(key="key", payload="payload")
    def work(key: str, payload: dict[str, str]) -> dict[str, str]:
        return {"sent": key, **payload}

    return lambda key: work(key, {"to": "user@example.com"})


def _powertools(port: int) -> Callable[[str], object] | str:
    os.environ.setdefault("POWERTOOLS_SERVICE_NAME", "bench")
    os.environ.setdefault("AWS_LAMBDA_FUNCTION_NAME", "bench")
    package = "aws_lambda_powertools.utilities.idempotency"
    try:
        powertools: Any = importlib.import_module(package)
        persistence: Any = importlib.import_module(f"{package}.persistence.redis")
    except ImportError as error:
        return f"not installed: pip install 'aws-lambda-powertools[redis]' ({error})"
    store = persistence.RedisCachePersistenceLayer(client=redis.Redis(port=port, decode_responses=True))
    # Without validation of the payload, which ours does: with it, Powertools refuses repeats of the same on Redis.
    config = powertools.IdempotencyConfig(event_key_jmespath="key")

    def work(event: dict[str, Any]) -> dict[str, str]:
        return {"sent": event["key"], **event["payload"]}

    once = powertools.idempotent_function(work, data_keyword_argument="event", persistence_store=store, config=config)
    return lambda key: once(event={"key": key, "payload": {"to": "user@example.com"}})


def main() -> None:
    """Measure, print, and store the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inbox", description=__doc__)
    parser.add_argument("--effects", type=int, default=2_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oncelog-bench-"))
    folder.chmod(0o755)
    try:
        trips = round_trips(folder)
        times = time_per_effect(folder, options.effects)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("Round trips of a transaction with one INSERT")
    for driver, counted in trips.items():
        print(f"  {driver:<22}", ", ".join(f"{words} {count:g}" for words, count in counted.items()))
    print("\nMicroseconds an effect, on one Redis")
    for words, value in times.items():
        print(f"  {words:<32}", value if isinstance(value, str) else f"{value:8.0f}")
    RESULTS.mkdir(exist_ok=True)
    data = msgspec.json.encode({"python": sys.version, "round_trips": trips, "microseconds": times})
    (RESULTS / "latest-inbox.json").write_bytes(msgspec.json.format(data) + b"\n")


if __name__ == "__main__":
    main()
