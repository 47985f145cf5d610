"""``make screenshots``: every page of the console, light and dark, wide and narrow, of a small shop."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import oncelog
from oncelog import Message, QueueSettings, Record, RetryPolicy

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAGES = {
    "overview": "/console/",
    "logs": "/console/logs",
    "log": "/console/log?name=orders&start=40",
    "record": "/console/record?log=orders&position=41",
    "find": "/console/find",
    "producers": "/console/producers?log=clicks",
    "pipelines": "/console/pipelines",
    "streams": "/console/streams?log=accounts",
    "stream": "/console/stream?log=accounts&stream=account-3",
    "queues": "/console/queues",
    "queue": "/console/queue?name=emails",
}
WIDTHS = {"wide": 1400, "narrow": 400}


def main(folder: Path) -> None:
    """Take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, console(shop(Path(made))) as link, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            for width_name, width in WIDTHS.items():
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(link)
                for name, path in PAGES.items():
                    show(page, link, name, path)
                    page.screenshot(path=folder / f"{name}-{scheme}-{width_name}.png", full_page=True)
                page.close()
        browser.close()


def show(page: Page, link: str, name: str, path: str) -> None:
    """Go to a page and wait until it shows something."""
    page.goto(link.partition("/console/")[0] + path)
    if name == "find":
        page.fill("input[name=log]", "orders")
        page.fill("input[name=id]", "order-42")
        page.click("main form button")
        page.wait_for_selector(".found")
    if name == "log":
        page.wait_for_selector("#state.ok")


@contextmanager
def console(url: str) -> Iterator[str]:
    """Run ``oncelog console`` and yield its link."""
    command = [sys.executable, "-m", "oncelog.cli", "console", "--url", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def shop(folder: Path) -> str:
    """Make a shop: orders, clicks of producers, accounts, and a queue with dead letters."""
    with oncelog.connect(folder.as_uri()) as db:
        with db.log("orders", create=True).writer() as w:
            orders = [
                Record(
                    json.dumps({"total": 10 + n % 90, "currency": "EUR", "items": [n % 7, n % 3]}).encode(),
                    id=f"order-{n}",
                )
                for n in range(5000)
            ]
            w.append_many(orders)
            w.append_many(orders[:200])
        with db.log("clicks", create=True).writer(producer="importer-1") as producer:
            for number in range(20):
                producer.append(b"click", sequence=number)
        accounts = db.streams("accounts", create=True)
        for n in range(30):
            accounts.append(f"account-{n % 5}", [Record(b'{"amount": %d}' % n, id=f"e{n}", type="paid")])
        emails = db.queue("emails", QueueSettings(retry=RetryPolicy(max_attempts=1)), create=True)
        emails.send_many([Message(f"welcome {n}".encode(), id=f"user-{n}") for n in range(40)])
        with emails.consume("mailer", prefetch=12) as consumer:
            for number, delivery in enumerate(consumer.receive(timeout_s=10)):
                if number < 7:
                    delivery.nack("smtp 550 no such user" if number % 2 else "ack_timeout")
                else:
                    delivery.ack()
        with emails.consume("mailer", prefetch=1) as consumer:
            consumer.receive(timeout_s=10)[0].ack()
    return folder.as_uri()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
