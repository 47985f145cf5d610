"""What the runs say of ids: asked outside the writer's lock, then checked against runs that were built since.

Ids move one way: from the writer's table into a run, when that is *built*. So who found an id neither in the runs nor,
later and with the lock held, in the table may take it for new only if no run was built in between. Merging moves no id
out of the table, and does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from oncelog.errors import CorruptionError, NotFound, Unavailable
from oncelog.log.memory.quest import Found
from oncelog.log.memory.run_set import Hit, RunSet

_ATTEMPTS_MAX = 8
_T = TypeVar("_T")


class View(NamedTuple):
    """The runs at one moment, how many were built before it, and the log's first position. Replaced as one."""

    runs: RunSet
    built: int
    first_position: int
    any: bool


class Looked(NamedTuple):
    """What the runs said, and how many of them had been built then. ``found`` is ``None`` if they know none of them."""

    built: int
    found: Found | None


class LookedOne(NamedTuple):
    """The same, of one id. ``unsure``: what may have it is damaged, so it is not known to be absent."""

    built: int
    hit: Hit | None
    unsure: CorruptionError | None = None


class Recall:
    """The runs as one writer sees them. ``view`` changes only with the committer's lock held; anybody may read it."""

    def __init__(self, runs: RunSet, first_position: int) -> None:
        self.view = View(runs, 0, first_position, bool(runs.runs))
        self.looked = 0
        """How many ids were looked up, about: threads count without a lock."""
        self.renew: Callable[[RunSet], None] = lambda _: None
        """Makes the view show the newest runs; called when an object of a set is gone."""
        self.repair: Callable[[], None] = lambda: None
        """Has runs made again in which damage was seen; it does not wait."""

    def show(self, runs: RunSet, *, built: bool) -> None:
        """Show other runs from now on; ``built``: one of them has ids that were in the table."""
        self.view = View(runs, self.view.built + built, self.view.first_position, bool(runs.runs))

    def begin_at(self, first_position: int) -> None:
        """Let answers before a position, to which the log was truncated, count for nothing."""
        self.view = self.view._replace(first_position=max(self.view.first_position, first_position))

    def look(self, keys: NDArray[np.uint64]) -> Looked:
        """Look identities up. ``Unavailable`` when storage does not answer: then nothing is known of them."""
        view = self.view  # once: a run may be built between two looks
        if not view.any:
            return Looked(view.built, None)
        self.looked += len(keys)
        view, found = self._ask(lambda view: view.runs.find_any(keys, view.first_position))
        if found is not None and found.errors:
            self.repair()
        return Looked(view.built, found)

    def look_one(self, high: int, low: int) -> LookedOne:
        """Look one identity up."""
        view = self.view
        self.looked += 1
        try:
            return LookedOne(view.built, view.runs.find_one(high, low, view.first_position))
        except CorruptionError as error:
            self.repair()
            return LookedOne(view.built, None, error)
        except NotFound:
            view, hit = self._ask(lambda view: view.runs.find_one(high, low, view.first_position))
            return LookedOne(view.built, hit)

    def is_current(self, looked: Looked | LookedOne | None) -> bool:
        """Tell whether what was not found in the runs is in none that was built since."""
        return looked is None or looked.built == self.view.built

    def timestamps_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when records that the runs cover were stored, -1 for those that they do not."""
        _, found = self._ask(lambda view: view.runs.timestamps_of(positions))
        return found

    def _ask(self, question: Callable[[View], _T]) -> tuple[View, _T]:
        """Return the answer of the runs, and the view that gave it; of newer ones if the first were merged away."""
        for _ in range(_ATTEMPTS_MAX):
            view = self.view
            try:
                return view, question(view)
            except NotFound as error:
                self.renew(view.runs)
                if self.view.runs is view.runs:
                    self.repair()
                    message = f"{error}, though the log remembers ids there: run `oncelog rebuild`"
                    raise CorruptionError(message) from error
            except CorruptionError:
                self.repair()
                raise
        message = f"runs were merged away in each of {_ATTEMPTS_MAX} attempts to look ids up: try again"
        raise Unavailable(message)
