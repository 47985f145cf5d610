"""The pages: each asks the source in a thread, and renders a template. Nothing is shown that the viewer may not see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from oncelog.console import render
from oncelog.console.forms import form_of, whole
from oncelog.console.source import COUNTED_MAX, PAGE_ROWS, Source, when
from oncelog.console.viewer import COOKIE, Kind, Verb, Viewer, ViewerGate
from oncelog.errors import InvalidArgument, NotAllowed, NotFound, OncelogError

_T = TypeVar("_T")
Run = Callable[[Callable[[], _T]], Awaitable[_T]]
"""Runs a function that blocks, in a thread."""

ROOT = "/console"
SHOWN = 12
"""Logs and queues that the overview shows."""

MENU = 8
"""Logs and queues at the side of every page."""

HANDS = 4
"""Threads that make the rows of one table."""
_STATUS = {InvalidArgument: 400, NotFound: 404, NotAllowed: 403}


class Paging(NamedTuple):
    """Which part of a long list a page shows: the path of the page, its number and size, and what is counted."""

    here: str
    page: int
    size: int
    total: int
    counted: str
    search: str = ""


class Pages:
    """All pages of one console."""

    def __init__(self, source: Source, gate: ViewerGate, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self.source = source
        self.gate = gate
        self.run = run
        self.templates = render.environment()

    # What every page does.

    def page(self, work: Callable[[Request, Viewer], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint: a request without a session goes to the login, an error becomes a page that says it."""

        async def endpoint(request: Request) -> Response:
            viewer = self.gate.viewer(request)
            if viewer is None:
                return RedirectResponse(f"{ROOT}/login{_asked_for(request)}", 303)
            try:
                return await work(request, viewer)
            except OncelogError as error:
                return await self.show("error.html", viewer, status=_status(error), title="Error", error=error)

        return endpoint

    async def show(self, template: str, viewer: Viewer, *, status: int = 200, title: str, **values: Any) -> Response:
        """Render a page."""
        menu = await self.run(lambda: self._menu(viewer))
        return HTMLResponse(self.rendered(template, viewer, title=title, menu=menu, **values), status)

    def rendered(self, template: str, viewer: Viewer, **values: Any) -> str:
        """Return a template with its values: a page, or the part of a page that is live."""
        known = {"viewer": viewer, "acts": self.source.acts, "root": ROOT, "source": self.source}
        return self.templates.get_template(template).render(**known, **values)

    def _menu(self, viewer: Viewer) -> dict[str, list[str]]:
        """Return the first logs and queues, for the side of the page; an outage must not take the page away."""
        try:
            logs = _first(viewer, "log", _of_people(self.source.log_names()))
            queues = _first(viewer, "queue", _of_work(self.source.queue_names()))
        except OncelogError:
            return {"logs": [], "queues": []}
        return {"logs": logs, "queues": queues}

    async def log_names(self, viewer: Viewer, search: str = "") -> Sequence[str]:
        """Return the names of the logs that a viewer may look at, and that contain a text."""
        found: Sequence[str] = await self.run(lambda: viewer.visible("log", self.source.log_names(search)))
        return found

    async def queue_names(self, viewer: Viewer, search: str = "") -> list[str]:
        """Do the same for queues, without those of dead letters."""
        found = await self.run(lambda: viewer.visible("queue", self.source.queue_names(search)))
        return list(_of_work(found))

    def allowed(self, viewer: Viewer, kind: Kind, name: str, verb: Verb = "look") -> str:
        """Return a name, or raise ``NotFound``: what a viewer may not see is not there. ``NotAllowed`` if the
        viewer may look at it, but ``verb`` is not allowed.
        """
        if name and viewer.may(verb, kind, name):
            return name
        if name and viewer.may("look", kind, name):
            message = f"your token does not allow you to {verb} {name!r}: it may look at counts, times and sizes"
            raise NotAllowed(message)
        message = f"there is no {kind} {name!r}"
        raise NotFound(message)

    async def rows(self, names: Sequence[str], make: Callable[[str], _T]) -> list[_T]:
        """Return the rows of a table. A few threads make them: each row waits for the disk or the bucket."""
        size = -(-len(names) // HANDS) or 1
        parts = [names[first : first + size] for first in range(0, len(names), size)]
        made = await asyncio.gather(*(self.run(partial(_made, make, part)) for part in parts))
        return [row for part in made for row in part]

    # Coming and going.

    async def login(self, request: Request) -> Response:
        """Show the form; take a token, or the key of the link that ``oncelog console`` printed. A token in an address
        is not taken: addresses end up in histories and in the logs of proxies.
        """
        secret = request.query_params.get("key") if not self.gate.needs_token else None
        there = _place(request.query_params.get("next", ""))
        try:
            secret = (await form_of(request)).get("token", secret)
        except InvalidArgument as error:
            return self._login_form(400, f"{error}.", there)
        if not secret and self.gate.needs_token:
            return self._login_form(200, "", there)
        session = self.gate.login(request, secret or "")
        if session is None:
            return self._login_form(401, "This is not valid, or not valid any more.", there)
        response = RedirectResponse(there, 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, session, path=ROOT, httponly=True, samesite="strict", secure=secure)
        return response

    def _login_form(self, status: int, message: str, there: str) -> Response:
        template = self.templates.get_template("login.html")
        values = {"message": message, "needs_token": self.gate.needs_token, "there": there}
        return HTMLResponse(template.render(root=ROOT, **values), status)

    async def logout(self, request: Request) -> Response:
        """End the session."""
        self.gate.logout(request)
        response = RedirectResponse(f"{ROOT}/login", 303)
        response.delete_cookie(COOKIE, path=ROOT)
        return response

    # Logs.

    async def overview(self, _request: Request, viewer: Viewer) -> Response:
        """Show the database at one glance."""
        values = await self.overview_values(viewer)
        return await self.show("overview.html", viewer, title="Overview", rates=[], **values)

    async def overview_values(self, viewer: Viewer) -> dict[str, Any]:
        """Return what the overview shows: the first logs and queues, and what needs somebody's attention."""
        names, queues = await self.log_names(viewer), await self.queue_names(viewer)
        logs = await self.run(lambda: list(_of_people(names)))
        rows = await self.log_rows(logs[:SHOWN])
        waiting = await self.rows(queues[:SHOWN], self.queue_row)
        return {"logs": len(logs), "queues": len(queues), "rows": rows, "waiting": waiting, **_sums(rows, waiting)}

    async def logs(self, request: Request, viewer: Viewer) -> Response:
        """Show the logs, a page at a time."""
        search, page = request.query_params.get("q", ""), number(request, "page", 0)
        names = await self.log_names(viewer, search)
        rows = await self.log_rows(names[page * PAGE_ROWS : (page + 1) * PAGE_ROWS])
        paging = Paging("/logs", page, PAGE_ROWS, len(names), "logs", search)
        return await self.show("logs.html", viewer, title="Logs", rows=rows, **paging._asdict())

    async def log_rows(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of the logs with these names, without those that are not there: names may be old."""
        return [row for row in await self.rows(names, self._log_row) if row is not None]

    def _log_row(self, name: str) -> dict[str, Any] | None:
        try:
            return {"name": name, "info": self.source.info(name), "error": None}
        except NotFound:
            return None
        except OncelogError as error:  # one damaged log does not hide the others
            return {"name": name, "info": None, "error": str(error)}

    async def log(self, request: Request, viewer: Viewer) -> Response:
        """Show one log: counts, segments, and records from a position or a time on."""
        name = self.allowed(viewer, "log", request.query_params.get("name", ""))
        reads = viewer.may("read", "log", name)
        start, at = request.query_params.get("start", ""), request.query_params.get("time", "")
        info = await self.run(lambda: self.source.info(name))
        entries = await self.run(lambda: self._entries(name, start, at)) if reads else []
        files = await self.run(lambda: self.source.files(name))
        is_streams = await self.run(lambda: self.source.is_streams(name))
        return await self.show(
            "log.html",
            viewer,
            title=name,
            info=info,
            entries=entries,
            reads=reads,
            start=start,
            time=at,
            files=files[-PAGE_ROWS:],
            files_total=len(files),
            is_streams=is_streams,
            size=PAGE_ROWS,
            admin=self.admin(viewer, "log", name),
        )

    def _entries(self, name: str, start: str, at: str) -> list[Any]:
        if at:
            return self.source.entries(name, when(at))
        if start:
            return self.source.entries(name, whole("start", start))
        return []

    def admin(self, viewer: Viewer, kind: Kind, name: str) -> bool:
        """Return whether a viewer may change something here."""
        return self.source.acts and viewer.may("admin", kind, name)

    def queue_row(self, name: str) -> dict[str, Any]:
        """Return how a queue stands, or why that is not known."""
        try:
            dead = self.source.dead_count(name)
            return {"name": name, "stats": self.source.queue_stats(name), "dead": dead, "error": None}
        except OncelogError as error:
            return {"name": name, "stats": None, "dead": 0, "error": str(error)}

    async def record(self, request: Request, viewer: Viewer) -> Response:
        """Show one record, whole."""
        name = self.allowed(viewer, "log", request.query_params.get("log", ""), "read")
        position = number(request, "position", 0)
        entry = await self.run(lambda: self.source.entry(name, position))
        return await self.show("record.html", viewer, title=f"{name} · {position:,}", log=name, entry=entry)

    async def find(self, request: Request, viewer: Viewer) -> Response:
        """Answer the question: was this id stored, when, and how often was it tried? The id is not in the address."""
        form = await form_of(request)
        name = form.get("log", request.query_params.get("log", ""))
        id, stream = form.get("id", ""), form.get("stream") or None
        names = await self.log_names(viewer)
        found = None
        if id:
            name = self.allowed(viewer, "log", name, "read")
            found = await self.run(lambda: self.source.find(name, id, stream))
            if found.topic and found.location is None:
                other = await self.run(lambda: self.source.log_of_message(name, id, stream or ""))
                name = self.allowed(viewer, "log", other, "read")
                found = await self.run(lambda: self.source.find_message(name, id, stream or ""))
        return await self.show(
            "find.html",
            viewer,
            title="Find an id",
            names=names[:COUNTED_MAX],
            log=name,
            id=id,
            stream=stream,
            found=found,
        )

    async def producers(self, request: Request, viewer: Viewer) -> Response:
        """Show the producers of a log and how far each got."""
        name = self.allowed(viewer, "log", request.query_params.get("log", ""))
        found = await self.run(lambda: self.source.producers(name))
        rows = sorted(found.items(), key=lambda item: -item[1].active_us)
        return await self.show(
            "producers.html", viewer, title=f"{name} · producers", log=name, rows=rows[:COUNTED_MAX], total=len(rows)
        )

    # Streams.

    async def streams(self, request: Request, viewer: Viewer) -> Response:
        """Show the streams of an event store."""
        name = self.allowed(viewer, "log", request.query_params.get("log", ""), "read")
        prefix = request.query_params.get("q", "")
        rows = await self.run(lambda: self.source.streams(name, prefix, 1000))
        return await self.show(
            "streams.html", viewer, title=f"{name} · streams", log=name, rows=rows, search=prefix, limit=1000
        )

    async def stream(self, request: Request, viewer: Viewer) -> Response:
        """Show the events of one stream, in both directions."""
        name = self.allowed(viewer, "log", request.query_params.get("log", ""), "read")
        stream = request.query_params.get("stream", "")
        start, backward = number(request, "start", -1), request.query_params.get("direction") != "forward"
        events = await self.run(lambda: self.source.events(name, stream, start, backward=backward))
        return await self.show(
            "stream.html",
            viewer,
            title=stream,
            log=name,
            stream=stream,
            events=events,
            backward=backward,
            size=PAGE_ROWS,
        )


def _sums(rows: Sequence[dict[str, Any]], waiting: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Return the sums of the rows that an overview shows. What only a writer counts is ``None`` where none is known."""
    infos = [row["info"] for row in rows if row["info"] is not None]
    counts = [info.counters for info in infos if info.counters is not None]
    return {
        "records": sum(info.last_position + 1 - info.first_position for info in infos),
        "duplicates": sum(count.duplicates for count in counts) if counts else None,
        "conflicts": sum(count.conflicts for count in counts) if counts else None,
        "dead": sum(row["dead"] for row in waiting),
    }


def _made(make: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    return [make(name) for name in names]


def _of_people(logs: Iterable[str]) -> Iterator[str]:
    """Return the logs without those that queues keep their messages in, and without the server's own."""
    return (name for name in logs if not name.startswith(("queue/", "_")))


def _of_work(queues: Iterable[str]) -> Iterator[str]:
    """Return the queues without those of dead letters."""
    return (name for name in queues if not name.startswith("dlq."))


def _first(viewer: Viewer, kind: Kind, names: Iterable[str]) -> list[str]:
    """Return the first names that a viewer may look at, and judge no more of them."""
    return list(islice((name for name in names if viewer.may("look", kind, name)), MENU))


def _asked_for(request: Request) -> str:
    """Return the query with which a login comes back to the page that was asked for."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    is_page = request.method == "GET" and request.url.path not in (f"{ROOT}/", ROOT)
    return f"?next={quote(here, safe='')}" if is_page else ""


def _place(asked: str) -> str:
    """Return where a login leads: a page of this console, never another host."""
    return asked if asked.startswith(f"{ROOT}/") and asked.isprintable() and "\\" not in asked else f"{ROOT}/"


def _status(error: OncelogError) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)


def number(request: Request, name: str, otherwise: int) -> int:
    """Return a number of the query, or another if it is not there; ``InvalidArgument`` for what is none."""
    text = request.query_params.get(name, "")
    return whole(name, text) if text else otherwise
