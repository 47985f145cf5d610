"""How the nodes of a quorum are: who answers, how quickly, and which segments are short of copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from oncelog.clock import Clock
from oncelog.errors import InvalidArgument, OncelogError, Unavailable
from oncelog.format.block import HEADER_BYTES
from oncelog.storage.base import ENSEMBLES, LogHome, Unsealed
from oncelog.storage.quorum import ensemble as stored
from oncelog.storage.quorum import membership as members
from oncelog.storage.quorum.asking import ask_all
from oncelog.storage.quorum.ensemble import Ensemble
from oncelog.storage.quorum.home import QuorumHome, QuorumStorage
from oncelog.storage.quorum.membership import Membership
from oncelog.storage.quorum.node import Node


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A node now. ``trouble`` says why it is away; ``answer_ms`` how long it took to say who it is.

    ``behind``: how many blocks of segments that are not sealed the node lacks, and another node has.
    """

    name: str
    url: str
    identity: str
    trouble: str | None
    answer_ms: float | None
    behind: int


class Short(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of which a node lacks blocks: ``copies`` of ``blocks`` numbers are there, by the name of the node."""

    home: str
    segment: int
    blocks: int
    copies: dict[str, int]


FindUnsealed = Callable[[LogHome], Unsealed]
"""Finds the segments of a log that need their nodes: what a log has, its storage does not know."""


def nodes(storage: QuorumStorage, short: Sequence[Short], clock: Clock) -> list[NodeHealth]:
    """Ask each node who it is; count what it lacks of segments that are ``short``. A node that hangs is away."""

    def answer_ms(node: Node) -> float:
        began_us = clock.elapsed_us()
        node.check_identity()
        return (clock.elapsed_us() - began_us) / 1000

    found = []
    for node, answer in zip(storage.nodes, ask_all(storage.nodes, answer_ms, 0), strict=True):
        is_away = isinstance(answer, OncelogError)
        found.append(
            NodeHealth(
                name=node.name,
                url=node.bucket.url,
                identity=node.identity.identity,
                trouble=str(answer) if is_away else None,
                answer_ms=None if isinstance(answer, OncelogError) else answer,
                behind=sum(one.blocks - one.copies.get(node.name, one.blocks) for one in short),
            )
        )
    return found


def short(storage: QuorumStorage, find: FindUnsealed) -> list[Short]:
    """Return the segments of which some node lacks a block, or that name a node which was replaced: seal these."""
    found = []
    for key in storage.homes():
        home = storage.home(key)
        for segment, ensemble in _ensembles(home, find(home)):
            copies = _copies(storage, key, ensemble)
            most = max(copies.values(), default=0)
            if most and (len(copies) < len(ensemble.nodes) or min(copies.values()) < most):
                found.append(Short(home=key, segment=segment, blocks=most, copies=copies))
    return found


def _ensembles(home: QuorumHome, unsealed: Unsealed) -> Iterator[tuple[int, Ensemble]]:
    """Yield the ensembles of segments that are not sealed. An ensemble stays as long as its log: most are of sealed
    ones, and are not read.
    """
    for key in home.store.list(ENSEMBLES):
        number = int(key.removeprefix(ENSEMBLES))
        if _is_unsealed(number, unsealed):
            ensemble = stored.read(home.store, number)
            if ensemble is not None and ensemble.nodes:
                yield number, ensemble


def _is_unsealed(segment: int, unsealed: Unsealed) -> bool:
    return segment >= unsealed.first_open or segment in unsealed.closed


def _copies(storage: QuorumStorage, key: str, ensemble: Ensemble) -> dict[str, int]:
    """Return how many blocks each node of an ensemble holds; a node that does not answer holds none for now."""
    return {name: 0 if count is None else count for name, count in _counts(storage, key, ensemble).items()}


def _counts(storage: QuorumStorage, key: str, ensemble: Ensemble) -> dict[str, int | None]:
    """Return how many blocks each known node of an ensemble holds; ``None`` if the node does not answer."""
    nodes = storage.nodes_of(ensemble)
    answers = ask_all(nodes, lambda node: node.bucket.below(f"logs/{key}/{ensemble.folder}/"), 0)
    return {
        node.name: None if isinstance(one, OncelogError) else sum(size >= HEADER_BYTES for _, size in one)
        for node, one in zip(nodes, answers, strict=True)
    }


class BadCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a block that a node should hold, and what is wrong with it. ``lost`` if no sound copy is left."""

    home: str
    segment: int
    number: int
    node: str
    problem: str
    lost: bool = False


def check(storage: QuorumStorage, find: FindUnsealed) -> list[BadCopy]:
    """Read every copy of every block that is not sealed yet, and return those that are missing or damaged.

    The blocks of sealed segments were removed, and are not missed. Copies that a living writer is just storing count as
    missing.
    """
    found: list[BadCopy] = []
    for key in storage.homes():
        home = storage.home(key)
        needed = find(home)
        bad: list[BadCopy] = []
        for segment, ensemble in _ensembles(home, needed):
            # Not closed, and no copies: nothing was written.
            if segment in needed.closed or any(_copies(storage, key, ensemble).values()):
                bad += _bad_copies(home, key, segment, ensemble, needed.closed.get(segment))
        now = find(home) if bad else needed  # segments that were sealed since the check began have no blocks any more
        found += [one for one in bad if _is_unsealed(one.segment, now)]
    return found


def _bad_copies(home: QuorumHome, key: str, segment: int, ensemble: Ensemble, closed: int | None) -> list[BadCopy]:
    """Return the bad copies of a segment that was ``closed`` after so many blocks; if it was not, of all it has."""
    registers = home.registers(segment, ensemble)
    decided = stored.read_tail(home.store, segment)
    end = closed if closed is not None else registers.last_number() + 1 if decided is None else decided.blocks
    found: list[BadCopy] = []
    for number in range(end):
        problems = registers.problems(number)
        lost = len(problems) == len(registers.nodes) and not home.store.exists(stored.rescued_key(segment, number))
        found += [
            BadCopy(home=key, segment=segment, number=number, node=name, problem=problem, lost=lost)
            for name, problem in problems.items()
        ]
    return found


def replace(storage: QuorumStorage, name: str, url: str, find: FindUnsealed, clock: Clock) -> Membership:
    """Put another store in the place of a node. New segments are written to it; old ones keep their other copies.

    ``InvalidArgument`` while a segment that is not sealed would keep fewer nodes than it takes to fence it.
    """
    membership = storage.refresh()
    gone = membership.named(name)
    for key in storage.homes():
        home = storage.home(key)
        for segment, ensemble in _ensembles(home, find(home)):
            left = [node for node in storage.nodes_of(ensemble) if node.identity.identity != gone.identity]
            if len(left) >= ensemble.fences:
                continue
            counts = _counts(storage, key, ensemble)
            silent = [node.name for node in left if counts[node.name] is None]
            if silent:
                message = (
                    f"log {key}: whether segment {segment} is sealed is not known, because node {silent[0]} does not "
                    "answer: bring it back before another node is replaced"
                )
                raise Unavailable(message)
            if any(counts.values()):
                message = (
                    f"log {key}: segment {segment} would keep {len(left)} of its {len(ensemble.nodes)} nodes, and "
                    f"needs {ensemble.fences} until it is sealed: run oncelog quorum drain {storage.store.url} first "
                    "(a writer that is at work closes its segment within ten seconds of the replacement before)"
                )
                raise InvalidArgument(message)
    places, options = {member.name: member.url for member in membership.nodes}, storage.options_of(name)
    members.check_nodes(places | {name: url}, storage.store.url)
    members.check_free(storage.store, name, url, options, clock)
    new = members.format_member(storage.store, name, url, options, clock)
    return members.replaced(storage.store, membership, new)
