"""An exhaustive model of the registers of one segment: every order of messages, crashes and recoveries is walked.

It is the protocol of ``storage/quorum/registers.py`` without its I/O: a writer offers blocks, nodes take them at any
time or never, recoverers list nodes one by one, fence, rescue and decide; any actor may stop at any moment (it is then
simply never scheduled again). Nodes are write-once registers. The model must find nothing, and each planted mistake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

EMPTY, BLOCK, FENCE = 0, 1, 2
Register = tuple[int, ...]
Nodes = tuple[Register, ...]
"""What each node holds, by number."""


class Recoverer(NamedTuple):
    """Where one recovery is: what it has listed of each node, and what each node said to its fence."""

    views: tuple[Register | None, ...]
    end: int | None = None
    kinds: tuple[int, ...] = ()
    done: bool = False


class State(NamedTuple):
    """Everything there is."""

    nodes: Nodes
    offered: int
    acked: int
    recoverers: tuple[Recoverer, ...]
    rescued: frozenset[int]
    tail: int | None


class Model(NamedTuple):
    """A quorum of ``width`` nodes and ``ack`` acks, with ``numbers`` blocks in flight, and a planted ``mistake``."""

    width: int = 3
    ack: int = 2
    numbers: int = 1
    recoverers: int = 1
    mistake: str = ""

    @property
    def fences(self) -> int:
        """How many fences mean that a block can never be chosen."""
        return self.width - self.ack + (0 if self.mistake == "one fence too few" else 1)

    def first(self) -> State:
        """Return the state in which nothing has happened."""
        nodes = tuple((EMPTY,) * (self.numbers + 1) for _ in range(self.width))
        idle = Recoverer((None,) * self.width)
        return State(nodes, 0, 0, (idle,) * self.recoverers, frozenset(), None)

    def next(self, state: State) -> Iterator[State]:
        """Yield all states that one step can lead to."""
        yield from self._writer(state)
        for number in range(state.offered):
            for node in range(self.width):
                if state.nodes[node][number] == EMPTY or (self.mistake == "a block overwrites a fence"):
                    yield state._replace(nodes=_put(state.nodes, node, number, BLOCK))
        for which, one in enumerate(state.recoverers):
            if not one.done:
                yield from self._recover(state, which, one)

    def _writer(self, state: State) -> Iterator[State]:
        if state.offered < self.numbers:
            yield state._replace(offered=state.offered + 1)
        needed = self.ack - (self.mistake == "one ack too few")
        if state.acked < state.offered and _count(state.nodes, state.acked, BLOCK) >= needed:
            yield state._replace(acked=state.acked + 1)

    def _recover(self, state: State, which: int, one: Recoverer) -> Iterator[State]:
        if one.end is None:
            for node in range(self.width):
                if one.views[node] is None:
                    views = (*one.views[:node], state.nodes[node], *one.views[node + 1 :])
                    yield _with(state, which, one._replace(views=views))
            if sum(view is not None for view in one.views) >= self.fences:
                yield from self._walk(state, which, one)
        else:
            yield from self._fence(state, which, one, one.end)

    def _walk(self, state: State, which: int, one: Recoverer) -> Iterator[State]:
        """Keep every number of which a copy was seen, up to the first without one, or with a quorum of fences."""
        seen = [view for view in one.views if view is not None]
        number = 0
        while number < self.numbers and _fences(seen, number) < self.fences and _blocks(seen, number):
            number += 1
        if _fences(seen, number) >= self.fences:
            yield self._decided(state, which, one, number)
        else:
            yield _with(state, which, one._replace(end=number, kinds=(EMPTY,) * self.width))

    def _fence(self, state: State, which: int, one: Recoverer, end: int) -> Iterator[State]:
        for node in range(self.width):
            if one.kinds[node] == EMPTY:
                held = state.nodes[node][end]
                if held == EMPTY or self.mistake == "a fence overwrites a block":
                    held = FENCE
                nodes = _put(state.nodes, node, end, held)
                kinds = (*one.kinds[:node], held, *one.kinds[node + 1 :])
                yield _with(state._replace(nodes=nodes), which, one._replace(kinds=kinds))
        if BLOCK in one.kinds:
            yield _with(state, which, Recoverer((None,) * self.width))  # look again
        elif one.kinds.count(FENCE) >= self.fences:
            yield self._decided(state, which, one, end)

    def _decided(self, state: State, which: int, one: Recoverer, end: int) -> State:
        """Rescue what too few nodes were seen to hold; the first who stores the tail decides."""
        seen = [view for view in one.views if view is not None]
        lacking = {number for number in range(end) if _blocks(seen, number) < self.ack}
        rescued = state.rescued if self.mistake == "nothing is rescued" else state.rescued | lacking
        tail = end if state.tail is None or self.mistake == "the last decides" else state.tail
        return _with(state._replace(rescued=rescued, tail=tail), which, one._replace(done=True))

    def wrong(self, state: State) -> str | None:
        """Return what a state breaks: an acknowledged block is lost, or a kept one does not survive a lost node."""
        if state.tail is None:
            return None
        if state.acked > state.tail:
            return "an acknowledged block is behind the tail"
        for number in range(state.tail):
            if number not in state.rescued and _count(state.nodes, number, BLOCK) < self.ack:
                return "a block that counts is held by too few"
        return None


def _put(nodes: Nodes, node: int, number: int, value: int) -> Nodes:
    changed = (*nodes[node][:number], value, *nodes[node][number + 1 :])
    return (*nodes[:node], changed, *nodes[node + 1 :])


def _with(state: State, which: int, one: Recoverer) -> State:
    return state._replace(recoverers=(*state.recoverers[:which], one, *state.recoverers[which + 1 :]))


def _count(nodes: Nodes, number: int, value: int) -> int:
    return sum(node[number] == value for node in nodes)


def _blocks(views: list[Register], number: int) -> int:
    return sum(view[number] == BLOCK for view in views)


def _fences(views: list[Register], number: int) -> int:
    return sum(view[number] == FENCE for view in views)


def walked(model: Model) -> tuple[int, str | None]:
    """Walk every state that can be reached; return how many there are, or what the first wrong one breaks."""
    first = model.first()
    seen, ahead = {first}, deque([first])
    while ahead:
        state = ahead.popleft()
        broken = model.wrong(state)
        if broken is not None:
            return len(seen), broken
        for after in model.next(state):
            if state.tail is not None and after.tail != state.tail:
                return len(seen), "a decision was changed"
            if after not in seen:
                seen.add(after)
                ahead.append(after)
    return len(seen), None


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(width=2, ack=2),
        pytest.param(Model(numbers=2), marks=pytest.mark.soak),
        pytest.param(Model(width=4, ack=3), marks=pytest.mark.soak),
        pytest.param(Model(recoverers=2), marks=pytest.mark.soak),
        pytest.param(Model(width=5, ack=3), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_no_order_of_steps_loses_or_splits_anything(model: Model) -> None:
    """Acknowledged blocks are before the tail, kept blocks survive the loss of a node, and a decision stands."""
    states, broken = walked(model)
    assert broken is None
    assert states > 100


@pytest.mark.parametrize(
    ("mistake", "model"),
    [
        ("one fence too few", Model()),
        ("one ack too few", Model()),
        ("nothing is rescued", Model()),
        ("a fence overwrites a block", Model()),
        ("a block overwrites a fence", Model()),
    ],
)
def test_each_planted_mistake_is_found(mistake: str, model: Model) -> None:
    """The model can complain: each of these one-line mistakes breaks a promise in some order of steps."""
    _, broken = walked(model._replace(mistake=mistake))
    assert broken is not None
