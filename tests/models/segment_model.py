"""An exhaustive model of the registers of one segment: it walks every order of messages, crashes and recoveries.

The model is the protocol of ``storage/quorum/registers.py`` without its I/O. A writer starts the segment and offers
blocks. Nodes take a block at any time, again, or never. Recoverers list nodes one by one, fence, rescue and decide.
The decided segment is sealed, and its blocks are removed. An actor may stop at any moment: the model then never
schedules that actor again. A wipe empties a node and takes its identity away. Damage makes a copy unreadable.

A state is a row of small digits. Each function here adds the rows that one kind of step leads to; ``segment_walk.py``
walks over all of them. numba compiles all functions here.
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


class Model(NamedTuple):
    """A quorum of ``width`` nodes and ``ack`` acks, with ``numbers`` blocks in flight, and a planted ``mistake``."""

    width: int = 3
    ack: int = 2
    numbers: int = 1
    recoverers: int = 1
    wipes: int = 0
    mistake: int = _NONE
    damages: int = 0


def compiled(function: _Function) -> _Function:
    """Have numba compile a function."""
    return cast("_Function", numba.njit(function))


@compiled
def kinds(model: Model) -> int:
    """Return how many kinds of contents a register can have: only a model with damage knows DAMAGED."""
    return 4 if model.damages else 3


@compiled
def _fences_needed(model: Model) -> int:
    """Return Q: how many fences mean that a block can never be chosen."""
    return model.width - model.ack + (0 if model.mistake == _FENCE_TOO_FEW else 1)


@compiled
def recoverer_at(which: int) -> int:
    """Return where the digits of a recoverer begin."""
    return _SEGMENT + _RECOVERER * which


@compiled
def node_at(model: Model, which: int) -> int:
    """Return where the digits of a node begin: wiped, its registers, and what each recoverer knows of it."""
    return _SEGMENT + _RECOVERER * model.recoverers + which * (2 + model.numbers + model.recoverers)


@compiled
def known_at(model: Model, node: int, recoverer: int) -> int:
    """Return where a node's digit is of what a recoverer knows of the node."""
    return node_at(model, node) + 2 + model.numbers + recoverer


@compiled
def register_at(model: Model, node: int, number: int) -> int:
    """Return where a node's digit is of what a register holds."""
    return node_at(model, node) + 1 + number


@compiled
def holders(model: Model, row: Row, number: int) -> int:
    """Count the nodes that hold a block."""
    found = 0
    for node in range(model.width):
        if row[register_at(model, node, number)] == BLOCK and not row[node_at(model, node)]:
            found += 1
    return found


@compiled
def _counted(model: Model, row: Row, number: int) -> int:
    """Count the nodes that hold a block, or held it before a wipe or damage: a writer may have counted these."""
    found = 0
    for node in range(model.width):
        found += row[register_at(model, node, number)] in (BLOCK, DAMAGED)
    return found


@compiled
def _copy(row: Row, out: NDArray[np.int64], made: int) -> None:
    """Begin a step with the state it starts from, digit by digit: an assignment of rows takes numba long to compile."""
    for digit in range(row.size):
        out[made, digit] = row[digit]


# The writer, the readers, and the wipes.


@compiled
def write(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Start the segment, or have a node take a block."""
    if not row[STARTED]:
        if row[TAIL] == 0 or model.mistake == _NO_TOMBSTONE:
            _copy(row, out, made)
            out[made, STARTED] = 1
            made += 1
        return made
    for node in range(model.width):
        wiped = row[node_at(model, node)]
        if wiped and model.mistake != _WRITER_COUNTS_WIPED:
            continue
        for number in range(model.numbers):
            at = register_at(model, node, number)
            overwrites = wiped or model.mistake == _BLOCK_OVERWRITES
            if row[at] == EMPTY or (row[at] == FENCE and overwrites):
                _copy(row, out, made)
                out[made, at] = BLOCK
                made += 1
    return made


@compiled
def show(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Acknowledge the next block, or show it to a reader."""
    needed = model.ack
    if model.mistake == _ACK_TOO_FEW:
        needed -= 1
    if model.mistake == _SHOWN_AT_ONE:
        needed = 1
    last = model.numbers if model.mistake == _OUT_OF_ORDER else min(row[SHOWN] + 1, model.numbers)
    for number in range(row[SHOWN], last):
        if _counted(model, row, number) >= needed:
            _copy(row, out, made)
            out[made, SHOWN] = number + 1
            made += 1
    return made


@compiled
def wipe(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Empty a node, and take its identity away."""
    wiped = 0
    for node in range(model.width):
        wiped += row[node_at(model, node)]
    if wiped < model.wipes:
        for node in range(model.width):
            if not row[node_at(model, node)]:
                _copy(row, out, made)
                out[made, node_at(model, node)] = 1
                made += 1
    return made


@compiled
def damage(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Damage a copy before a recoverer looks at its node. Later damage is a second failure, as the loss of a node."""
    damaged = 0
    for node in range(model.width):
        for number in range(model.numbers):
            damaged += row[register_at(model, node, number)] == DAMAGED
    if damaged >= model.damages or row[TAIL]:
        return made
    for which in range(model.recoverers):
        if row[recoverer_at(which) + PHASE] != LISTING:
            return made
    for node in range(model.width):
        seen = 0
        for which in range(model.recoverers):
            seen += row[known_at(model, node, which)]
        for number in range(model.numbers):
            if seen == UNSEEN and row[register_at(model, node, number)] == BLOCK:
                _copy(row, out, made)
                out[made, register_at(model, node, number)] = DAMAGED
                made += 1
    return made


# Recovery.


@compiled
def recover(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Let a recoverer take a step."""
    for which in range(model.recoverers):
        phase = row[recoverer_at(which) + PHASE]
        if phase == LISTING:
            made = _begin(model, row, which, out, made)
            made = _list(model, row, which, out, made)
        elif phase == FENCING:
            made = _fence(model, row, which, out, made)
            made = _conclude(model, row, which, out, made)
    return made


@compiled
def _end(model: Model, row: Row, which: int, phase: int) -> None:
    """Put a recoverer into another phase; it knows nothing then."""
    at = recoverer_at(which)
    row[at + PHASE] = phase
    row[at + END] = row[at + LACKING] = 0
    for node in range(model.width):
        row[known_at(model, node, which)] = UNSEEN


@compiled
def _begin(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Take the tail that is decided; or decide that a segment ends at 0 which was never started, by a tombstone."""
    if row[TAIL] or not row[STARTED]:
        _copy(row, out, made)
        if row[TAIL] == 0:
            out[made, TAIL] = 1
        _end(model, out[made], which, DONE)
        made += 1
    return made


@compiled
def _list(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    if not row[STARTED]:
        return made
    listed = 0
    for node in range(model.width):
        at, wiped = known_at(model, node, which), row[node_at(model, node)]
        if row[at] >= SEEN:
            listed += 1
        elif model.mistake == _CHECKED_BEFORE and row[at] == UNSEEN:
            if not wiped:
                _copy(row, out, made)
                out[made, at] = CHECKED
                made += 1
        elif not wiped or row[at] == CHECKED or model.mistake == _WIPED_COUNTS:
            _copy(row, out, made)
            out[made, at] = SEEN + (0 if wiped else _held(model, row, node))
            made += 1
    return _walk(model, row, which, out, made) if listed >= _fences_needed(model) else made


@compiled
def _held(model: Model, row: Row, node: int) -> int:
    """Return all registers of a node as one digit."""
    held = 0
    for number in range(model.numbers, -1, -1):
        held = kinds(model) * held + row[register_at(model, node, number)]
    return held


@compiled
def _listed(model: Model, row: Row, which: int, number: int, kind: int) -> int:
    """Count the listed nodes whose register held a block, or a fence."""
    found = 0
    for node in range(model.width):
        seen = row[known_at(model, node, which)] - SEEN
        if seen >= 0 and seen // kinds(model) ** number % kinds(model) == kind:
            found += 1
    return found


@compiled
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
    _copy(row, out, made)
    _end(model, out[made], which, FENCING)
    out[made, recoverer_at(which) + END] = number
    out[made, recoverer_at(which) + LACKING] = lacking
    if is_fenced or is_dropped:
        for node in range(model.width):
            seen = row[known_at(model, node, which)] - SEEN
            if seen >= 0 and (seen // kinds(model) ** number % kinds(model) == FENCE or is_dropped):
                out[made, known_at(model, node, which)] = FENCE
    return made + 1


@compiled
def _fence(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Create the fence on one more node, and note what the register holds then."""
    end = row[recoverer_at(which) + END]
    for node in range(model.width):
        at, register, wiped = known_at(model, node, which), register_at(model, node, end), row[node_at(model, node)]
        if row[at] in (BLOCK, FENCE, DAMAGED):
            continue
        believed = row[at] == ASKED or model.mistake == _WIPED_COUNTS
        if wiped and not believed:
            continue
        _copy(row, out, made)
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


@compiled
def _conclude(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Look again if a block got in. With a quorum of fences: rescue what too few nodes hold, then decide."""
    blocks = fences = 0
    for node in range(model.width):
        blocks += row[known_at(model, node, which)] == BLOCK
        fences += row[known_at(model, node, which)] == FENCE
    if blocks:
        made = _fence_ahead(model, row, which, out, made)
        _copy(row, out, made)
        _end(model, out[made], which, LISTING)
        made += 1
    elif fences >= _fences_needed(model):
        made = _decide(model, row, which, out, made)
    return made


@compiled
def _fence_ahead(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    """Stop a writer that is quicker than the recovery: fence the next number on a node."""
    ahead = row[recoverer_at(which) + END] + 1
    if ahead <= model.numbers:
        for node in range(model.width):
            if row[register_at(model, node, ahead)] == EMPTY and not row[node_at(model, node)]:
                _copy(row, out, made)
                out[made, register_at(model, node, ahead)] = FENCE
                made += 1
    return made


@compiled
def _decide(model: Model, row: Row, which: int, out: NDArray[np.int64], made: int) -> int:
    at = recoverer_at(which)
    lacking = row[at + LACKING]
    if lacking == 0:
        _copy(row, out, made)
        if row[TAIL] == 0 or model.mistake == _LAST_DECIDES:
            out[made, TAIL] = row[at + END] + 1
        _end(model, out[made], which, DONE)
        return made + 1
    for number in range(model.numbers):
        bit = 1 << number
        readable = row[RESCUED] & bit or holders(model, row, number)
        if lacking & bit and (readable or model.mistake == _NOT_RESCUED):
            _copy(row, out, made)
            out[made, at + LACKING] = lacking & ~bit
            if model.mistake != _NOT_RESCUED:
                out[made, RESCUED] = row[RESCUED] | bit
            made += 1
    return made


# Sealing and removal.


@compiled
def seal(model: Model, row: Row, out: NDArray[np.int64], made: int) -> int:
    """Seal a decided segment once every block can be read; remove the blocks of a sealed one, node by node."""
    if row[TAIL] == 0 or not row[STARTED]:
        return made
    if not row[SEALED]:
        for number in range(row[TAIL] - 1):
            if not row[RESCUED] & (1 << number) and not holders(model, row, number):
                return made
        _copy(row, out, made)
        out[made, SEALED] = 1
        return made + 1
    for node in range(model.width):
        if not row[node_at(model, node)]:
            _copy(row, out, made)
            for number in range(model.numbers + 1):
                at = register_at(model, node, number)
                if row[at] in (BLOCK, DAMAGED) or model.mistake == _FENCES_DELETED:
                    out[made, at] = EMPTY
            made += 1
    return made
