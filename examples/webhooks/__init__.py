"""A web service that takes each event once, however often its sender repeats it: FastAPI before one Oncelog server.

Start a server, and the service with as many processes as you like. All of them write one log:

    oncelog serve --url ./shop
    ONCELOG_URL=oncelog://127.0.0.1:7676 uvicorn --workers 4 examples.webhooks:app

Without a server, one process may hold the log itself: ``ONCELOG_URL=./shop uvicorn examples.webhooks:app``. The code is
the same.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request

import oncelog
from oncelog import later


@asynccontextmanager
async def _opened(service: FastAPI) -> AsyncIterator[None]:
    """Hold a writer for as long as the process serves; leaving stores what is on its way."""
    async with await later(oncelog.connect, os.environ["ONCELOG_URL"]) as db:
        events = await later(db.log, "events", create=True)
        async with await later(events.writer) as writer:
            service.state.events, service.state.writer = events, writer
            yield


app = FastAPI(lifespan=_opened)


@app.post("/events", status_code=201)
async def take(request: Request, idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """Store an event; answer when it is durable. A repeat gets the position of the first."""
    try:
        ack = await request.app.state.writer.submit(await request.body(), id=idempotency_key, timeout_s=8)
    except oncelog.IdConflict as error:
        raise HTTPException(422, str(error)) from error
    except oncelog.Unavailable as error:  # also when the outcome is unknown: the sender repeats it, with the same key
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    return {"position": ack.position, "duplicate": ack.duplicate, "process": os.getpid()}


@app.get("/events")
async def count(request: Request) -> dict[str, int]:
    """Return how many events are stored."""
    return {"events": await later(request.app.state.events.end_position)}
