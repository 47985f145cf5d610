"""A real console, and a real browser to look at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Watched:
    """A page, and everything that it should not do: messages to the console, dialogs, requests to other hosts."""

    def __init__(self, page: Page, host: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self._asked(request.url, host))

    def _asked(self, url: str, host: str) -> None:
        if host not in url:
            self.complaints.append(url)


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """Yield a page that is logged in to the console of the test's ``link``."""
    link: str = request.getfixturevalue("link")
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    found = Watched(page, link.split("/")[2])
    page.goto(link)
    yield found
    context.close()


@contextmanager
def running_console(url: str, *more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``oncelog console``; yield its link, and its process."""
    command = [sys.executable, "-m", "oncelog.cli", "console", "--url", url, "--port", "0", "--json", *more]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.kill()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return the folder of a database."""
    return tmp_path / "shop"


@pytest.fixture
def link(shop: Path) -> Iterator[str]:
    """Yield the link of a console on the shop."""
    with running_console(shop.as_uri()) as (found, _):
        yield found
