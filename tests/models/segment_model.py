"""An exhaustive model of the registers of one segment: it walks every order of messages, crashes and recoveries.

The model is the protocol of ``storage/quorum/registers.py`` without its I/O. A writer starts the segment and offers
blocks. Nodes take a block at any time, again, or never. Recoverers list nodes one by one, fence, rescue and decide.
The decided segment is sealed, and its blocks are removed. An actor may stop at any moment: the model then never
schedules that actor again. A wipe empties a node and takes its identity away. Damage makes a copy unreadable.

A state is a row of small digits. ``_packed`` makes one integer of the row (mixed radix), with the nodes sorted: nodes
are alike, so one order stands for all orders (symmetry reduction: Ip and Dill, "Better verification through symmetry",
1996). The walk is breadth-first over a table of those integers. numba compiles all functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

_Function = TypeVar("_Function", bound=Callable[..., Any])
Row = NDArray[np.int64]
"""The segment (5 digits), 3 digits for each recoverer, then the digits of each node."""

STARTED, TAIL, SEALED, SHOWN, RESCUED = range(5)
"""The digits of the segment. TAIL is 0 until a tail is decided, then the tail + 1. SHOWN blocks were acknowledged to a
producer, or shown to a reader. RESCUED is a set of bits, one for each number."""
_SEGMENT = 5

PHASE, END, LACKING = range(3)
"""The digits of a recoverer. LACKING is the set of kept numbers of which too few copies were listed."""
_RECOVERER = 3
LISTING, FENCING, DONE = range(3)

EMPTY, BLOCK, FENCE, DAMAGED, ASKED = range(5)
"""What a register holds. A wiped node keeps the digits that it had: they say what its writer may have counted. A
damaged copy says that its writer may have counted it, and nothing else.

A recoverer that fences knows the same of each node. ASKED is known only by the one that checks identities too early."""

UNSEEN, CHECKED, SEEN = range(3)
"""What a recoverer knows of a node while it lists. From SEEN on, the rest is what the registers held."""

MISTAKES = (
    "none",
    "a fence too few is a quorum",
    "an ack too few",
    "a block on few nodes is dropped",
    "nothing is rescued",
    "fences are deleted with the blocks",
    "a wiped node counts",
    "the identity is checked only before",
    "the writer counts a wiped node",
    "a reader shows a block of one node",
    "acknowledged out of order",
    "no tombstone",
    "a fence overwrites a block",
    "a block overwrites a fence",
    "the last decides",
    "a damaged copy counts",
    "a damaged copy is a fence",
)
"""What can be planted, by number. The first is no mistake."""
(
    _NONE,
    _FENCE_TOO_FEW,
    _ACK_TOO_FEW,
    _FEW_DROPPED,
    _NOT_RESCUED,
    _FENCES_DELETED,
    _WIPED_COUNTS,
    _CHECKED_BEFORE,
    _WRITER_COUNTS_WIPED,
    _SHOWN_AT_ONE,
    _OUT_OF_ORDER,
    _NO_TOMBSTONE,
    _FENCE_OVERWRITES,
    _BLOCK_OVERWRITES,
    _LAST_DECIDES,
    _DAMAGED_COUNTS,
    _DAMAGED_IS_FENCE,
) = range(len(MISTAKES))

FINDINGS = (
    None,
    "a block that was acknowledged or shown is behind the tail",
    "a block that counts is held by too few",
    "a decision was changed",
)
_SOUND, _LOST, _TOO_FEW, _CHANGED = range(len(FINDINGS))


class Model(NamedTuple):
    """A quorum of ``width`` nodes and ``ack`` acks, with ``numbers`` blocks in flight, and a planted ``mistake``."""

    width: int = 3
    ack: int = 2
    numbers: int = 1
    recoverers: int = 1
    wipes: int = 0
    mistake: int = _NONE
    damages: int = 0


def _compiled(function: _Function) -> _Function:
    return cast("_Function", numba.njit(function))


@_compiled
def _kinds(model: Model) -> int:
    """Return how many kinds of contents a register can have: only a model with damage knows DAMAGED."""
    return 4 if model.damages else 3


@_compiled
def _fences_needed(model: Model) -> int:
    """Return Q: how many fences mean that a block can never be chosen."""
    return model.width - model.ack + (0 if model.mistake == _FENCE_TOO_FEW else 1)


@_compiled
def _recoverer(which: int) -> int:
    return _SEGMENT + _RECOVERER * which


@_compiled
def _node(model: Model, which: int) -> int:
    """Return where the digits of a node begin: wiped, its registers, and what each recoverer knows of it."""
    return _SEGMENT + _RECOVERER * model.recoverers + which * (2 + model.numbers + model.recoverers)


@_compiled
def _known(model: Model, node: int, recoverer: int) -> int:
    """Return where a node's digit is of what a recoverer knows of the node."""
    return _node(model, node) + 2 + model.numbers + recoverer


@_compiled
def _register(model: Model, node: int, number: int) -> int:
    return _node(model, node) + 1 + number


@_compiled
def _holders(model: Model, row: Row, number: int) -> int:
    """Count the nodes that hold a block."""
    found = 0
    for node in range(model.width):
        if row[_register(model, node, number)] == BLOCK and not row[_node(model, node)]:
            found += 1
    return found


@_compiled
def _counted(model: Model, row: Row, number: int) -> int:
    """Count the nodes that hold a block, or held it before a wipe or damage: a writer may have counted these."""
    found = 0
    for node in range(model.width):
        found += row[_register(model, node, number)] in (BLOCK, DAMAGED)
    return found


# The writer, the readers, and the wipes.


@_compiled
def _write(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    if not row[STARTED]:
        if row[TAIL] == 0 or model.mistake == _NO_TOMBSTONE:
            out[made] = row
            out[made, STARTED] = 1
            made += 1
        return made
    for node in range(model.width):
        wiped = row[_node(model, node)]
        if wiped and model.mistake != _WRITER_COUNTS_WIPED:
            continue
        for number in range(model.numbers):
            at = _register(model, node, number)
            overwrites = wiped or model.mistake == _BLOCK_OVERWRITES
            if row[at] == EMPTY or (row[at] == FENCE and overwrites):
                out[made] = row
                out[made, at] = BLOCK
                made += 1
    return made


@_compiled
def _show(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Acknowledge the next block, or show it to a reader."""
    needed = model.ack
    if model.mistake == _ACK_TOO_FEW:
        needed -= 1
    if model.mistake == _SHOWN_AT_ONE:
        needed = 1
    last = model.numbers if model.mistake == _OUT_OF_ORDER else min(row[SHOWN] + 1, model.numbers)
    for number in range(row[SHOWN], last):
        if _counted(model, row, number) >= needed:
            out[made] = row
            out[made, SHOWN] = number + 1
            made += 1
    return made


@_compiled
def _wipe(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    wiped = 0
    for node in range(model.width):
        wiped += row[_node(model, node)]
    if wiped < model.wipes:
        for node in range(model.width):
            if not row[_node(model, node)]:
                out[made] = row
                out[made, _node(model, node)] = 1
                made += 1
    return made


@_compiled
def _damage(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Damage a copy before a recoverer looks at its node. Later damage is a second failure, as the loss of a node."""
    damaged = 0
    for node in range(model.width):
        for number in range(model.numbers):
            damaged += row[_register(model, node, number)] == DAMAGED
    if damaged >= model.damages or row[TAIL]:
        return made
    for which in range(model.recoverers):
        if row[_recoverer(which) + PHASE] != LISTING:
            return made
    for node in range(model.width):
        seen = 0
        for which in range(model.recoverers):
            seen += row[_known(model, node, which)]
        for number in range(model.numbers):
            if seen == UNSEEN and row[_register(model, node, number)] == BLOCK:
                out[made] = row
                out[made, _register(model, node, number)] = DAMAGED
                made += 1
    return made


# Recovery.


@_compiled
def _recover(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    for which in range(model.recoverers):
        phase = row[_recoverer(which) + PHASE]
        if phase == LISTING:
            made = _begin(model, row, which, out, made)
            made = _list(model, row, which, out, made)
        elif phase == FENCING:
            made = _fence(model, row, which, out, made)
            made = _conclude(model, row, which, out, made)
    return made


@_compiled
def _end(model: Model, row: Row, which: int, phase: int) -> None:
    """Put a recoverer into another phase; it knows nothing then."""
    at = _recoverer(which)
    row[at + PHASE] = phase
    row[at + END] = row[at + LACKING] = 0
    for node in range(model.width):
        row[_known(model, node, which)] = UNSEEN


@_compiled
def _begin(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Take the tail that is decided; or decide that a segment ends at 0 which was never started, by a tombstone."""
    if row[TAIL] or not row[STARTED]:
        out[made] = row
        if row[TAIL] == 0:
            out[made, TAIL] = 1
        _end(model, out[made], which, DONE)
        made += 1
    return made


@_compiled
def _list(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    if not row[STARTED]:
        return made
    listed = 0
    for node in range(model.width):
        at, wiped = _known(model, node, which), row[_node(model, node)]
        if row[at] >= SEEN:
            listed += 1
        elif model.mistake == _CHECKED_BEFORE and row[at] == UNSEEN:
            if not wiped:
                out[made] = row
                out[made, at] = CHECKED
                made += 1
        elif not wiped or row[at] == CHECKED or model.mistake == _WIPED_COUNTS:
            out[made] = row
            out[made, at] = SEEN + (0 if wiped else _held(model, row, node))
            made += 1
    return _walk(model, row, which, out, made) if listed >= _fences_needed(model) else made


@_compiled
def _held(model: Model, row: Row, node: int) -> int:
    """Return all registers of a node as one digit."""
    held = 0
    for number in range(model.numbers, -1, -1):
        held = _kinds(model) * held + row[_register(model, node, number)]
    return held


@_compiled
def _listed(model: Model, row: Row, which: int, number: int, kind: int) -> int:
    """Count the listed nodes whose register held a block, or a fence."""
    found = 0
    for node in range(model.width):
        seen = row[_known(model, node, which)] - SEEN
        if seen >= 0 and seen // _kinds(model) ** number % _kinds(model) == kind:
            found += 1
    return found


@_compiled
def _walk(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Keep every number of which a copy was listed, up to the first without a copy, or with a quorum of fences."""
    needed = _fences_needed(model)
    number = lacking = 0
    is_fenced = is_dropped = False
    while number < model.numbers:
        copies = _listed(model, row, which, number, BLOCK)
        if model.mistake == _DAMAGED_COUNTS:
            copies += _listed(model, row, which, number, DAMAGED)
        is_fenced = _listed(model, row, which, number, FENCE) >= needed
        is_dropped = 0 < copies < model.ack and model.mistake == _FEW_DROPPED
        if is_fenced or is_dropped or not copies:
            break
        if copies < model.ack:
            lacking |= 1 << number
        number += 1
    if number == model.numbers:
        is_fenced = _listed(model, row, which, number, FENCE) >= needed
    out[made] = row
    _end(model, out[made], which, FENCING)
    out[made, _recoverer(which) + END] = number
    out[made, _recoverer(which) + LACKING] = lacking
    if is_fenced or is_dropped:
        for node in range(model.width):
            seen = row[_known(model, node, which)] - SEEN
            if seen >= 0 and (seen // _kinds(model) ** number % _kinds(model) == FENCE or is_dropped):
                out[made, _known(model, node, which)] = FENCE
    return made + 1


@_compiled
def _fence(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Create the fence on one more node, and note what the register holds then."""
    end = row[_recoverer(which) + END]
    for node in range(model.width):
        at, register, wiped = _known(model, node, which), _register(model, node, end), row[_node(model, node)]
        if row[at] in (BLOCK, FENCE, DAMAGED):
            continue
        believed = row[at] == ASKED or model.mistake == _WIPED_COUNTS
        if wiped and not believed:
            continue
        out[made] = row
        if model.mistake == _CHECKED_BEFORE and row[at] == EMPTY:
            out[made, at] = ASKED
        elif wiped:
            out[made, at] = FENCE
        else:
            if row[register] == EMPTY or model.mistake == _FENCE_OVERWRITES:
                out[made, register] = FENCE
            out[made, at] = out[made, register]
            if out[made, at] == DAMAGED and model.mistake == _DAMAGED_IS_FENCE:
                out[made, at] = FENCE
        made += 1
    return made


@_compiled
def _conclude(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Look again if a block got in. With a quorum of fences: rescue what too few nodes hold, then decide."""
    blocks = fences = 0
    for node in range(model.width):
        blocks += row[_known(model, node, which)] == BLOCK
        fences += row[_known(model, node, which)] == FENCE
    if blocks:
        made = _fence_ahead(model, row, which, out, made)
        out[made] = row
        _end(model, out[made], which, LISTING)
        made += 1
    elif fences >= _fences_needed(model):
        made = _decide(model, row, which, out, made)
    return made


@_compiled
def _fence_ahead(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Stop a writer that is quicker than the recovery: fence the next number on a node."""
    ahead = row[_recoverer(which) + END] + 1
    if ahead <= model.numbers:
        for node in range(model.width):
            if row[_register(model, node, ahead)] == EMPTY and not row[_node(model, node)]:
                out[made] = row
                out[made, _register(model, node, ahead)] = FENCE
                made += 1
    return made


@_compiled
def _decide(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    at = _recoverer(which)
    lacking = row[at + LACKING]
    if lacking == 0:
        out[made] = row
        if row[TAIL] == 0 or model.mistake == _LAST_DECIDES:
            out[made, TAIL] = row[at + END] + 1
        _end(model, out[made], which, DONE)
        return made + 1
    for number in range(model.numbers):
        bit = 1 << number
        readable = row[RESCUED] & bit or _holders(model, row, number)
        if lacking & bit and (readable or model.mistake == _NOT_RESCUED):
            out[made] = row
            out[made, at + LACKING] = lacking & ~bit
            if model.mistake != _NOT_RESCUED:
                out[made, RESCUED] = row[RESCUED] | bit
            made += 1
    return made


# Sealing and removal.


@_compiled
def _seal(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Seal a decided segment once every block can be read; remove the blocks of a sealed one, node by node."""
    if row[TAIL] == 0 or not row[STARTED]:
        return made
    if not row[SEALED]:
        for number in range(row[TAIL] - 1):
            if not row[RESCUED] & (1 << number) and not _holders(model, row, number):
                return made
        out[made] = row
        out[made, SEALED] = 1
        return made + 1
    for node in range(model.width):
        if not row[_node(model, node)]:
            out[made] = row
            for number in range(model.numbers + 1):
                at = _register(model, node, number)
                if row[at] in (BLOCK, DAMAGED) or model.mistake == _FENCES_DELETED:
                    out[made, at] = EMPTY
            made += 1
    return made


# The walk.


@_compiled
def _wrong(model: Model, row: Row) -> int:
    """Return what a state breaks."""
    if row[TAIL] == 0:
        return _SOUND
    tail = row[TAIL] - 1
    if row[SHOWN] > tail:
        return _LOST
    wiped = 0
    for node in range(model.width):
        wiped += row[_node(model, node)]
    for number in range(0 if row[SEALED] else tail):
        rescued = row[RESCUED] & (1 << number)
        if not rescued and _holders(model, row, number) < model.ack - wiped:
            return _TOO_FEW
    return _SOUND


@_compiled
def _columns(model: Model) -> int:
    """Return how many values the digits of one node can have together."""
    registers = _kinds(model) ** (model.numbers + 1)
    return int((2 if model.wipes else 1) * registers * (registers + SEEN) ** model.recoverers)


@_compiled
def _packed(model: Model, row: Row, nodes: Row) -> int:
    """Make one integer of a row, with its nodes sorted."""
    views = _kinds(model) ** (model.numbers + 1) + SEEN
    for node in range(model.width):
        column = row[_node(model, node)]
        for number in range(model.numbers + 1):
            column = _kinds(model) * column + row[_register(model, node, number)]
        for which in range(model.recoverers):
            column = views * column + row[_known(model, node, which)]
        place = node
        while place and nodes[place - 1] > column:
            nodes[place] = nodes[place - 1]
            place -= 1
        nodes[place] = column
    packed = 0
    for node in range(model.width):
        packed = packed * _columns(model) + nodes[node]
    for which in range(model.recoverers):
        at = _recoverer(which)
        packed = 3 * packed + row[at + PHASE]
        packed = (model.numbers + 1) * packed + row[at + END]
        packed = (1 << model.numbers) * packed + row[at + LACKING]
    packed = 2 * packed + row[STARTED]
    packed = (model.numbers + 2) * packed + row[TAIL]
    packed = 2 * packed + row[SEALED]
    packed = (model.numbers + 1) * packed + row[SHOWN]
    return int((1 << model.numbers) * packed + (0 if row[SEALED] else row[RESCUED]))


@_compiled
def _unpacked(model: Model, packed: int, row: Row) -> None:
    """Fill a row from its integer."""
    views = _kinds(model) ** (model.numbers + 1) + SEEN
    packed, row[RESCUED] = divmod(packed, 1 << model.numbers)
    packed, row[SHOWN] = divmod(packed, model.numbers + 1)
    packed, row[SEALED] = divmod(packed, 2)
    packed, row[TAIL] = divmod(packed, model.numbers + 2)
    packed, row[STARTED] = divmod(packed, 2)
    for which in range(model.recoverers - 1, -1, -1):
        at = _recoverer(which)
        packed, row[at + LACKING] = divmod(packed, 1 << model.numbers)
        packed, row[at + END] = divmod(packed, model.numbers + 1)
        packed, row[at + PHASE] = divmod(packed, 3)
    for node in range(model.width - 1, -1, -1):
        packed, column = divmod(packed, _columns(model))
        for which in range(model.recoverers - 1, -1, -1):
            column, row[_known(model, node, which)] = divmod(column, views)
        for number in range(model.numbers, -1, -1):
            column, row[_register(model, node, number)] = divmod(column, _kinds(model))
        row[_node(model, node)] = column


@_compiled
def _slot(table: NDArray[np.int64], packed: int) -> int:
    """Return where an integer is in a table of open addressing, or where it belongs."""
    mixed = (packed ^ (packed >> 31)) * 0x5851F42D4C957F2D
    slot = (mixed ^ (mixed >> 29)) & (table.size - 1)
    while table[slot] not in (-1, packed):
        slot = (slot + 1) & (table.size - 1)
    return slot


@_compiled
def _grown(table: NDArray[np.int64], states: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a table of twice the size."""
    larger = np.full(2 * table.size, -1, np.int64)
    for packed in states:
        larger[_slot(larger, packed)] = packed
    return larger


@_compiled
def _walked(model: Model) -> tuple[int, int]:
    row = np.zeros(_node(model, model.width), np.int64)
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
        made = _write(model, row, out, 0)
        made = _show(model, row, out, made)
        made = _wipe(model, row, out, made)
        made = _damage(model, row, out, made)
        made = _recover(model, row, out, made)
        made = _seal(model, row, out, made)
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
