"""A password in every place that takes one: no message, no cause of one, no line of output shows it."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import oncelog
from oncelog.cli import run
from oncelog.client.channel import Channel
from oncelog.redaction import redacted, without_password
from oncelog.spark.reading.reader import rejected_batch
from oncelog.spark.reading.rows import Rejected

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


@pytest.mark.parametrize(
    "options",
    [
        {"az1.secret_access_key": SECRET, "az1.nonsense": SECRET},
        {"az1.secret_key": SECRET},
        {"az9.secret_key": SECRET},
        {"az1": SECRET},
        {"az1.secret_access_key": [SECRET]},
    ],
)
def test_options_of_the_nodes_of_a_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: dict[str, str]
) -> None:
    """Nodes have options and variables of their own, and a URL that was stored by somebody."""
    store = f"file://{tmp_path}/store"
    nodes = [*(f"--node=az{number}=file://{tmp_path}/{number}" for number in (1, 2)), "--node=az3=s3://bucket/x"]
    for name, value in options.items():
        monkeypatch.setenv(f"ONCELOG_NODE_{name.upper().replace('.', '_')}", str(value))
    told = told_of(lambda: run(["quorum", "create", store, *nodes]))
    told += told_of(lambda: run(["quorum", "create", store, *nodes[:2], f"--node=az3=s3://key:{SECRET}@bucket/x"]))
    told += told_of(lambda: run(["quorum", "create", store, f"--node=az1={SECRET}"]))
    told += told_of(lambda: run(["quorum", "status", store]))
    told += told_of(lambda: oncelog.connect(f"quorum:{store}", options=options).logs())
    told += told_of(lambda: oncelog.connect("s3://bucket/x", options=options).logs())
    said = capfd.readouterr()
    assert told + said.err
    assert SECRET not in (told + said.out + said.err).replace(f"az1={SECRET}", "")


def test_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A profile is a file that is copied and shared: it has no secret, and one that was put there is not shown."""
    monkeypatch.setenv("ONCELOG_PROFILES", str(tmp_path / "profiles.json"))
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    token.chmod(0o600)
    told = ""
    for number, url in enumerate(URLS):
        told += told_of(lambda url=url, number=number: run(["profile", "add", f"p{number}", url]))  # type: ignore[misc]
    told += told_of(lambda: run(["profile", "add", "server", f"oncelog://{NOBODY}", "--token-file", str(token)]))
    assert SECRET not in (tmp_path / "profiles.json").read_text()
    (tmp_path / "profiles.json").write_text(f'{{"old": {{"url": "s3://key:{SECRET}@bucket"}}}}')
    for more in ((), ("--json",)):
        told += told_of(lambda more=more: run(["profile", "list", *more]))  # type: ignore[misc]
        told += told_of(lambda more=more: run(["log", "list", "--profile", "old", *more]))  # type: ignore[misc]
    said = capfd.readouterr()
    assert "old" in said.out
    assert SECRET not in told + said.out + said.err


@pytest.mark.parametrize("token", [SECRET, f"{SECRET}\n{SECRET}", f"{SECRET} x", f"{SECRET}\x1b"])
def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """A token may be given by an option, a file or the environment, and may be wrong."""
    monkeypatch.setattr(Channel, "pause_s", lambda *_: math.inf)  # a client tries for 30 s: one attempt will do here
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    url = f"oncelog://{NOBODY}"
    given: list[dict[str, str]] = [{"token": token}, {"token_file": str(tmp_path / "token")}]
    told = [told_of(lambda options=options: oncelog.connect(url, options=options).logs()) for options in given]  # type: ignore[misc]
    monkeypatch.setenv("ONCELOG_TOKEN", token)
    told.append(told_of(lambda: oncelog.connect(url).logs()))
    assert all(told)
    assert SECRET not in "".join(told)
    assert token == SECRET or all("characters that no token has" in one for one in told)


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
        ("the secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw is old", "the secret whsec_*** is old"),
        (f"token_file once_{'aB3-_' * 8}abc cannot be read", "token_file once_*** cannot be read"),
        ("log 'once_processed' and 'once_upon_a_time'", None),
        ("file:///data/once_per_customer_orders_2024", None),
        ("file:///data/whsec_of_the_payment_provider_2024", None),
        (f"s3://bucket/once_{'per_customer_' * 4}orders", None),
        (f"whsec_{'aB3+/' * 6}aB==,", "whsec_***,"),
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
    ("given", "shown"),
    [
        (f"ftp://app:{SECRET}@host/day/token=1/a.json", "ftp://app:***@host/day/token=1/a.json"),
        (f"s3a://key:{SECRET}@bucket/a@b.json", "s3a://key:***@bucket/a@b.json"),
        ("abfss://container@account.dfs.core.windows.net/password=x/a", None),
        ("file:///data/a:b@c/token=1.json", None),
        ("/data//a:b@c", None),
    ],
)
def test_files_that_rows_come_from(given: str, shown: str | None) -> None:
    """The file of a row is stored with it, as a header: without a password, and with the whole path."""
    batch = rejected_batch(given, [Rejected(1, b"{", "no JSON")])
    headers = dict(batch.column("headers")[0].as_py())
    assert headers["file"].decode() == without_password(given) == (given if shown is None else shown)


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
