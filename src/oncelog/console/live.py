"""Live pages: one stream of server-sent events a page. The server makes the HTML; the page puts it in place."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from oncelog.console.pages import Pages
from oncelog.console.queue_pages import QueuePages
from oncelog.console.source import Answer, LogMoment, Source
from oncelog.console.viewer import Viewer
from oncelog.errors import OncelogError
from oncelog.log import inner as log_inner
from oncelog.log.log import Log
from oncelog.types import Entry

TICK_S = 1.0
"""How often a page is brought up to date."""

REST = 20
"""What took long to make is left alone this many times as long: a page takes about 5 % of a core, at most."""

ROWS = 20
"""Rows of a live tail."""

KEPT = 60
"""Samples that a small plot shows."""


class LiveRow(NamedTuple):
    """A row of a live tail: a new record, or an answer that stored nothing."""

    at: datetime
    entry: Entry | None = None
    answer: Answer | None = None


class _Following:
    """What one page has seen of a log."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._log: Log | None = None
        self._answered: datetime | None = None
        self.samples: deque[LogMoment] = deque(maxlen=KEPT)
        self.rows: deque[LiveRow] = deque(maxlen=ROWS)

    def step(self, *, reads: bool) -> int:
        """Look again; return how many records are new since the last look. Rows are read only if ``reads``."""
        log = self._opened()
        sample = self._source.sample(log)
        behind = self.samples[-1].end_position if self.samples else sample.end_position - ROWS
        behind = max(behind, sample.info.first_position)
        self.samples.append(sample)
        if reads:
            self.rows.extendleft(self._fresh(log, max(behind, sample.end_position - ROWS), sample))
        return sample.end_position - behind

    def _opened(self) -> Log:
        """Return the log, opened again if the name stands for another one now. To open it at every look costs a page
        at 100,000 records a second more than all the rest.
        """
        if self._log is None or not log_inner.is_there(self._log):
            self._log = self._source.log(self._name)
            self.samples.clear()
            self.rows.clear()
        return self._log

    def _fresh(self, log: Log, first: int, sample: LogMoment) -> list[LiveRow]:
        """Return what happened since a position, the oldest first: new records, and answers that stored nothing."""
        rows = []
        if first < sample.end_position:
            with log.read(start=first, limit=sample.end_position - first) as reader:
                rows = [LiveRow(entry.timestamp, entry=entry) for entry in reader]
        answers = self._source.answers(self._name, ROWS)
        since, self._answered = self._answered, answers[0].at if answers else self._answered
        rows += [
            LiveRow(answer.at, answer=answer)
            for answer in answers
            if not answer.outcome.startswith("stored") and (since is None or answer.at > since)
        ]
        return sorted(rows, key=lambda row: (row.at, row.entry.position if row.entry is not None else -1))


class LivePages:
    """The streams of live pages."""

    def __init__(self, pages: Pages, queues: QueuePages) -> None:
        self._pages = pages
        self._queues = queues
        self._fragments = pages.templates.get_template("fragments.html")

    async def log(self, request: Request, viewer: Viewer) -> Response:
        """Follow one log: rates, and its newest records and answers."""
        name = self._pages.allowed(viewer, "log", request.query_params.get("name", ""))
        following = _Following(self._pages.source, name)

        async def make(viewer: Viewer) -> dict[str, str]:
            self._pages.allowed(viewer, "log", name)
            reads = viewer.may("read", "log", name)
            fresh = await self._pages.run(lambda: following.step(reads=reads))
            tail = {"tail": self._tail(name, following, fresh)} if reads else {}
            return {"tiles": self._tiles(name, following.samples), "details": self._details(following.samples), **tail}

        return self._stream(request, make)

    async def overview(self, request: Request, viewer: Viewer) -> Response:  # noqa: ARG002 (each look asks who looks)
        """Follow the database."""
        looks: deque[tuple[int, int]] = deque(maxlen=KEPT)

        async def make(viewer: Viewer) -> dict[str, str]:
            values = await self._pages.overview_values(viewer)
            looks.append((self._pages.source.clock.elapsed_us(), values["records"]))
            return {"now": self._pages.rendered("overview_now.html", viewer, rates=_speeds(looks), **values)}

        return self._stream(request, make)

    async def queue(self, request: Request, viewer: Viewer) -> Response:
        """Follow one queue."""
        self._pages.allowed(viewer, "queue", request.query_params.get("name", ""))

        async def make(viewer: Viewer) -> dict[str, str]:
            values = await self._queues.values(request, viewer)
            return {"now": self._pages.rendered("queue_now.html", viewer, **values)}

        return self._stream(request, make)

    async def verify(self, request: Request, viewer: Viewer) -> Response:
        """Follow the verification of a log."""
        name = self._pages.allowed(viewer, "log", request.query_params.get("name", ""))
        module: Any = self._fragments.module

        async def make(viewer: Viewer) -> dict[str, str]:
            self._pages.allowed(viewer, "log", name)
            now, reads = self._pages.source.verifying(name), viewer.may("read", "log", name)
            return {"verification": str(module.verification(name, now, reads))}

        return self._stream(request, make)

    def _stream(self, request: Request, make: Callable[[Viewer], Awaitable[dict[str, str]]]) -> Response:
        if request.method == "HEAD":  # it would never end
            return Response(None, 405, {"allow": "GET"})
        headers = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(request, make), media_type="text/event-stream", headers=headers)

    async def _events(
        self, request: Request, make: Callable[[Viewer], Awaitable[dict[str, str]]]
    ) -> AsyncIterator[bytes]:
        """Make the parts of a page again and again, until the browser goes, the session ends or the server stops. Each
        time, the viewer is judged by the token as it is then. What takes long to make is made less often.
        """
        source, clock = self._pages.source, self._pages.source.clock
        goes_on = True
        while goes_on and not await request.is_disconnected():
            viewer = self._pages.gate.viewer(request)
            if viewer is None:  # the token was revoked
                return
            began_us = clock.elapsed_us()
            try:
                patch = {**await make(viewer), "state": "live"}
            except OncelogError as error:
                patch = {"state": f"stale: {error}"}
            yield b"data: " + msgspec.json.encode(patch) + b"\n\n"
            goes_on = await source.rest(max(TICK_S, (clock.elapsed_us() - began_us) / 1e6 * REST))

    def _tiles(self, name: str, samples: deque[LogMoment]) -> str:
        module: Any = self._fragments.module
        return str(module.tiles(name, _rates(samples), samples[-1].counts))

    def _details(self, samples: deque[LogMoment]) -> str:
        module: Any = self._fragments.module
        return str(module.details(samples[-1].info))

    def _tail(self, name: str, following: _Following, fresh: int) -> str:
        """Return the newest rows, and how many of the ``fresh`` records had no place among them."""
        module: Any = self._fragments.module
        is_by_stream = following.samples[-1].info.settings.id_scope == "stream"
        answers = self._pages.source.live_answers and not is_by_stream  # a server does not note those to events
        return str(module.tail(name, list(following.rows), max(0, fresh - ROWS), answers))


def _rates(samples: deque[LogMoment]) -> dict[str, list[float]]:
    """Return appends and duplicates a second, between each two samples."""
    rates: dict[str, list[float]] = {"appends": [], "duplicates": []}
    for before, after in zip(samples, list(samples)[1:], strict=False):
        seconds = max((after.at_us - before.at_us) / 1e6, 1e-6)
        rates["appends"].append(max(0, after.end_position - before.end_position) / seconds)
        if before.counts is not None and after.counts is not None:
            rates["duplicates"].append(max(0, after.counts.duplicates - before.counts.duplicates) / seconds)
    return rates


def _speeds(looks: Sequence[tuple[int, int]]) -> list[float]:
    """Return records a second, between each two looks (a time in microseconds, and a count)."""
    pairs = zip(looks, list(looks)[1:], strict=False)
    return [max(0, after[1] - before[1]) / max((after[0] - before[0]) / 1e6, 1e-6) for before, after in pairs]
