"""The walk over every state of the model of a segment: each state is one integer, and is looked at once.

``_packed`` makes one integer of a row (mixed radix), with the nodes sorted: nodes are alike, so one order stands for
all orders (symmetry reduction: Ip and Dill, "Better verification through symmetry", 1996). The walk is breadth-first
over a table of those integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.models.segment_model import (
    END,
    LACKING,
    PHASE,
    RESCUED,
    SEALED,
    SEEN,
    SHOWN,
    STARTED,
    TAIL,
    Model,
    Row,
    compiled,
    damage,
    holders,
    kinds,
    known_at,
    node_at,
    recover,
    recoverer_at,
    register_at,
    seal,
    show,
    wipe,
    write,
)

FINDINGS = (
    None,
    "a block that was acknowledged or shown is behind the tail",
    "a block that counts is held by too few",
    "a decision was changed",
)
_SOUND, _LOST, _TOO_FEW, _CHANGED = range(len(FINDINGS))


@compiled
def _wrong(model: Model, row: Row) -> int:
    """Return what a state breaks."""
    if row[TAIL] == 0:
        return _SOUND
    tail = row[TAIL] - 1
    if row[SHOWN] > tail:
        return _LOST
    wiped = 0
    for node in range(model.width):
        wiped += row[node_at(model, node)]
    for number in range(0 if row[SEALED] else tail):
        rescued = row[RESCUED] & (1 << number)
        if not rescued and holders(model, row, number) < model.ack - wiped:
            return _TOO_FEW
    return _SOUND


@compiled
def _columns(model: Model) -> int:
    """Return how many values the digits of one node can have together."""
    registers = kinds(model) ** (model.numbers + 1)
    return int((2 if model.wipes else 1) * registers * (registers + SEEN) ** model.recoverers)


@compiled
def _packed(model: Model, row: Row, nodes: Row) -> int:
    """Make one integer of a row, with its nodes sorted."""
    views = kinds(model) ** (model.numbers + 1) + SEEN
    for node in range(model.width):
        column = row[node_at(model, node)]
        for number in range(model.numbers + 1):
            column = kinds(model) * column + row[register_at(model, node, number)]
        for which in range(model.recoverers):
            column = views * column + row[known_at(model, node, which)]
        place = node
        while place and nodes[place - 1] > column:
            nodes[place] = nodes[place - 1]
            place -= 1
        nodes[place] = column
    packed = 0
    for node in range(model.width):
        packed = packed * _columns(model) + nodes[node]
    for which in range(model.recoverers):
        at = recoverer_at(which)
        packed = 3 * packed + row[at + PHASE]
        packed = (model.numbers + 1) * packed + row[at + END]
        packed = (1 << model.numbers) * packed + row[at + LACKING]
    packed = 2 * packed + row[STARTED]
    packed = (model.numbers + 2) * packed + row[TAIL]
    packed = 2 * packed + row[SEALED]
    packed = (model.numbers + 1) * packed + row[SHOWN]
    return int((1 << model.numbers) * packed + (0 if row[SEALED] else row[RESCUED]))


@compiled
def _unpacked(model: Model, packed: int, row: Row) -> None:
    """Fill a row from its integer."""
    views = kinds(model) ** (model.numbers + 1) + SEEN
    packed, row[RESCUED] = divmod(packed, 1 << model.numbers)
    packed, row[SHOWN] = divmod(packed, model.numbers + 1)
    packed, row[SEALED] = divmod(packed, 2)
    packed, row[TAIL] = divmod(packed, model.numbers + 2)
    packed, row[STARTED] = divmod(packed, 2)
    for which in range(model.recoverers - 1, -1, -1):
        at = recoverer_at(which)
        packed, row[at + LACKING] = divmod(packed, 1 << model.numbers)
        packed, row[at + END] = divmod(packed, model.numbers + 1)
        packed, row[at + PHASE] = divmod(packed, 3)
    for node in range(model.width - 1, -1, -1):
        packed, column = divmod(packed, _columns(model))
        for which in range(model.recoverers - 1, -1, -1):
            column, row[known_at(model, node, which)] = divmod(column, views)
        for number in range(model.numbers, -1, -1):
            column, row[register_at(model, node, number)] = divmod(column, kinds(model))
        row[node_at(model, node)] = column


@compiled
def _slot(table: NDArray[np.int64], packed: int) -> int:
    """Return where an integer is in a table of open addressing, or where it belongs."""
    mixed = (packed ^ (packed >> 31)) * 0x5851F42D4C957F2D
    slot = (mixed ^ (mixed >> 29)) & (table.size - 1)
    while table[slot] not in (-1, packed):
        slot = (slot + 1) & (table.size - 1)
    return slot


@compiled
def _grown(table: NDArray[np.int64], states: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a table of twice the size."""
    larger = np.full(2 * table.size, -1, np.int64)
    for packed in states:
        larger[_slot(larger, packed)] = packed
    return larger


@compiled
def _walked(model: Model) -> tuple[int, int]:
    row = np.zeros(node_at(model, model.width), np.int64)
    out = np.zeros((256, row.size), np.int64)
    nodes = np.zeros(model.width, np.int64)
    table = np.full(1 << 16, -1, np.int64)
    states = np.zeros(1 << 15, np.int64)
    table[_slot(table, 0)] = 0
    count, looked = 1, 0
    while looked < count:
        _unpacked(model, states[looked], row)
        looked += 1
        found = _wrong(model, row)
        if found != _SOUND:
            return count, found
        made = write(model, row, out, 0)
        made = show(model, row, out, made)
        made = wipe(model, row, out, made)
        made = damage(model, row, out, made)
        made = recover(model, row, out, made)
        made = seal(model, row, out, made)
        for one in range(made):
            if row[TAIL] and out[one, TAIL] != row[TAIL]:
                return count, _CHANGED
            packed = _packed(model, out[one], nodes)
            slot = _slot(table, packed)
            if table[slot] != packed:
                if count == states.size:
                    table = _grown(table, states)
                    slot = _slot(table, packed)
                    states = np.concatenate((states, np.zeros(count, np.int64)))
                table[slot] = states[count] = packed
                count += 1
    return count, _SOUND


def walked(model: Model) -> tuple[int, str | None]:
    """Walk every state that can be reached; return how many there are, and what the first wrong one breaks."""
    assert _integers(model) < 1 << 63, "a state of this model does not fit into 63 bits"
    states, found = _walked(model)
    return states, FINDINGS[found]


def _integers(model: Model) -> int:
    """Return one more than the largest integer that a state of a model can have."""
    recoverer = 3 * (model.numbers + 1) << model.numbers
    segment = 4 * (model.numbers + 2) * (model.numbers + 1) << model.numbers
    return int(_columns(model) ** model.width * recoverer**model.recoverers * segment)
