"""``POST /v1/hooks/{name}``: what a provider posts, stored once."""

from __future__ import annotations

from starlette.responses import Response

from oncelog.errors import IdConflict, InvalidArgument, NotAuthenticated, OncelogError
from oncelog.server.http import spelling
from oncelog.server.http.call import Call, answer
from oncelog.server.http.hooks import DEADLINE_S, Hook
from oncelog.server.http.problem import HttpRefusal
from oncelog.server.security import signatures
from oncelog.types import Ack, Record


async def post(call: Call) -> Response:
    """Store what a provider posts: 200 for stored, duplicate and conflict, so that it stops sending."""
    name = call.names["name"]
    hook = call.app.hooks.get(name)
    if hook is None:
        message = f"there is no hook {name!r}"
        raise HttpRefusal(404, message)
    try:
        found = await _stored(call, hook)
    except InvalidArgument:
        call.app.hooks.count(name, "no id")
        raise
    except NotAuthenticated:
        call.app.hooks.count(name, "refused")
        raise
    except OncelogError:
        call.app.hooks.count(name, "failed")
        raise
    call.app.hooks.count(name, "conflict" if found.conflict else "duplicate" if found.duplicate else "stored")
    return answer(spelling.ack(found))


async def _stored(call: Call, hook: Hook) -> Ack:
    settings = hook.settings
    body = await call.body.whole()
    if settings.signature != "none":
        signatures.check(
            settings.signature, hook.secrets, call.headers, body, clock=call.server.clock, age_s=settings.age_s
        )
    record = Record(body, id=hook.id_of(call.headers, body), type=settings.type)
    [found] = await call.server.seats[settings.log].append([record], timeout_s=DEADLINE_S, peer=call.peer)
    if isinstance(found, IdConflict) and settings.on_conflict == "original":
        return Ack(found.position, None, None, None, duplicate=True, conflict=True)
    if isinstance(found, OncelogError):
        raise found
    return found
