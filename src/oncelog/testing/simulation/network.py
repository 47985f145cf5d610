"""Virtual stores, and the network between them and the processes: requests are lost, late, repeated and reordered.

A store applies a request in one step, at the moment when the request arrives. A client gives up after a time; what it
asked for may arrive later all the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from oncelog.errors import NotFound, Outcome, Unavailable
from oncelog.storage.base import Chunk
from oncelog.storage.bucket.bucket import Bucket
from oncelog.storage.chunks import joined
from oncelog.testing.simulation.scheduler import Process, Scheduler, current_task

_T = TypeVar("_T")
TIMEOUT_US = 30_000_000
"""A client gives up after so long."""

_CHANGING = {"create", "delete"}
REFUSED = object()


class Weather(msgspec.Struct, kw_only=True):
    """What the network does to a request, as chances. ``slow`` requests take a hundred times as long."""

    lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    slow: float = 0.0
    late: float = 0.0
    delay_us: int = 2_000


CALM = Weather()


class VirtualStore:
    """What an object store holds. It survives every process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, pa.Buffer] = {}
        self.away = False
        self.hangs = False
        """An absent store refuses at once, or lets a client wait until it gives up."""
        self.applied: Counter[str] = Counter()

    def wipe(self) -> None:
        """Lose everything."""
        self.objects.clear()

    # Requests. Each is one step.

    def create(self, path: str, data: pa.Buffer) -> bool:
        """Store an object if nothing is there."""
        if path in self.objects:
            return False
        self.objects[path] = data
        return True

    def get(self, path: str, start: int, length: int | None) -> pa.Buffer | None:
        """Return bytes of an object."""
        found = self.objects.get(path)
        if found is None:
            return None
        start = min(start, found.size)
        return found.slice(start, found.size - start if length is None else min(length, found.size - start))

    def size(self, path: str) -> int | None:
        """Return the size of an object."""
        found = self.objects.get(path)
        return None if found is None else found.size

    def below(self, prefix: str, after: str | None) -> list[tuple[str, int]]:
        """Return paths with sizes, sorted."""
        found = [(path, data.size) for path, data in self.objects.items() if path.startswith(prefix)]
        return sorted(one for one in found if after is None or one[0] > after)

    def folders(self, prefix: str) -> list[str]:
        """Return the names between a prefix and the next slash."""
        rest = [path.removeprefix(prefix) for path in self.objects if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in rest if "/" in path})

    def delete(self, path: str) -> None:
        """Remove an object."""
        self.objects.pop(path, None)


class Network:
    """Carries requests from processes to stores. The seed decides what becomes of each."""

    def __init__(self, scheduler: Scheduler, seed: str) -> None:
        self.scheduler = scheduler
        self.weather = CALM
        self.cut: set[tuple[str, str]] = set()
        """Which process cannot reach which store."""
        self._random = random.Random(f"network {seed}")

    def ask(self, process: Process, store: VirtualStore, kind: str, path: str, apply: Callable[[], _T]) -> _T:
        """Send a request and wait for its answer. ``Unavailable`` when none comes."""
        task = current_task()
        assert task is not None
        scheduler, weather, chance = self.scheduler, self.weather, self._random.random
        answers: list[Any] = []
        gone = False

        def answer(result: object) -> None:
            if not gone and not answers:
                answers.append(result)
                scheduler.wake(task)

        def arrive(*, is_answered: bool) -> None:
            if (process.name, store.name) in self.cut or (store.away and store.hangs):
                return
            if store.away:
                answer(REFUSED)
                return
            store.applied[kind] += 1
            result = apply()
            scheduler.note(f"{process.name} {kind} {store.name}/{path}")
            if is_answered:
                scheduler.after(self._delay_us(weather), lambda: answer((result,)))

        is_lost, is_repeated, is_late = chance() < weather.lost, chance() < weather.repeated, chance() < weather.late
        if not is_lost:
            delay_us = self._delay_us(weather) + (self._random.randrange(2 * TIMEOUT_US) if is_late else 0)
            scheduler.after(delay_us, lambda: arrive(is_answered=chance() >= weather.answer_lost))
        if is_repeated:
            scheduler.after(self._random.randrange(TIMEOUT_US // 10), lambda: arrive(is_answered=True))
        patience_us = TIMEOUT_US if not (is_lost and chance() < 0.5) else 10_000  # noqa: PLR2004  reset, or silence
        scheduler.wait(patience_us)
        gone = True
        if answers and answers[0] is not REFUSED:
            found: _T = answers[0][0]
            return found
        outcome: Outcome = "unknown" if kind in _CHANGING else "not written"
        message = f"{store.name}/{path}: {'connection refused' if answers else 'no answer'} to {kind}"
        raise Unavailable(message, outcome=outcome)

    def _delay_us(self, weather: Weather) -> int:
        longest_us = weather.delay_us * (100 if self._random.random() < weather.slow else 1)
        return self._random.randrange(longest_us // 4, longest_us)


class VirtualBucket(Bucket):
    """A virtual store as one process reaches it: what ``obstore`` is elsewhere."""

    def __init__(self, network: Network, process: Process, store: VirtualStore, url: str) -> None:
        self.url = url
        self.requests: Counter[str] = Counter()
        self._network = network
        self._process = process
        self._virtual = store

    def _asked(self, kind: str, path: str, apply: Callable[[], _T]) -> _T:
        self.requests[kind] += 1
        return self._network.ask(self._process, self._virtual, kind, path, apply)

    def create(self, path: str, data: Sequence[Chunk]) -> bool:
        """Store an object if nothing is there."""
        content = pa.py_buffer(joined(data).to_pybytes())
        return self._asked("create", path, lambda: self._virtual.create(path, content))

    def get(self, path: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return bytes of an object."""
        found = self._asked("get", path, lambda: self._virtual.get(path, start, length))
        if found is None:
            message = f"{self.url}/{path}: no such object"
            raise NotFound(message)
        return found

    def size(self, path: str) -> int | None:
        """Return the size of an object."""
        return self._asked("head", path, lambda: self._virtual.size(path))

    def below(self, prefix: str, after: str | None = None) -> list[tuple[str, int]]:
        """Return paths with sizes, sorted."""
        return self._asked("list", prefix, lambda: self._virtual.below(prefix, after))

    def folders(self, prefix: str) -> list[str]:
        """Return the names between a prefix and the next slash."""
        return self._asked("list", prefix, lambda: self._virtual.folders(prefix))

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._asked("delete", path, lambda: self._virtual.delete(path))
