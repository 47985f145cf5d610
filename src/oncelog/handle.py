"""A handle knows whether it may still be used: it was not closed, and its process is the one that made it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from oncelog.errors import Closed


class _Generation:
    """Counts the forks that led to this process."""

    number = 0


def _forked() -> None:
    _Generation.number += 1


os.register_at_fork(after_in_child=_forked)


class Handle:
    """What can be closed, and used in a ``with``. Native clients and locks do not survive a fork, so neither does
    this.
    """

    _what = "handle"

    def __init__(self) -> None:
        self._generation = _Generation.number
        self._closed = False

    def _check_process(self) -> None:
        if self._generation != _Generation.number:
            message = f"this {self._what} belongs to the process before a fork: open a new one here"
            raise Closed(message)

    def _check_usable(self) -> None:
        if self._generation != _Generation.number:
            self._check_process()
        if self._closed:
            message = f"this {self._what} is closed"
            raise Closed(message)

    @property
    def _of_this_process(self) -> bool:
        return self._generation == _Generation.number

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._closed

    def close(self) -> None:
        """Close; may be repeated."""
        self._closed = True

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
