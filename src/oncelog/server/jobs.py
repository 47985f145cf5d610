"""Long jobs: one at a time in a server. A caller that asks for a running job follows that job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from oncelog.server.server import Server

Tell = Callable[[int, int], None]
"""Is called with what is done, and all there is."""

SHOW_S = 0.5
"""The time between two reports of progress."""


class JobProgress(NamedTuple):
    """How far a job is; with its result when it is done."""

    done: int
    total: int
    ended: bool = False
    result: Any = None


class _Job:
    def __init__(self) -> None:
        self.progress = (0, 0)
        self.task: asyncio.Task[Any]

    def tell(self, done: int, total: int) -> None:
        self.progress = (done, total)


class Jobs:
    """The jobs of a server, by what they do."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._jobs: dict[tuple[object, ...], _Job] = {}

    async def follow(self, key: tuple[object, ...], work: Callable[[Tell], Any]) -> AsyncIterator[JobProgress]:
        """Yield the progress of a job, and its result at last; the job is started unless it runs.

        A follower that leaves ends nothing: the job goes on.
        """
        job = self._jobs.get(key)
        if job is None:
            self._server.check_serving()
            job = self._jobs[key] = _Job()
            job.task = asyncio.create_task(self._run(key, job, work))
        while not job.task.done():
            yield JobProgress(*job.progress)
            await asyncio.wait({job.task}, timeout=SHOW_S)
        yield JobProgress(*job.progress, ended=True, result=job.task.result())

    async def _run(self, key: tuple[object, ...], job: _Job, work: Callable[[Tell], Any]) -> Any:
        try:
            return await self._server.workers.run(lambda: work(job.tell))
        finally:
            del self._jobs[key]
