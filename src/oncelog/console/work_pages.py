"""Pages of work that goes on beside the logs: pipelines with their reports, inboxes, verifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oncelog.console.forms import form_of
from oncelog.console.pages import Pages, Paging, number
from oncelog.console.viewer import Viewer
from oncelog.errors import OncelogError

LOOKED_AT = 50
"""Logs that one page of pipelines looks into: each is a manifest to read."""

REJECTED = "rejected."
"""The prefix of logs in which pipelines keep rejected rows."""

REJECTED_MAX = 20
"""Links to such logs on one page."""

_REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
"""A report is a file that somebody else wrote: nothing in it runs, and nothing is fetched for it."""


class WorkPages:
    """Pipelines, inboxes and verifications."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._source = pages.source

    async def pipelines(self, request: Request, viewer: Viewer) -> Response:
        """Show the batches that Spark queries and jobs brought in, by log, a part of the logs at a time."""
        page = number(request, "page", 0)
        names = await self._pages.log_names(viewer)
        looked_at = names[page * LOOKED_AT : (page + 1) * LOOKED_AT]
        found = await self._pages.rows(looked_at, self._marks)
        rows = [(name, mark) for name, marks in zip(looked_at, found, strict=True) for mark in marks]
        now_us = self._source.clock.now_us()
        reports = list(self._source.reports) if viewer.may("look", "server", "reports") else []
        rejected = [name for name in names if name.startswith(REJECTED)][:REJECTED_MAX]
        paging = Paging("/pipelines", page, LOOKED_AT, len(names), "logs were looked into")
        beside: dict[str, Any] = {"reports": reports, "rejected": rejected, "now_us": now_us}
        return await self._pages.show(
            "pipelines.html", viewer, title="Pipelines", rows=rows, **beside, **paging._asdict()
        )

    def _marks(self, name: str) -> Sequence[Any]:
        try:
            return self._source.marks(name)
        except OncelogError:
            return []

    async def report(self, request: Request, viewer: Viewer) -> Response:
        """Show the report of a pipeline, inside a page of the console."""
        name = request.query_params.get("name", "")
        self._pages.allowed(viewer, "server", "reports")
        await self._pages.run(lambda: self._source.report(name))
        return await self._pages.show("report.html", viewer, title=f"Report: {name}", name=name)

    async def report_page(self, request: Request, viewer: Viewer) -> Response:
        """Return the report itself, as a document that can do nothing."""
        name = request.query_params.get("name", "")
        self._pages.allowed(viewer, "server", "reports")
        text = await self._pages.run(lambda: self._source.report(name))
        return Response(text, media_type="text/html", headers={"content-security-policy": _REPORT_POLICY})

    async def inboxes(self, request: Request, viewer: Viewer) -> Response:
        """Show the story of a key in an inbox, or the keys that changed last. The key is not in the address."""
        form = await form_of(request)
        self._pages.allowed(viewer, "server", "inboxes", "read")
        inbox = form.get("inbox") or request.query_params.get("name") or next(iter(self._source.inboxes), "")
        key, status = form.get("key", ""), form.get("status", "")
        rows = await self._pages.run(lambda: self._source.inbox_keys(inbox, key, status))
        admin = self._source.acts and viewer.may("admin", "server", "inboxes")
        return await self._pages.show(
            "inboxes.html", viewer, title="Inboxes", inbox=inbox, key=key, wanted=status, rows=rows, admin=admin
        )

    async def verify(self, request: Request, viewer: Viewer) -> Response:
        """Show how far the verification of a log is, and what it found."""
        name = self._pages.allowed(viewer, "log", request.query_params.get("name", ""))
        now, reads = self._source.verifying(name), viewer.may("read", "log", name)
        title = f"{name} · verification"
        return await self._pages.show("verify.html", viewer, title=title, log=name, now=now, reads=reads)
