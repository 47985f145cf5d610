"""Acts: what an administrator changes from a page. Each asks first, is written to the audit, and says what it did."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from oncelog.console.configuring import configure_log, configure_queue, duration_s, log_changes, queue_changes
from oncelog.console.forms import Form, form_of, whole, with_line_feeds
from oncelog.console.pages import Pages
from oncelog.console.source import Failed, NotedAct, Source
from oncelog.console.viewer import Kind, Verb, Viewer
from oncelog.errors import InvalidArgument, NotFound
from oncelog.redaction import harmless_line
from oncelog.settings import LogSettings, Window, check

_Do = Callable[[Source, str, Form], str]
_Begin = Callable[[Source, str, Failed], None]
_OWN = ("csrf", "sure")
"""Fields of a form that are about the form."""
_LASTING = ("discard", "truncate", "delete")
"""Acts that nobody can take back."""
_HOLDERS = {"window": "the memory of ids", "lease": "a reader", "open segment": "the segment that is being written"}
_DECIDED = {"committed": "counts as done", "failed": "has failed for good", "again": "may be tried again"}


class Act(NamedTuple):
    """One act: what it needs, what is asked before it, what does it, what it would change, where to look after, and
    what begins it if it goes on after the answer.
    """

    kind: Kind
    question: str
    do: _Do
    preview: _Do | None = None
    after: str | None = None
    verb: Verb = "admin"
    begin: _Begin | None = None


def _redrive(source: Source, name: str, form: Form) -> str:
    letters = source.queue(name).dead_letters
    chosen = _letters(source, name, form) if _chooses(form) else None
    return _letters_were(letters.redrive(chosen), name, "sent back")


def _discard(source: Source, name: str, form: Form) -> str:
    letters = source.queue(name).dead_letters
    return _letters_were(letters.discard(_letters(source, name, form)), name, "given up for good")


def _letters_asked(source: Source, name: str, form: Form) -> str:
    """Return how many letters would be sent back or given up. None of them is named: not everybody may read them."""
    position, error = form.get("position"), form.get("error")
    count = len(_letters(source, name, form)) if _chooses(form) else source.dead_count(name)
    if not count:
        message = f"{name} has no such dead letter any more: load the page again"
        raise NotFound(message)
    found = "1 dead letter" if count == 1 else f"{count:,} dead letters"
    if position is not None:
        return f"{found} at position {position}"
    return (
        f"{found}, all there are" if error is None else f"{found} with the last error: {harmless_line(error) or 'none'}"
    )


def _letters_were(count: int, name: str, done: str) -> str:
    return f"1 dead letter of {name} was {done}." if count == 1 else f"{count:,} dead letters of {name} were {done}."


def _chooses(form: Form) -> bool:
    """Return whether a form names some letters and not all. An error may be empty: that is not all of them."""
    return "position" in form or "error" in form


def _letters(source: Source, name: str, form: Form) -> list[int]:
    """Return the positions of the letters that a form chose: one, those with an error, or all."""
    position, error = form.get("position"), form.get("error")
    found = source.letters(name, None)
    if position is not None:
        return [letter.position for letter in found if str(letter.position) == position]
    return [letter.position for letter in found if error is None or with_line_feeds(letter.last_error) == error]


def _pause(source: Source, name: str, form: Form) -> str:
    group = form.get("group") or None
    source.queue(name).pause(group)
    return f"{name}{f', group {group},' if group else ''} is paused."


def _resume(source: Source, name: str, form: Form) -> str:
    group = form.get("group") or None
    source.queue(name).resume(group)
    return f"{name}{f', group {group},' if group else ''} delivers again."


def _truncate(source: Source, name: str, form: Form) -> str:
    before = whole("before", form.get("before", ""))
    done = source.log(name).truncate(before=before)
    if done.held_by is None:
        return f"{name} begins at {done.first_position:,} now."
    return (
        f"{name} begins at {done.first_position:,} now, and not at {before:,}: {_HOLDERS[done.held_by]} needs the rest."
    )


def _truncation(source: Source, name: str, form: Form) -> str:
    """Return what a truncation would remove, at most: a reader or the window may hold it back."""
    before, info = whole("before", form.get("before", "")), source.info(name)
    going = min(before, info.last_position + 1) - info.first_position
    if going <= 0:
        message = f"nothing would be removed: {name} begins at {info.first_position:,}"
        raise InvalidArgument(message)
    records = "1 record" if going == 1 else f"{going:,} records"
    return f"{records} of {info.last_position + 1 - info.first_position:,}: all before position {before:,}"


def _seal(source: Source, name: str, _form: Form) -> str:
    done = source.log(name).seal()
    return (
        f"1 record of {name} was sealed." if done.records == 1 else f"{done.records:,} records of {name} were sealed."
    )


def _begin_verify(source: Source, name: str, failed: Failed) -> None:
    source.verify(name, failed)


def _verify(_source: Source, name: str, _form: Form) -> str:
    return f"{name} is being verified: every record is read and checked."


def _resolve(source: Source, name: str, form: Form) -> str:
    _check_line_ends(form)
    key, to = form.get("key", ""), form.get("to", "")
    decision: Any = to
    scope = {part: form.get(part, "") for part in ("tenant", "topic", "group")}
    source.inbox(name).resolve(key, to=decision, **scope)
    return f"{key} {_DECIDED[to]}."


def _check_line_ends(form: Form) -> None:
    r"""Raise ``InvalidArgument`` for a key that a browser may have changed: it sends ``\n`` and ``\r`` as ``\r\n``, so
    that another key than the one on the page would be decided.
    """
    for part in ("key", "tenant", "topic", "group"):
        if "\r\n" in form.get(part, ""):
            message = f"{part} has a line end, which browsers change: decide about it with `oncelog inbox resolve`"
            raise InvalidArgument(message)


def _resolution(_source: Source, name: str, form: Form) -> str:
    """Return what would be decided, about which key. Each text of others is on one line: it cannot look like ours."""
    _check_line_ends(form)
    decided = _DECIDED.get(form.get("to", ""))
    if decided is None:
        message = f"to is {form.get('to', '')[:100]!r}, must be one of {', '.join(_DECIDED)}"
        raise InvalidArgument(message)
    scope = [f"{part} {harmless_line(form[part])}" for part in ("topic", "group", "tenant") if form.get(part)]
    return f"{harmless_line(form.get('key', ''))} {decided}.\n" + ", ".join([f"inbox {harmless_line(name)}", *scope])


def _new_settings(source: Source, name: str, form: Form) -> LogSettings:
    """Return the settings of a log that is to be made; ``InvalidArgument`` if they are none, or the log is there."""
    text = form.get("duration_s", "").strip()
    settings = check(LogSettings(window=Window(duration_s=duration_s(text))) if text else LogSettings())
    with contextlib.suppress(NotFound):
        source.log(name)
        message = f"there is a log {name!r} already"
        raise InvalidArgument(message)
    return settings


def _creation(source: Source, name: str, form: Form) -> str:
    """Return what would be created."""
    span_s = _new_settings(source, name, form).window.duration_s
    return f"It remembers an id {'as long as its record lives' if span_s is None else f'for {span_s:,.0f} s'}."


def _create(source: Source, name: str, form: Form) -> str:
    source.database.log(name, _new_settings(source, name, form), create=True)
    source.forget_names()
    return f"{name} was created."


def _check_again(name: str, form: Form) -> None:
    if form.get("again") != name:
        message = f"type the name of the log to delete it: {name}"
        raise InvalidArgument(message)


def _deletion(source: Source, name: str, form: Form) -> str:
    """Return what would be deleted."""
    _check_again(name, form)
    info = source.info(name)
    count = info.last_position + 1 - info.first_position
    return "1 record" if count == 1 else f"{count:,} records"


def _delete(source: Source, name: str, form: Form) -> str:
    _check_again(name, form)
    source.delete_log(name)
    source.forget_names()
    return f"{name} was deleted."


ACTS: dict[str, Act] = {
    "redrive": Act("queue", "Send dead letters back to their queue?", _redrive, _letters_asked),
    "discard": Act("queue", "Give dead letters up for good? They cannot be brought back.", _discard, _letters_asked),
    "pause": Act("queue", "Deliver nothing until it is resumed?", _pause),
    "resume": Act("queue", "Deliver again?", _resume),
    "truncate": Act("log", "Remove records for good? They cannot be brought back.", _truncate, _truncation),
    "seal": Act("log", "Turn closed segments into Parquet files now?", _seal),
    "verify": Act("log", "Read everything and check it?", _verify, after="/verify", begin=_begin_verify),
    "configure": Act("log", "Change the settings?", configure_log, log_changes),
    "configure_queue": Act("queue", "Change the settings?", configure_queue, queue_changes),
    "resolve": Act(
        "server", "Decide about this key? Its present holder loses it.", _resolve, _resolution, after="/inboxes"
    ),
    "create": Act("log", "Create this log?", _create, _creation, verb="make"),
    "delete": Act(
        "log",
        "Delete this log with all its records? It cannot be brought back.",
        _delete,
        _deletion,
        after="/logs",
        verb="make",
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
        async with source.noted(request, viewer, NotedAct(verb, act.kind, name, _details(form))) as failed:
            said: str = await self._pages.run(lambda: _done(act, source, name, form, failed))
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
            "lasting": verb in _LASTING,
        }
        return await self._pages.show("ask.html", viewer, title=_words(verb), **asked)

    async def server(self, _request: Request, viewer: Viewer) -> Response:
        """Show connections, tokens and the audit of a server."""
        self._pages.allowed(viewer, "server", "server", "admin")
        parts: dict[str, Any] = await self._pages.run(self._pages.source.server)
        return await self._pages.show("server.html", viewer, title="Access and audit", parts=parts)


def _done(act: Act, source: Source, name: str, form: Form, failed: Failed) -> str:
    """Do an act, or begin it; return what was done."""
    if act.begin is not None:
        act.begin(source, name, failed)
    return act.do(source, name, form)


def _details(form: Form) -> dict[str, str]:
    """Return what an act was asked with, for the audit. An empty error is one: other fields say nothing when empty."""
    own = (*_OWN, "act", "name", "tag")
    return {key: value for key, value in form.items() if (value or key == "error") and key not in own}


def _back(verb: str, act: Act) -> str:
    """Return the page of somebody who does not want an act after all."""
    return "/logs" if verb == "create" else "/inboxes" if act.kind == "server" else f"/{act.kind}"


def _words(verb: str) -> str:
    return verb.replace("_", " ")
