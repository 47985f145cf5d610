"""Asking several nodes: all at once, or one after the other, without waiting long for one that does not answer."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar

from oncelog.errors import OncelogError
from oncelog.storage.quorum.node import Node, settled

_T = TypeVar("_T")


def ask_into(
    node: Node, work: Callable[[], _T], answers: queue.SimpleQueue[_T | OncelogError], size_bytes: int = 0
) -> bool:
    """Ask a node; its answer, or its error, goes into a queue. ``False`` if the node is too far behind to be asked."""
    try:
        node.ask_aside(work, answers.put, size_bytes)
    except OncelogError as error:
        answers.put(error)
        return False
    return True


def ask_all(nodes: Sequence[Node], work: Callable[[Node], _T], enough: int | None = None) -> list[_T | OncelogError]:
    """Ask all nodes at once; return their answers, or errors, in order. Once ``enough`` answered, late ones are left.

    A request that is left may still be carried out: that is a late message, which changes nothing.
    """
    asked = [_asked(node, work) for node in nodes]
    if enough is not None:
        for node, one in zip(nodes, asked, strict=True):
            _await(one, node.patience_s)
        for one in asked:
            if sum(map(_is_good, asked)) < enough:
                _await(one, None)
    answers: list[_T | OncelogError] = []
    for node, one in zip(nodes, asked, strict=True):
        if enough is not None and not one.done():
            answers.append(node.late())
        else:
            answer = settled(one)
            answers.append(answer)
    return answers


def ask_for_each(node: Node, works: Sequence[Callable[[], _T]]) -> list[_T | OncelogError]:
    """Ask one node for several things at once; return its answers, or errors, in order. Late ones are left."""
    asked = [_asked(node, lambda _, work=work: work()) for work in works]  # type: ignore[misc]
    answers: list[_T | OncelogError] = []
    for one in asked:
        _await(one, node.patience_s)
        if one.done():
            answer = settled(one)
            answers.append(answer)
        else:
            one.cancel()
            answers.append(node.late())
    return answers


def _asked(node: Node, work: Callable[[Node], _T]) -> Future[_T]:
    try:
        return node.ask(partial(work, node))
    except OncelogError as error:
        refused: Future[_T] = Future()
        refused.set_exception(error)
        return refused


def _await(asked: Future[_T], timeout_s: float | None) -> None:
    """Wait for an answer, or an error, so long at most."""
    with contextlib.suppress(TimeoutError, CancelledError):
        asked.exception(timeout_s)


def _is_good(asked: Future[_T]) -> bool:
    return asked.done() and not asked.cancelled() and asked.exception() is None


def ask_in_turn(nodes: Sequence[Node], work: Callable[[Node], _T]) -> Iterator[tuple[Node, Callable[[], _T], bool]]:
    """Ask one node after the other, as long as the caller wants more; yield each, and what returns its answer.

    A node that rests is asked last. A node that is late is yielded at the end, when all others have answered.
    """
    late: list[tuple[Node, Future[_T]]] = []
    for node in sorted(nodes, key=lambda node: node.rests):
        asked = _asked(node, work)
        _await(asked, node.patience_s)
        if asked.done():
            yield node, asked.result, False
        else:
            node.late()  # noted now: the caller may stop here, and the next caller waits less for this node
            late.append((node, asked))
    for node, asked in late:
        _await(asked, node.patience_s)
    for node, asked in sorted(late, key=lambda one: not one[1].done()):
        yield node, asked.result, not asked.done()
