"""What the inbox costs: round trips added to a user's transaction, and time beside AWS Powertools on one Redis.

Round trips are counted at the socket, by a proxy. Powertools takes part if it is installed (``pip install
'aws-lambda-powertools[redis]' boto3``), and is said to be missing if not.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis
import sqlalchemy

from benchmarks.measure import Measurement, Plan, timed
from benchmarks.postgresql import PostgreSQL
from benchmarks.servers import Server, binary, free_port
from oncelog import Inbox

FIRST = "inbox: an effect for the first time, on one Redis"
AGAIN = "inbox: an effect that is there already, on one Redis"
TRIPS = "inbox: round trips of a transaction of one INSERT"
OURS = "Oncelog, Inbox on Redis"
POWERTOOLS = "AWS Powertools, idempotency on Redis"
_EFFECTS = 2_000
_ALONE = ", alone"
_RESULT = ", as an effect with a result"
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
    for number in range(-6, 1):  # psycopg prepares a statement when it comes for the sixth time
        work(number)
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


def inbox(folder: Path, plan: Plan) -> list[Measurement]:
    """Measure the time that an effect takes that does nothing, and count round trips."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    return [*_times(folder, plan), *_trips(folder)]


def _times(folder: Path, plan: Plan) -> list[Measurement]:
    with redis_port(folder) as port:
        contenders = {OURS: _ours(port), POWERTOOLS: _powertools(port)}
        rows = {(name, words): _row(words, name) for words in (FIRST, AGAIN) for name in contenders}
        for number in range(plan.rounds + 1):
            for name, work in contenders.items():
                if isinstance(work, str):
                    rows[name, FIRST].missing = rows[name, AGAIN].missing = work
                    continue
                for words in (FIRST, AGAIN):
                    rate = _rate(work, f"{name}-{number}", _EFFECTS // 20 if plan.quick else _EFFECTS)
                    if number:
                        rows[name, words].rounds.append(rate)
        return list(rows.values())


def _row(workload: str, contender: str) -> Measurement:
    note = "payloads compared" if contender == OURS else "payloads not compared: with it, Redis refuses repeats"
    return Measurement(workload=workload, contender=contender, unit="effects/s", rounds=[], note=note)


def _rate(work: Callable[[str], object], prefix: str, effects: int) -> float:
    def all_of_them() -> None:
        for number in range(effects):
            work(f"{prefix}-{number}")

    return effects / timed(all_of_them)


def _trips(folder: Path) -> list[Measurement]:
    return [
        Measurement(
            workload=TRIPS,
            contender=f"Oncelog, {driver}, {words}",
            unit="round trips",
            rounds=[count],
            larger_is_better=False,
        )
        for driver, counted in round_trips(folder).items()
        for words, count in counted.items()
    ]


def added(rows: list[Measurement]) -> dict[str, float]:
    """Return how many round trips an effect with a result adds to a transaction, by driver."""
    counted = {row.contender: row.best for row in rows if row.workload == TRIPS}
    plain = [name.removesuffix(_ALONE) for name in counted if name.endswith(_ALONE)]
    return {name.removeprefix("Oncelog, "): counted[name + _RESULT] - counted[name + _ALONE] for name in plain}


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
        return f"not installed: pip install 'aws-lambda-powertools[redis]' boto3 ({error})"
    store = persistence.RedisCachePersistenceLayer(client=redis.Redis(port=port, decode_responses=True))
    # Without validation of the payload, which ours does: with it, Powertools refuses repeats of the same on Redis.
    config = powertools.IdempotencyConfig(event_key_jmespath="key")

    def work(event: dict[str, Any]) -> dict[str, str]:
        return {"sent": event["key"], **event["payload"]}

    once = powertools.idempotent_function(work, data_keyword_argument="event", persistence_store=store, config=config)
    return lambda key: once(event={"key": key, "payload": {"to": "user@example.com"}})
