"""Steps that may have to wait: written once, run with or without ``await``.

A step is a generator. It yields what a call of a driver gave back; run plainly, it is sent the same thing, and run
with ``await``, what that came to. So one piece of code serves connections of both kinds.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any, TypeVar

from oncelog.errors import InvalidArgument

T = TypeVar("T")
Steps = Generator[Any, Any, T]


def run(steps: Steps[T]) -> T:
    """Run steps to their end."""
    value: Any = None
    while True:
        try:
            value = steps.send(value)
        except StopIteration as ended:
            result: T = ended.value
            return result
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            steps.close()
            message = "this connection is an asynchronous one: use 'async with', or decorate an async function"
            raise InvalidArgument(message)


async def run_async(steps: Steps[T]) -> T:
    """Run steps to their end, awaiting what can be awaited."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            value = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as ended:
            result: T = ended.value
            return result
        error = None
        if inspect.isawaitable(value):
            try:
                value = await value
            except BaseException as raised:  # noqa: BLE001  the step decides what it means
                error = raised
