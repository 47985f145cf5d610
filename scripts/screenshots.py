"""``make screenshots``: every page of the console, light and dark, wide and narrow, of a shop on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import httpx
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright

import oncelog
from oncelog import Inbox, Message, QueueSettings, Record, RetryPolicy
from oncelog.clock import SYSTEM
from oncelog.log.ingest.batch_marks import BatchName
from oncelog.server.security import tokens
from oncelog.spark.report import page as report_page
from oncelog.spark.report import plots
from oncelog.spark.report.page import Figure, Section
from oncelog.spark.report.plots import Series

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAGES = {
    "overview": "",
    "logs": "logs",
    "log": "log?name=orders",
    "records": "log?name=orders&start=40",
    "record": "record?log=orders&position=41",
    "find": "find",
    "producers": "producers?log=clicks",
    "pipelines": "pipelines",
    "report": "report?name=orders",
    "streams": "streams?log=accounts",
    "stream": "stream?log=accounts&stream=account-3",
    "queues": "queues",
    "queue": "queue?name=emails",
    "inboxes": "inboxes",
    "verify": "verify?name=orders",
    "server": "server",
    "asked": "log?name=orders",
    "done": "log?name=clicks",
    "error": "log?name=nothing",
}
ACTED = ("asked", "done")
"""Pages that are reached by a button."""
WIDTHS = {"wide": 1400, "narrow": 400}
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
IN_DOCS = ("log-dark", "find-light", "queue-light", "report-light")
"""The pictures that the documentation shows, cut to one size."""


def main(folder: Path) -> None:
    """Take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        fill(Path(made))
        tokens_path = Path(made) / "tokens.json"
        token = tokens.create(tokens_path, "operator", ("look,read,append,consume,admin:*",), SYSTEM)
        tokens.create(tokens_path, "importer", ("append:orders",), SYSTEM)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with serving(Path(made), "--tokens", str(tokens_path)) as base, load(base, token):
            for scheme in SCHEMES:
                for width_name, width in WIDTHS.items():
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                    page.goto(f"{base}/console/")
                    page.screenshot(path=folder / f"login-{scheme}-{width_name}.png", full_page=True)
                    login(page, base, token)
                    for name, path in PAGES.items():
                        show(page, base, name, path)
                        page.screenshot(path=folder / f"{name}-{scheme}-{width_name}.png", full_page=True)
                    page.close()
                take_for_docs(browser, base, token, scheme, folder / "docs")
        browser.close()


def login(page: Page, base: str, token: str) -> None:
    """Begin a session."""
    page.goto(f"{base}/console/")
    page.fill("input[name=token]", token)
    page.click("button")


def take_for_docs(browser: Browser, base: str, token: str, scheme: Scheme, folder: Path) -> None:
    """Take the pictures of the documentation: small, and without what is below the first screen."""
    for name in [picture.removesuffix(f"-{scheme}") for picture in IN_DOCS if picture.endswith(scheme)]:
        page = browser.new_page(viewport={"width": 1120, "height": 470}, color_scheme=scheme)
        login(page, base, token)
        show(page, base, name, PAGES[name])
        page.screenshot(path=folder / f"console-{name}.png")
        page.close()


def show(page: Page, base: str, name: str, path: str) -> None:
    """Go to a page and wait until it shows something."""
    page.goto(f"{base}/console/{path}")
    if name == "find":
        page.fill("input[name=log]", "orders")
        page.fill("input[name=id]", "order-42")
        page.click("main form button")
        page.wait_for_selector(".found")
    if name in ("overview", "log", "queue"):
        page.wait_for_selector("#state.ok")
        page.wait_for_timeout(1_000 if name == "queue" else 12_000)  # for a line of rates
    if name == "verify" and "was not verified" in page.inner_text("main"):
        page.goto(f"{base}/console/log?name=orders")
        page.click("text=Verify…")
        page.click("text=/^Yes, /")
        page.goto(f"{base}/console/{path}")
        page.wait_for_selector("text=orders is sound")
    if name == "asked":
        page.fill("input[name=retention_s]", "86400")
        page.click("text=Configure…")
    if name == "done":
        page.click("text=Seal…")
        page.click("text=/^Yes, /")


def fill(folder: Path) -> None:
    """Make a database, an inbox and a report, and a file of settings that names them."""
    shop((folder / "shop").as_uri())
    inbox(f"sqlite:///{folder}/inbox.db")
    report(folder / "orders.report.html")
    (folder / "serve.toml").write_text(
        f'[inboxes]\nshop = "sqlite:///{folder}/inbox.db"\n[reports]\norders = "{folder}/orders.report.html"\n'
    )


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Run ``oncelog serve`` on what was filled; yield its address."""
    addresses = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--config", str(folder / "serve.toml")]
    url = (folder / "shop").as_uri()
    command = [sys.executable, "-m", "oncelog.cli", "serve", "--url", url, *addresses, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://{json.loads(process.stdout.readline())['http']}"
        finally:
            process.terminate()


@contextmanager
def load(base: str, token: str) -> Iterator[None]:
    """Send orders over HTTP meanwhile: new ones, retries, and one id with other content at times."""
    over = threading.Event()
    headers = {"authorization": f"Bearer {token}"}

    def run() -> None:
        with httpx.Client(base_url=base, timeout=60, headers=headers) as http:
            number = 5000
            while not over.wait(0.12 if number % 7 else 0.4):
                number += 1
                send(http, number, number % 90)
                if number % 4 == 0:
                    send(http, number - 2, (number - 2) % 90)
                if number % 9 == 0:
                    send(http, number, 999)

    with httpx.Client(base_url=base, timeout=60, headers=headers) as http:
        for total in (50, 50, 999, 50):
            send(http, 42, total)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def send(http: httpx.Client, number: int, total: int) -> None:
    """Append one order."""
    headers = {"idempotency-key": f"order-{number}"}
    http.post("/v1/logs/orders/records", content=order(number, total), headers=headers)


def order(number: int, total: int) -> bytes:
    """Return an order."""
    return json.dumps({"total": total, "currency": "EUR", "items": [number % 7, number % 3]}).encode()


def shop(url: str) -> None:
    """Make a shop: orders, clicks of producers, accounts, and a queue with dead letters."""
    with oncelog.connect(url) as db:
        with db.log("orders", create=True).writer() as writer:
            # Order 42 comes again later, over HTTP: the same content is a duplicate, other content a conflict.
            records = [Record(order(n, 50 if n == 42 else n % 90), id=f"order-{n}") for n in range(5000)]
            writer.append_many(records)
        with db.log("clicks", create=True).writer(producer="importer-1") as producer:
            for number in range(20):
                producer.append(b"click", sequence=number)
        clicks = db.log("clicks")
        with clicks.writer() as writer:
            for number in range(3):
                table = pa.table({"value": pa.array([b"click"] * 500), "id": [f"c-{number}-{n}" for n in range(500)]})
                writer.ingest([clicks.stage([table])], BatchName(producer="clicks-query", number=number))
        accounts = db.streams("accounts", create=True)
        for n in range(30):
            accounts.append(f"account-{n % 5}", [Record(b'{"amount": %d}' % n, id=f"e{n}", type="paid")])
        emails = db.queue("emails", QueueSettings(retry=RetryPolicy(max_attempts=1)), create=True)
        emails.send_many([Message(f"welcome {n}".encode(), id=f"user-{n}") for n in range(40)])
        with emails.consume("mailer", prefetch=12) as consumer:
            for number, delivery in enumerate(consumer.receive(timeout_s=10)):
                if number < 7:
                    delivery.nack("smtp 550 no such user" if number % 2 else "smtp timeout")
                else:
                    delivery.ack()
        with emails.consume("mailer", prefetch=1) as consumer:
            consumer.receive(timeout_s=10)[0].ack()


def inbox(url: str) -> None:
    """Make an inbox with effects that happened, and one that failed."""
    with Inbox(url) as keys:
        for number in range(6):
            with keys.once(f"order-{number}", topic="invoices") as effect:
                effect.result = {"invoice": 100 + number}
        with suppress(ZeroDivisionError), keys.once("order-6", topic="invoices") as effect:
            effect.result = {"invoice": 1 // 0}


def report(path: Path) -> None:
    """Write a report, as a pipeline does after a run."""
    stored, duplicates = [980, 1010, 640, 1000, 990], [20, 0, 360, 12, 10]
    series = [Series("stored", "stored", stored), Series("duplicates", "duplicate", duplicates)]
    plot = plots.columns([str(number) for number in range(5)], series, what="rows of each batch")
    section = Section("Batches", "The rows of each batch, by what became of them.", plots.legend(series) + plot)
    figures = [Figure("rows read", 5022), Figure("records stored", 4620), Figure("duplicates", 402)]
    figures.append(Figure("not accounted for", 0, good=True))
    text = report_page.page("Pipeline orders", "1 run, into the log orders.", figures, [section], "Oncelog")
    report_page.write(path, text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
