"""The remote classes are the embedded ones: the same methods, the same signatures, nothing left behind."""

from __future__ import annotations

import inspect

import pytest

from oncelog.client.consumer import RemoteConsumer, RemoteDelivery
from oncelog.client.database import DATABASE_ABSENT, RemoteDatabase
from oncelog.client.log import LOG_ABSENT, READER_ABSENT, TAIL_ABSENT, RemoteLog
from oncelog.client.queue import QUEUE_ABSENT, RemoteDeadLetters, RemoteQueue
from oncelog.client.reading import RemoteReader, RemoteTail
from oncelog.client.streams import RemoteStreams, RemoteSubscription
from oncelog.client.writer import WRITER_ABSENT, RemoteProducer, RemoteWriter

REMOTE: dict[type, tuple[str, ...]] = {
    RemoteDatabase: DATABASE_ABSENT,
    RemoteLog: LOG_ABSENT,
    RemoteWriter: WRITER_ABSENT,
    RemoteProducer: (),
    RemoteReader: READER_ABSENT,
    RemoteTail: TAIL_ABSENT,
    RemoteStreams: (),
    RemoteSubscription: (),
    RemoteQueue: QUEUE_ABSENT,
    RemoteConsumer: ("is_of", "terms"),
    RemoteDelivery: (),
    RemoteDeadLetters: (),
}
"""Each remote class, and what of the embedded one is no part of the public surface."""

APPENDING = {"append", "append_many", "append_batch", "append_arrow", "flush"}
SUBMITTING = {"submit", "submit_many", "submit_batch", "submit_arrow"}
SHARED: dict[type, set[str]] = {
    RemoteProducer: {"producer", *APPENDING, *SUBMITTING},
    RemoteReader: {"to_pandas", "to_polars"},
    RemoteTail: {"take"},
    RemoteSubscription: {"poll"},
    RemoteQueue: {"send", "settings"},
    RemoteConsumer: {"ack", "nack", "submit_ack"},
    RemoteDelivery: {"ack", "nack", "extend", "submit_ack", "submit_nack", "submit_extend"},
}
"""What an embedded class does for its remote one as it is: it is made of other public calls, or of parts that the
remote class has.
"""


def public(kind: type) -> dict[str, object]:
    """Return the public members of a class, its own and inherited ones."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name: inspect.getattr_static(kind, name) for name in names}


def spelled(signature: inspect.Signature) -> str:
    """Return a signature with its annotations, however a module names what it imports."""
    return str(signature).replace("oncelog.", "")


@pytest.mark.parametrize("remote", REMOTE, ids=lambda kind: kind.__name__)
def test_signatures_are_the_same(remote: type) -> None:
    """A program that is written for one runs with the other: every argument, default and annotation is the same."""
    embedded = remote.__bases__[-1]  # before it are parts that remote classes share
    for name, member in public(embedded).items():
        if name in REMOTE[remote] or not callable(member):
            continue
        here, there = inspect.signature(getattr(remote, name)), inspect.signature(getattr(embedded, name))
        assert spelled(here) == spelled(there), f"{embedded.__name__}.{name}"


@pytest.mark.parametrize("remote", REMOTE, ids=lambda kind: kind.__name__)
def test_nothing_of_the_embedded_class_is_left(remote: type) -> None:
    """What the remote class does not say itself would reach for a disk that is not there."""
    embedded = remote.__bases__[-1]  # before it are parts that remote classes share
    inherited = {name for name in public(embedded) if inspect.getattr_static(remote, name) is public(embedded)[name]}
    slots = {name for name in inherited if inspect.ismemberdescriptor(public(embedded)[name])}
    assert inherited - slots - SHARED.get(remote, set()) - {"closed", *REMOTE[remote]} == set()


@pytest.mark.parametrize("remote", REMOTE, ids=lambda kind: kind.__name__)
def test_what_is_absent_is_there_embedded(remote: type) -> None:
    """The list of exceptions names nothing that is gone, and does not grow by itself."""
    embedded = remote.__bases__[-1]  # before it are parts that remote classes share
    assert set(REMOTE[remote]) <= set(dir(embedded))


@pytest.mark.parametrize("remote", REMOTE, ids=lambda kind: kind.__name__)
def test_every_method_has_a_docstring_of_its_own_or_the_embedded_one(remote: type) -> None:
    """``help()`` shows what a method does. A remote method without a docstring inherits the embedded one."""
    methods = [name for name, member in public(remote).items() if callable(member) and name not in REMOTE[remote]]
    assert [name for name in methods if not inspect.getdoc(getattr(remote, name))] == []
