"""What a user completes on a handle is the public surface, name by name: nothing comes or goes unnoticed."""

from __future__ import annotations

import typing

import pytest

import oncelog
from oncelog import Consumer, Inbox, Log, Producer, Reader, Tail, Writer
from oncelog.connect import Database
from oncelog.queue.queue import Queue
from oncelog.streams.streams import Streams

APPEND = "append append_arrow append_batch append_many submit submit_arrow submit_batch submit_many flush"
HANDLE = "close closed"

SURFACE: dict[type, str] = {
    Database: f"{HANDLE} copy delete delete_queue log logs producer_policy queue queues set_producer_policy streams",
    Log: f"{HANDLE} audit configure end_position files find first_position forget_producer info log_id marks "
    "position_at producer_policy producers purge read read_arrow rebuild retain seal settings stage sweep tail "
    "truncate verify writer",
    Writer: f"{HANDLE} {APPEND} as_producer counts ingest last_position last_sequence last_sequence_of producer "
    "producers snapshot window_state",
    Producer: f"{HANDLE} {APPEND} last_sequence producer",
    Queue: f"{HANDLE} configure consume dead_letters groups lag partitions pause peek remove_group resume send "
    "send_many settings stats status submit trim",
    Streams: f"{HANDLE} append list read read_all submit subscribe subscribe_all version",
    Inbox: f"{HANDLE} aclose aprune counts effect erase latest look once ping prune reader resolve retention_s show",
}
"""What users see of each class, and programs are written against. What rooms ask of each other is in ``inner``."""


def _names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", SURFACE, ids=lambda kind: kind.__name__)
def test_the_surface_is_as_it_was(kind: type) -> None:
    """A method that is public by accident is called by somebody, and can never be changed again."""
    assert _names(kind) == set(SURFACE[kind].split())


@pytest.mark.parametrize("kind", [*SURFACE, Reader, Tail, Consumer], ids=lambda kind: kind.__name__)
def test_hints_can_be_resolved(kind: type) -> None:
    """Tools that read annotations (documentation, validation, completion) find every name in them."""
    for name in _names(kind):
        member = getattr(kind, name)
        if callable(member):
            typing.get_type_hints(member)


def test_handles_say_what_they_are() -> None:
    """In a debugger or a log line a handle names itself."""
    with oncelog.connect("memory://surface") as db:
        log = db.log("orders", create=True)
        with log.writer() as writer:
            producer = writer.as_producer("importer")
            for handle in (db, log, writer, producer, db.streams("events", create=True)):
                assert repr(handle).startswith("<oncelog "), repr(handle)
    assert oncelog.__version__
