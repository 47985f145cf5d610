"""The audit log: what cannot be written down is not done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import oncelog
from oncelog.errors import LogBusy, Unavailable
from oncelog.server.security.audit import AuditLine, AuditTrail
from oncelog.server.security.authorize import OPEN
from oncelog.types import Record
from tests.servers import Serving


def test_an_act_names_who_and_what() -> None:
    """One record an act, whose type is the act: the log can be filtered by it."""
    written: list[tuple[str, Record]] = []

    async def append(log: str, record: Record) -> None:
        written.append((log, record))

    act = AuditLine(act="logs_delete", kind="log", name="orders")
    asyncio.run(AuditTrail(append, "_audit/a").note(OPEN, "127.0.0.1:5", act))
    [(log, record)] = written
    assert (log, record.type) == ("_audit/a", "logs_delete")
    assert b'"who":"anyone","by":"loopback","peer":"127.0.0.1:5"' in record.value


@pytest.mark.parametrize("error", [LogBusy("held"), Unavailable("away", outcome="unknown"), TimeoutError()])
def test_what_cannot_be_written_down_is_refused(error: Exception) -> None:
    """Not written, whatever became of the line: the verb itself was not begun."""

    async def append(log: str, record: Record) -> None:
        raise error

    with pytest.raises(Unavailable, match="was not done") as refused:
        asyncio.run(AuditTrail(append).note(OPEN, "", AuditLine(act="logs_delete", kind="log", name="orders")))
    assert refused.value.outcome == "not written"


def test_an_admin_verb_that_cannot_be_audited_is_not_done(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """Another process holds the audit log: a log is not deleted meanwhile, and is once the audit log is free."""
    url = f"{tmp_path.as_uri()}/db"
    with oncelog.connect(url) as db:
        db.log("orders", create=True)
        holding = db.log("_audit", create=True).writer()
        server = serve(url)
        with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
            refused = client.delete("/v1/logs/orders")
            assert refused.status_code == 503
            assert refused.json()["outcome"] == "not written"
            assert client.get("/v1/logs/orders").status_code == 200
            assert client.post("/v1/logs/orders/records", content=b"v").status_code == 201
            holding.close()
            while (deleted := client.delete("/v1/logs/orders")).status_code == 503:
                assert "_audit" in deleted.text
            assert deleted.status_code == 204


def test_servers_with_names_have_audit_logs_of_their_own(serve: Callable[..., Serving]) -> None:
    """A log has one writer: two servers of one bucket cannot share an audit log."""
    server = serve("memory://", "--name", "east-1")
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        client.post("/v1/logs", json={"name": "orders"})
        assert client.get("/v1/logs").json()["names"] == ["_audit/east-1", "orders"]
        assert client.get("/v1/logs/_audit%2Feast-1/records").json()["entries"][0]["type"] == "logs_create"
        assert client.post("/v1/logs/_audit%2Feast-1/records", content=b"x").status_code == 403


def test_an_act_that_fails_has_a_second_line_with_the_reason() -> None:
    """The error of an act passes on; the reason is in the log, and no text of an error that is a bug."""
    written: list[bytes] = []

    async def append(log: str, record: Record) -> None:
        written.append(record.value)

    async def act(error: Exception) -> None:
        async with AuditTrail(append).noted(OPEN, "", AuditLine(act="seal", kind="log", name="orders")):
            raise error

    for error in (LogBusy("held by another process"), KeyError("a secret")):
        with pytest.raises(type(error)):
            asyncio.run(act(error))
    assert [b'"failed"' in line for line in written] == [False, True, False, True]
    assert b'"failed":"held by another process"' in written[1]
    assert b"secret" not in written[3]


def test_an_act_fails_with_its_own_error_when_the_second_line_cannot_be_written() -> None:
    """The caller learns why the act failed, not why the audit log did not take the line."""
    fails = iter([False, True])

    async def append(log: str, record: Record) -> None:
        if next(fails):
            message = "the disk is full"
            raise Unavailable(message)

    async def act() -> None:
        async with AuditTrail(append).noted(OPEN, "", AuditLine(act="seal", kind="log", name="orders")):
            message = "held"
            raise LogBusy(message)

    with pytest.raises(LogBusy):
        asyncio.run(act())


def test_acts_that_fail_over_http_and_grpc_are_audited_alike(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """Both faces write two lines for an act that fails, also for a job whose answer had begun; one for an act that
    is done.
    """
    server = serve(f"{tmp_path.as_uri()}/db")
    with httpx.Client(base_url=f"http://{server.http}", timeout=60) as client:
        client.post("/v1/logs", json={"name": "orders"})
        assert client.post("/v1/logs/orders/truncate", json={"before": 99}).status_code == 404
        with oncelog.connect(f"oncelog://{server.grpc}") as db, pytest.raises(oncelog.NotFound):
            db.log("orders").truncate(before=99)
        for body in (tmp_path / "db" / "logs" / "orders" / "bodies").iterdir():
            body.write_bytes(b"damage")
        assert "error" in client.post("/v1/logs/orders/verify").text
        lines = [json.loads(one["value"]) for one in client.get("/v1/logs/_audit/records").json()["entries"]]
    found = [(line["act"], line.get("details"), "failed" in line) for line in lines if "reate" not in line["act"]]
    assert found == [
        ("logs_truncate", {"before": 99}, False),
        ("logs_truncate", {"before": 99}, True),
        ("Log.Truncate", {"before": 99}, False),
        ("Log.Truncate", {"before": 99}, True),
        ("logs_verify", None, False),
        ("logs_verify", None, True),
    ]
