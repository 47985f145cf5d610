"""Who the nodes of a quorum are: versions in the store, created one after the other and never overwritten."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from oncelog.clock import Clock
from oncelog.errors import CorruptionError, InvalidArgument, NotFound, Unavailable
from oncelog.format import frame
from oncelog.shapes import UNREADABLE
from oncelog.storage.base import QUORUM_HOME, LogHome, Storage
from oncelog.storage.quorum import node
from oncelog.storage.quorum.node import NodeIdentity

HOME = QUORUM_HOME

KIND, FORMAT = b"OLqm", 1
NODES_MAX = 9
_ID = "id"
"""The key of the quorum's random id."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class Member(msgspec.Struct, frozen=True):
    """A node: what people call it, where it is, and who it is."""

    name: str
    url: str
    identity: str


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a quorum. A block counts when ``ack`` of them hold it. ``quorum`` is the quorum's random id."""

    version: int
    quorum: str
    ack: int
    nodes: tuple[Member, ...]

    def named(self, name: str) -> Member:
        """Return a node by its name, or raise ``NotFound``."""
        for member in self.nodes:
            if member.name == name:
                return member
        message = f"the quorum has no node {name!r}: there are {', '.join(one.name for one in self.nodes)}"
        raise NotFound(message)


def newest(storage: Storage) -> Membership | None:
    """Return the newest membership; ``None`` if the store was never made a quorum's."""
    home = storage.home(HOME)
    keys = home.list("members/")
    return _read(home, keys[-1]) if keys else None


def _read(home: LogHome, key: str) -> Membership:
    try:
        return msgspec.json.decode(frame.unwrap(KIND, FORMAT, home.read(key), home.location(key)), type=Membership)
    except UNREADABLE as error:
        message = f"{home.location(key)}: not a membership"
        raise CorruptionError(message) from error


def _store(storage: Storage, membership: Membership) -> Membership:
    """Store the next version; ``Unavailable`` when somebody else did first."""
    home = storage.home(HOME)
    data = frame.wrap(KIND, FORMAT, msgspec.json.encode(membership))
    key = f"members/{membership.version:020d}"
    if not home.create(key, [data]) and _read(home, key) != membership:  # its own, if the first answer was lost
        message = "the quorum was changed at the same time by somebody else: look at its status, and try again"
        raise Unavailable(message)
    return membership


def create(
    storage: Storage, nodes: Mapping[str, str], ack: int | None, options: Mapping[str, Mapping[str, str]], clock: Clock
) -> Membership:
    """Make a store the store of a quorum: check and format the nodes, then store who they are."""
    check_nodes(nodes, storage.url)
    needed = len(nodes) // 2 + 1
    wanted = needed if ack is None else ack
    if not needed <= wanted <= len(nodes):
        message = f"ack is {wanted}: of {len(nodes)} nodes it must be {needed} (a majority) to {len(nodes)}"
        raise InvalidArgument(message)
    if newest(storage) is not None:
        message = f"{storage.url} is the store of a quorum already: see oncelog quorum status"
        raise InvalidArgument(message)
    if any(not key.startswith("~") for key in storage.homes()):
        message = f"{storage.url} has logs that are no quorum's: choose an empty store"
        raise InvalidArgument(message)
    for name, url in nodes.items():  # all, before the first is formatted
        check_free(storage, name, url, options.get(name, {}), clock)
    quorum = _named(storage, clock)
    members = [format_member(storage, name, url, options.get(name, {}), clock) for name, url in nodes.items()]
    return _store(storage, Membership(version=1, quorum=quorum, ack=wanted, nodes=tuple(members)))


def _named(storage: Storage, clock: Clock) -> str:
    """Give a quorum its random id, before a node is formatted: then a second attempt knows the nodes of the first."""
    storage.home(HOME).create(_ID, [clock.token(8).hex().encode()])
    found = _id_of(storage)
    assert found is not None
    return found


def _id_of(storage: Storage) -> str | None:
    """Return the random id of a quorum; ``None`` if no node was formatted yet."""
    known = newest(storage)
    if known is not None:
        return known.quorum
    try:
        return bytes(storage.home(HOME).read(_ID)).decode("ascii", "replace")
    except NotFound:
        return None


def _is_left_over(storage: Storage, name: str, found: NodeIdentity) -> bool:
    """Tell whether a store was formatted for this name by an attempt that was cut short, before it was a node.

    A store that was once a node does not count: it lacks the blocks that were stored since.
    """
    if found.quorum != _id_of(storage) or found.name != name:
        return False
    home = storage.home(HOME)
    versions = [_read(home, key) for key in home.list("members/")]
    return all(found.identity != member.identity for version in versions for member in version.nodes)


def check_nodes(nodes: Mapping[str, str], store_url: str) -> None:
    """Raise ``InvalidArgument`` for nodes that cannot make a quorum."""
    if not 2 <= len(nodes) <= NODES_MAX:  # noqa: PLR2004
        message = f"a quorum has 2 to {NODES_MAX} nodes, not {len(nodes)}"
        raise InvalidArgument(message)
    seen: dict[str, str] = {}
    for name, url in nodes.items():
        if not _NAME.fullmatch(name):
            message = f"node name {name!r}: must be 1 to 32 lower-case letters, digits and dashes"
            raise InvalidArgument(message)
        place = _node_place(url)
        for other, where in seen.items():
            if _is_within(place, where) or _is_within(where, place):
                message = (
                    f"nodes {other} and {name} are one place, {url}: they would be lost together; give each node a "
                    "bucket or a folder of its own (on servers of its own too, choose another name or prefix)"
                )
                raise InvalidArgument(message)
        if _is_within(place, _place(store_url)):
            message = (
                f"node {name} ({url}) is inside the store {store_url}: it would be lost with it; choose a place outside"
            )
            raise InvalidArgument(message)
        seen[name] = place


def _is_within(place: str, other: str) -> bool:
    return f"{place}/".startswith(f"{other}/")


def _node_place(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("file", "s3", "gs", "az") or not (parts.netloc or parts.path.strip("/")):
        message = f"{url!r}: a node is a folder (file:///…) or a bucket (s3://…, gs://…, az://…)"
        raise InvalidArgument(message)
    return _place(url)


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def check_free(storage: Storage, name: str, url: str, options: Mapping[str, str], clock: Clock) -> None:
    """Raise unless a store answers, honours conditional creates, and is no node yet."""
    bucket = node.open_bucket(url, options)
    try:
        bucket.check_creates(f"probe/{clock.token(8).hex()}")
        found = node.read_identity(bucket)
    except Unavailable as error:
        message = f"node {name} ({url}) does not answer, so nothing was changed: {error}"
        raise Unavailable(message) from error
    if found is not None and not _is_left_over(storage, name, found):
        raise _taken(name, url, found)


def _taken(name: str, url: str, found: NodeIdentity | None) -> InvalidArgument:
    was = "" if found is None else f", as {found.name!r}"
    return InvalidArgument(
        f"node {name} ({url}) belongs to a quorum already{was}: choose another place; or, if no quorum needs it any "
        f"more, empty it (its object {node.IDENTITY} says whose it is)"
    )


def format_member(storage: Storage, name: str, url: str, options: Mapping[str, str], clock: Clock) -> Member:
    """Give a store that was checked an identity, or take the one that an attempt before left there."""
    bucket, quorum = node.open_bucket(url, options), _id_of(storage)
    assert quorum is not None
    node.format_node(bucket, NodeIdentity(identity=clock.token(16).hex(), quorum=quorum, name=name))
    found = node.read_identity(bucket)
    if found is None or not _is_left_over(storage, name, found):
        raise _taken(name, url, found)
    return Member(name, url, found.identity)


def replaced(storage: Storage, membership: Membership, new: Member) -> Membership:
    """Store a membership in which the node of that name is another one. New segments are written to the new node."""
    nodes = tuple(new if member.name == new.name else member for member in membership.nodes)
    return _store(storage, msgspec.structs.replace(membership, version=membership.version + 1, nodes=nodes))
