"""Acts: what an administrator changes from a page. Each asks first, is written to the audit, and says what it did."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from oncelog.console.configuring import configure_log, configure_queue, duration_s, log_changes, queue_changes
from oncelog.console.forms import Form, form_of
from oncelog.console.pages import Pages
from oncelog.console.source import NotedAct, Source
from oncelog.console.viewer import Kind, Verb, Viewer
from oncelog.errors import InvalidArgument, NotFound
from oncelog.settings import LogSettings, Window

_Do = Callable[[Source, str, Form], str]
_OWN = ("csrf", "sure")
"""Fields of a form that are about the form."""


class Act(NamedTuple):
    """One act: what it needs, what is asked before it, what does it, what it would change, and where to look after."""

    kind: Kind
    question: str
    do: _Do
    preview: _Do | None = None
    after: str | None = None
    verb: Verb = "admin"


def _redrive(source: Source, name: str, form: Form) -> str:
    letters = source.queue(name).dead_letters
    chosen = _letters(source, name, form) if form.get("position") or form.get("error") else None
    return _letters_were(letters.redrive(chosen), name, "sent back")


def _discard(source: Source, name: str, form: Form) -> str:
    letters = source.queue(name).dead_letters
    return _letters_were(letters.discard(_letters(source, name, form)), name, "given up for good")


def _letters_were(count: int, name: str, done: str) -> str:
    return f"1 dead letter of {name} was {done}." if count == 1 else f"{count:,} dead letters of {name} were {done}."


def _letters(source: Source, name: str, form: Form) -> list[int]:
    """Return the positions of the letters that a form chose: one, those with an error, or all."""
    position, error = form.get("position"), form.get("error")
    found = source.letters(name, None)
    if position:
        return [letter.position for letter in found if str(letter.position) == position]
    return [letter.position for letter in found if not error or letter.last_error == error]


def _pause(source: Source, name: str, form: Form) -> str:
    group = form.get("group") or None
    source.queue(name).pause(group)
    return f"{name}{f', group {group},' if group else ''} is paused."


def _resume(source: Source, name: str, form: Form) -> str:
    group = form.get("group") or None
    source.queue(name).resume(group)
    return f"{name}{f', group {group},' if group else ''} delivers again."


def _truncate(source: Source, name: str, form: Form) -> str:
    text = form.get("before", "").replace(",", "")
    if not text.isdecimal():
        message = f"before is {text!r}, must be a position"
        raise InvalidArgument(message)
    done = source.log(name).truncate(before=int(text))
    return f"{name} begins at {done.first_position:,} now{f' (held back by: {done.held_by})' if done.held_by else ''}."


def _seal(source: Source, name: str, _form: Form) -> str:
    done = source.log(name).seal()
    return (
        f"1 record of {name} was sealed." if done.records == 1 else f"{done.records:,} records of {name} were sealed."
    )


def _verify(source: Source, name: str, _form: Form) -> str:
    source.verify(name)
    return f"{name} is being verified: every record is read and checked."


def _resolve(source: Source, name: str, form: Form) -> str:
    key, to = form.get("key", ""), form.get("to", "")
    decision: Any = to
    scope = {part: form.get(part, "") for part in ("tenant", "topic", "group")}
    source.inbox(name).resolve(key, to=decision, **scope)
    words = {"committed": "counts as done", "failed": "has failed for good", "again": "may be tried again"}
    return f"{key} {words[to]}."


def _create(source: Source, name: str, form: Form) -> str:
    text = form.get("duration_s", "")
    settings = LogSettings(window=Window(duration_s=duration_s(text))) if text else LogSettings()
    source.database.log(name, settings, create=True)
    source.forget_names()
    return f"{name} was created."


def _delete(source: Source, name: str, form: Form) -> str:
    if form.get("again") != name:
        message = f"type the name of the log to delete it: {name}"
        raise InvalidArgument(message)
    source.delete_log(name)
    source.forget_names()
    return f"{name} was deleted."


ACTS: dict[str, Act] = {
    "redrive": Act("queue", "Send dead letters back to their queue?", _redrive),
    "discard": Act("queue", "Give dead letters up for good? They cannot be brought back.", _discard),
    "pause": Act("queue", "Deliver nothing until it is resumed?", _pause),
    "resume": Act("queue", "Deliver again?", _resume),
    "truncate": Act("log", "Remove all records before this position? They cannot be brought back.", _truncate),
    "seal": Act("log", "Turn closed segments into Parquet files now?", _seal),
    "verify": Act("log", "Read everything and check it?", _verify, after="/verify"),
    "configure": Act("log", "Change the settings?", configure_log, log_changes),
    "configure_queue": Act("queue", "Change the settings?", configure_queue, queue_changes),
    "resolve": Act("server", "Decide about this key? Its present holder loses it.", _resolve, after="/inboxes"),
    "create": Act("log", "Create this log?", _create, verb="make"),
    "delete": Act(
        "log", "Delete this log with all its records? It cannot be brought back.", _delete, after="/logs", verb="make"
    ),
}


class Acts:
    """The endpoint of all acts, and the page of the server."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    async def act(self, request: Request, viewer: Viewer) -> Response:
        """Ask, on the first request; do it, on the second, which carries the answer."""
        form = await form_of(request)
        if not hmac.compare_digest(form.get("csrf", "").encode(), viewer.csrf.encode()):
            message = "this form is not of your session: load the page again"
            raise InvalidArgument(message)
        verb, name = form.get("act", ""), form.get("name", "")
        act = ACTS.get(verb)
        if act is None or not self._pages.source.acts or not viewer.may(act.verb, act.kind, name):
            message = f"there is no {verb!r} of {name!r} for you here"
            raise NotFound(message)
        if form.get("sure") != "yes":
            return await self._ask(viewer, verb, act, name, form)
        source = self._pages.source
        async with source.noted(request, viewer, NotedAct(verb, act.kind, name, _details(form))):
            said: str = await self._pages.run(lambda: act.do(source, name, form))
        there = act.after or f"/{act.kind}"
        return await self._pages.show("done.html", viewer, title=_words(verb), said=said, there=there, name=name)

    async def _ask(self, viewer: Viewer, verb: str, act: Act, name: str, form: Form) -> Response:
        """Show what would be done, and a button that does it."""
        preview = act.preview
        would = await self._pages.run(lambda: preview(self._pages.source, name, form)) if preview is not None else ""
        kept = [(key, value) for key, value in form.items() if key not in _OWN]
        asked: dict[str, Any] = {
            "question": act.question,
            "name": name,
            "kept": kept,
            "would": would,
            "back": _back(verb, act),
        }
        return await self._pages.show("ask.html", viewer, title=_words(verb), **asked)

    async def server(self, _request: Request, viewer: Viewer) -> Response:
        """Show connections, tokens and the audit of a server."""
        self._pages.allowed(viewer, "server", "server", "admin")
        parts: dict[str, Any] = await self._pages.run(self._pages.source.server)
        return await self._pages.show("server.html", viewer, title="Access and audit", parts=parts)


def _details(form: Form) -> dict[str, str]:
    """Return what an act was asked with, for the audit."""
    return {key: value for key, value in form.items() if value and key not in (*_OWN, "act", "name", "tag")}


def _back(verb: str, act: Act) -> str:
    """Return the page of somebody who does not want an act after all."""
    return "/logs" if verb == "create" else "/inboxes" if act.kind == "server" else f"/{act.kind}"


def _words(verb: str) -> str:
    return verb.replace("_", " ")
