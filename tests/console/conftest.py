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
from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NARROW, WIDE = 400, 1400
_TOO_WIDE = """[document.documentElement, ...document.querySelectorAll('.card')]
    .filter(part => part.scrollWidth > part.clientWidth)
    .map(part => `${(part.querySelector('h2, h1') || part).textContent}: ${part.scrollWidth} of ${part.clientWidth}`)"""


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


def press(button: Locator) -> None:
    """Press a button or a link, and wait for the page that it leads to: a click may end while the old page is shown."""
    with button.page.expect_navigation():
        button.first.click()


def too_wide(page: Page, width: int) -> list[str]:
    """Return the parts of a page that are wider than there is room for them, on a screen of this width."""
    page.set_viewport_size({"width": width, "height": 800})
    found: list[str] = page.evaluate(_TOO_WIDE)
    return found


def serious(page: Page) -> list[str]:
    """Return the serious findings of axe. Frames are not looked into."""
    options = {"resultTypes": ["violations"], "iframes": False}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found if rule["impact"] in ("serious", "critical")]


def check_look(page: Page) -> None:
    """Check that a page and each of its cards fit a phone, and that axe finds nothing serious there, in the light, nor
    on a wide screen in the dark. A wide table may scroll in its card on a wide screen.
    """
    assert too_wide(page, NARROW) == [], page.url
    assert serious(page) == [], page.url
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": WIDE, "height": 800})
    assert serious(page) == [], page.url
    page.emulate_media(color_scheme="light")


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
