"""Logs behind a real server process, under the log's own contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

import oncelog
from oncelog.client.log import _pieces
from oncelog.connect import Database
from oncelog.log.log import Log
from oncelog.testing.logs.batches import ArrowContract, ManyContract
from oncelog.testing.logs.fixtures import Reopen
from oncelog.testing.logs.life import LifeContract, ReopenContract, SettingsContract
from oncelog.testing.logs.reading import ReadContract, TailContract
from oncelog.testing.logs.writing import AppendContract, ConflictContract, IdempotenceContract, SubmitContract
from oncelog.wire import frames
from tests.servers import Serving

Serve = Callable[..., Serving]


class TestServer(
    AppendContract,
    SubmitContract,
    ConflictContract,
    ManyContract,
    ArrowContract,
    IdempotenceContract,
    ReadContract,
    TailContract,
    SettingsContract,
    LifeContract,
):
    """Logs of a real ``oncelog serve`` on a disk: the whole contract, but for what ends servers, which is below."""

    @pytest.fixture
    def database(self, remote: Database) -> Database:
        """Return an empty database on the server."""
        return remote

    def test_one_writer_at_a_time(self, log: Log) -> None:
        """Over the wire a writer is a session: any number of them are open, and share the ids."""
        with log.writer() as first, log.writer(wait_s=0) as second:
            assert first.append(b"1", id="1").position == 0
            assert second.append(b"1", id="1").duplicate
            assert second.append(b"2").position == 1


class Servers:
    """A server on one folder, and the databases that were opened through it."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.server = serve()
        self.opened = [self._connect()]

    def _connect(self) -> Database:
        return oncelog.connect(f"oncelog://{self.server.grpc}")

    def reopen(self, *, crash: bool = False) -> Database:
        """End the server, by a kill or by closing all, and begin another on the same folder."""
        if crash:
            self.server.kill()
        else:
            self.opened[-1].close()
            assert self.server.stop() == 0
        self.server = self._serve(self.server.url)
        self.opened.append(self._connect())
        return self.opened[-1]


@pytest.mark.soak  # each test starts several servers; tests/client/test_session.py has the quick ones
class TestServerEnds(ReopenContract):
    """What was acknowledged by a server that is killed, or stopped, is there when another begins on the same folder."""

    @pytest.fixture
    def servers(self, serve: Serve) -> Servers:
        """Return a server on an empty folder."""
        return Servers(serve)

    @pytest.fixture
    def database(self, servers: Servers) -> Iterator[Database]:
        """Yield a database on it."""
        yield servers.opened[0]
        for database in servers.opened:
            database.close()

    @pytest.fixture
    def reopen(self, servers: Servers, database: Database) -> Reopen:  # noqa: ARG002
        """Return what ends a life and begins the next."""
        return servers.reopen


def test_no_part_of_the_contract_is_left_out() -> None:
    """A suite that is added to the contract of logs is run against a server, too."""
    from oncelog.testing.log_contract import LogContract

    assert {*TestServer.__bases__, *TestServerEnds.__bases__} == set(LogContract.__bases__)


del AppendContract, ArrowContract, ConflictContract, IdempotenceContract, ManyContract, SubmitContract
del ReadContract, TailContract, LifeContract, SettingsContract, ReopenContract


_ROWS = 200_000
_TEXTS = pa.array([b"", b"x" * 200])
_ODD = pa.array(np.arange(_ROWS) % 2, pa.int8())
_LATE = pa.array(np.arange(_ROWS) >= _ROWS // 2).cast(pa.int8())


def test_a_table_whose_rows_name_one_text_is_staged(remote: Database) -> None:
    """A dictionary has its texts once, and a server refuses what becomes large spelled out: the client cuts it."""
    log = remote.log("orders", create=True)
    table = pa.table({"value": pa.DictionaryArray.from_arrays(_ODD, _TEXTS)})
    assert log.stage([table]).records == _ROWS


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.DictionaryArray.from_arrays(_ODD, _TEXTS), id="a dictionary"),
        pytest.param(pa.DictionaryArray.from_arrays(_LATE, _TEXTS), id="long texts at the end"),
        pytest.param(pa.DictionaryArray.from_arrays(_ODD, _TEXTS.cast(pa.string())), id="a dictionary of strings"),
        pytest.param(
            pa.MapArray.from_arrays(
                np.arange(_ROWS + 1, dtype=np.int32),
                pa.array(["name"]).take(pa.array(np.zeros(_ROWS, np.int8))),
                pa.DictionaryArray.from_arrays(_LATE, pa.array([b"", b"x" * 1_000])),
            ),
            id="a map",
        ),
    ],
)
def test_pieces_of_a_table_are_taken_by_a_server(column: pa.Array) -> None:
    """Each piece passes the check of the server, none is cut more often than it must be, and no row is lost."""
    pieces = list(_pieces(pa.table({"value": column})))
    got = [frames.table(frames.table_bytes(piece)) for piece in pieces]
    assert pa.concat_tables(pieces).num_rows == sum(one.num_rows for one in got) == _ROWS
    assert 1 < len(pieces) <= 16
