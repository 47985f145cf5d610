"""Which verb on which name: every cell of the table."""

from __future__ import annotations

import pytest

from oncelog.errors import InvalidArgument, NotAllowed, NotFound, OncelogError
from oncelog.server.security import scopes
from oncelog.server.security.scopes import VERBS, Kind, Scope, Verb

NAMES = (
    "a",
    "ab",
    "a/b",
    "a/b/c",
    "b/a",
    "conflicts.a",
    "conflicts.ab",
    "queue/a/0",
    "queue/ab/0",
    "queue/dlq.a/0",
    "_audit",
)
COVERED: dict[str, set[str]] = {
    "a": {"a", "conflicts.a", "queue/a/0", "queue/dlq.a/0"},
    "ab": {"ab", "conflicts.ab", "queue/ab/0"},
    "a/*": {"a/b", "a/b/c"},
    "a/b": {"a/b"},
    "*": set(NAMES),
}


def _scope(verb: Verb, pattern: str) -> Scope:
    return scopes.parse(f"{verb}:{pattern}")


def _expected(given: Verb, pattern: str, verb: Verb, name: str) -> type[OncelogError] | None:
    """Say what the rules of the docs say, in another way than the code does."""
    if name not in COVERED[pattern]:
        return NotFound
    if name == "_audit":
        if given != "admin":
            return NotFound
        return None if verb in ("look", "read") else NotAllowed
    if name.startswith("queue/") and verb in ("append", "consume"):
        return NotAllowed
    return None if given == verb or (given, verb) == ("read", "look") else NotAllowed


@pytest.mark.parametrize("pattern", COVERED)
@pytest.mark.parametrize("given", VERBS)
def test_every_cell_of_verb_scope_and_name(given: Verb, pattern: str) -> None:
    """A scope gives its verbs on the names it covers, and nothing else: a name outside is not there at all."""
    for verb in VERBS:
        for name in NAMES:
            found = scopes.decide([_scope(given, pattern)], verb, "log", name)
            expected = _expected(given, pattern, verb, name)
            assert type(found) is (expected or type(None)), (given, pattern, verb, name, found)


@pytest.mark.parametrize(("pattern", "name", "covered"), [
    ("emails", "emails", True), ("emails", "dlq.emails", True), ("emails", "emails2", False),
    ("shop/*", "shop/emails", True), ("shop/*", "dlq.shop/emails", True), ("shop", "shop/emails", False),
    ("dlq.emails", "dlq.emails", False),
])  # fmt: skip
def test_a_queue_is_judged_with_its_dead_letters(pattern: str, name: str, *, covered: bool) -> None:
    """Who may consume a queue may not thereby reach another, and its dead letters are the queue's."""
    found = scopes.decide([_scope("consume", pattern)], "consume", "queue", name)
    assert (found is None) is covered


def test_what_is_not_there_and_what_is_not_allowed_are_one_answer() -> None:
    """A tenant cannot learn which names another has: the text is that of a log that is not there."""
    for kind, name in (("log", "b/secret"), ("queue", "b/secret")):
        hidden = scopes.decide([_scope("admin", "a/*")], "read", kind, name)  # type: ignore[arg-type]
        assert str(hidden) == str(scopes.missing(kind, name))  # type: ignore[arg-type]


@pytest.mark.parametrize("making", [True, False])
def test_the_log_face_makes_and_deletes_no_log_of_a_queue(*, making: bool) -> None:
    """Deleting one partition behind the queue's back would lose messages; configuring it is the way to change it."""
    found = scopes.decide([_scope("admin", "a")], "admin", "log", "queue/a/0", making=making)
    assert isinstance(found, NotAllowed) is making


@pytest.mark.parametrize("verb", VERBS)
def test_what_concerns_the_whole_server_needs_everything(verb: Verb) -> None:
    """A scope on a namespace does not change policies, nor read metrics of others."""
    kind: Kind = "server"
    assert isinstance(scopes.decide([_scope(verb, "a/*")], verb, kind, ""), NotAllowed)
    assert scopes.decide([_scope(verb, "*")], verb, kind, "") is None


@pytest.mark.parametrize(
    "text", ["read", "read:", ":a", "write:a", "read:a*", "read:a/*/b", "read:*/a", "read:a/../b", "read:**"]
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    """A slip in a scope must not become a wider one."""
    with pytest.raises(InvalidArgument, match="scope"):
        scopes.parse(text)


def test_a_scope_is_written_as_it_is_read() -> None:
    """The token file and the list show what was given."""
    for text in ("read,append:shop/*", "look:*", "admin:a"):
        assert str(scopes.parse(text)) == text
