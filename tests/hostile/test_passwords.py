"""A password in every place that takes one: no message, no cause of one, no line of output shows it."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import oncelog
from oncelog.cli import run
from oncelog.redaction import redacted

SECRET = "hunter2-marked"
NOBODY = "127.0.0.1:1"
"""Where nobody listens."""

URLS = [
    f"postgresql://app:{SECRET}@{NOBODY}/shop?connect_timeout=1",
    f"postgresql://app:{SECRET}@{NOBODY}:x/shop",
    f"postgresql://{NOBODY}/shop?connect_timeout=1&password={SECRET}",
    f"postgresql//app:{SECRET}@{NOBODY}/shop",
    f"redis://:{SECRET}@{NOBODY}/0",
    f"rediss://app:{SECRET}@{NOBODY}/x",
    f"s3://key:{SECRET}@bucket/prefix",
    f"s3://bucket/prefix?secret_access_key={SECRET}",
    f"s3://key:{SECRET}@[bucket/prefix",
    f"gs://key:{SECRET}@bucket",
    f"what://app:{SECRET}@host/x",
    f"file://app:{SECRET}@host/x",
    f"memory://app:{SECRET}@host/x",
    f"oncelog://app:{SECRET}@{NOBODY}",
    f"quorum:s3://key:{SECRET}@bucket/prefix",
    f"jdbc:postgresql://{NOBODY}/shop?user=app&password={SECRET}",
    f"mysql+pymysql://app:{SECRET}@{NOBODY}/shop",
    f"https://app:{SECRET}@host/x",
]


def told_of(call: Callable[[], object]) -> str:
    """Return all that an error says, with its causes, as a traceback would show it; empty if there is none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it is
        lines = traceback.format_exception(error)
        return "".join(line for line in lines if not line.lstrip().startswith("File ")) + repr(error)
    return ""


@pytest.mark.parametrize("url", URLS)
def test_urls_of_databases(url: str) -> None:
    """A URL that is wrong, or leads nowhere, is named without its password."""
    assert SECRET not in told_of(lambda: oncelog.connect(url).logs())


@pytest.mark.parametrize("url", URLS)
def test_urls_of_a_queues_state(url: str) -> None:
    """A broker's state may be in PostgreSQL."""
    with oncelog.connect("memory://") as db:
        told = told_of(lambda: db.queue("emails", create=True, state=url))
    assert told
    assert SECRET not in told


@pytest.mark.parametrize("url", URLS)
def test_urls_of_an_inbox(url: str) -> None:
    """An inbox may be in PostgreSQL or Redis, whose clients have messages of their own."""

    def use() -> None:
        with oncelog.Inbox(url) as inbox, inbox.once("key"):
            pass

    assert SECRET not in told_of(use)


def test_options_of_a_bucket() -> None:
    """Options that are refused are not spelled out."""
    options = {"secret_access_key": SECRET, "nonsense": SECRET}
    assert SECRET not in told_of(lambda: oncelog.connect("s3://bucket/x", options=options).logs())
    assert SECRET not in told_of(lambda: oncelog.connect("file:///nowhere", options=options).logs())


@pytest.mark.parametrize("url", [url for url in URLS if "://" in url])
def test_commands(
    url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what a command prints, nor what it logs, has the password of a URL that it was given."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ONCELOG_INBOX", url)
    monkeypatch.setenv("ONCELOG_QUEUE_STATE", url)
    told = told_of(lambda: run(["log", "info", "orders", "--url", url]))
    told += told_of(lambda: run(["log", "list", "--url", url, "--json"]))
    told += told_of(lambda: run(["queue", "stats", "--url", "memory://", "--state", url]))
    told += told_of(lambda: run(["inbox", "stats", "--inbox", url]))
    told += told_of(lambda: run(["doctor", "--url", url]))
    said = capfd.readouterr()
    assert said.err
    assert SECRET not in told + said.out + said.err + caplog.text


SPEC = f"""
name = "orders"

[source]
format = "jdbc"
[source.options]
url = "jdbc:postgresql://{NOBODY}/shop?password={SECRET}"
user = "app"
password = "{SECRET}"
sslpassword = "{SECRET}"
dbtable = 7
nonsense = "password={SECRET}"

[log]
url = "s3://key:{SECRET}@bucket/x"
name = "orders"

[identity]
column = "id"
"""


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_pipelines(tmp_path: Path, capfd: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    """A spec has passwords of sources and sinks; what is wrong with it is told without them."""
    path = tmp_path / "pipeline.toml"
    path.write_text(SPEC)
    told = told_of(lambda: run(["pipeline", "check", str(path), *more]))
    said = capfd.readouterr()
    assert "log.url" in said.out + said.err
    assert SECRET not in told + said.out + said.err


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://app:p@ss/w@host:5432/db", "postgresql://app:***@host:5432/db"),
        ("redis://:x@host", "redis://:***@host"),
        ("quorum:s3://a:b@bucket", "quorum:s3://a:***@bucket"),
        ("jdbc:sqlserver://h;user=a;password=b;x=1", "jdbc:sqlserver://h;user=a;password=***;x=1"),
        ("host=h password=b dbname=c", "host=h password=*** dbname=c"),
        ("{'aws_secret_access_key': 'a b', 'region': 'eu'}", "{'aws_secret_access_key': '***', 'region': 'eu'}"),
        ('{"token": "a\\"b"}', '{"token": "***"}'),
        ("https://blob/x?sv=1&sig=a%2Fb&se=2", "https://blob/x?sv=1&sig=***&se=2"),
        ("https://ghp_secret@host/x", "https://***@host/x"),
        ("authorization: Bearer abc.DEF-123", "authorization: Bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("X-Api-Key: abcdef123", "X-Api-Key: ***"),
        ("fs.azure.account.key.x.net=abc hmac_key=def", "fs.azure.account.key.x.net=*** hmac_key=***"),
        ("the bearer of it, and a basic setting of an api", None),
        ("postgresql://app@host/db", "postgresql://app@host/db"),
        ("id 'a@b' is taken by other content, stored at position 7", None),
        ("position 7: expected 3, found me@example.com", None),
        ("s3://bucket/a:b/c", None),
    ],
)
def test_what_is_taken_out(given: str, shown: str | None) -> None:
    """Passwords go, in URLs, connection strings and options; all else stays as it is."""
    assert redacted(given) == (given if shown is None else shown)


@pytest.mark.parametrize(
    "text", ["postgresql://app:{}@host/shop", "password='{}'", '"secret": "{}"', f"{'x' * 300}_token={{}}"]
)
def test_long_passwords_are_taken_out(text: str) -> None:
    """A token of a cloud that serves as a password has some thousand bytes, and the name of an option may be long."""
    assert redacted(text.format("Ab1/" * 2000)) == text.format("***")


@pytest.mark.parametrize("piece", ["a", "token", "api_key", "a.b-c", "//a:", "token:'", "https://a"])
def test_a_long_text_takes_no_longer_than_its_length_says(piece: str) -> None:
    """A message may hold a long text that somebody made up: the search took the square of its length, for ever."""
    text = "@ = : " + piece * (200_000 // len(piece))
    child = [sys.executable, "-c", "import sys; from oncelog.redaction import redacted; redacted(sys.stdin.read())"]
    subprocess.run(child, input=text.encode(), check=True, timeout=240)
