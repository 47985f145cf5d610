"""Pages of queues: all of them, and one with its groups, its next messages and its dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oncelog.console.pages import Pages, Paging, number
from oncelog.console.source import PAGE_ROWS
from oncelog.console.viewer import Viewer
from oncelog.queue.deliver.dead_letters import DeadLetter
from oncelog.queue.inspect import QueueStats

_GROUP = "default"
_ERRORS_MAX = 20


class QueuePages:
    """Queues, and a queue."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._source = pages.source

    async def queues(self, request: Request, viewer: Viewer) -> Response:
        """Show the queues and how far their groups are, a page at a time."""
        search, page = request.query_params.get("q", ""), number(request, "page", 0)
        names = await self._pages.queue_names(viewer, search)
        rows = await self._pages.rows(names[page * PAGE_ROWS : (page + 1) * PAGE_ROWS], self._pages.queue_row)
        paging = Paging("/queues", page, PAGE_ROWS, len(names), "queues", search)
        return await self._pages.show("queues.html", viewer, title="Queues", rows=rows, **paging._asdict())

    async def queue(self, request: Request, viewer: Viewer) -> Response:
        """Show one queue: its groups, the next messages, what died, and its settings."""
        name = self._pages.allowed(viewer, "queue", request.query_params.get("name", ""))
        values = await self.values(request, viewer)
        settings = await self._pages.run(lambda: self._source.queue(name).settings)
        return await self._pages.show("queue.html", viewer, title=name, own=settings, **values)

    async def values(self, request: Request, viewer: Viewer) -> dict[str, Any]:
        """Return the part of a queue's page that changes while somebody looks."""
        name = self._pages.allowed(viewer, "queue", request.query_params.get("name", ""))
        reads = viewer.may("read", "queue", name)
        stats = await self._pages.run(lambda: self._source.queue_stats(name))
        group = request.query_params.get("group") or next(iter(stats.groups), _GROUP)
        knows = reads and group in stats.groups
        peeked = await self._pages.run(lambda: self._source.peek(name, group)) if knows else []
        dead = await self._pages.run(lambda: self._source.dead_count(name))
        letters = await self._pages.run(lambda: self._source.letters(name)) if dead else []
        return {
            "stats": stats,
            "group": group,
            "peeked": peeked,
            "letters": letters[:PAGE_ROWS],
            "dead": dead,
            "dead_by_group": _by_group(stats, letters, dead),
            "groups_partly": len(stats.groups) > 1 and dead > len(letters),
            "looked_at": len(letters),
            "errors": Counter(letter.last_error for letter in letters).most_common(_ERRORS_MAX),
            "reads": reads,
            "admin": self._pages.admin(viewer, "queue", name),
        }


def _by_group(stats: QueueStats, letters: Sequence[DeadLetter], dead: int) -> Mapping[str, int]:
    """Return the dead letters of each group. Where there are more than a page looks at, several groups are counted as
    far as it looks, and the page says so (``groups_partly``).
    """
    if len(stats.groups) == 1:
        return dict.fromkeys(stats.groups, dead)
    return Counter(letter.group for letter in letters)
