"""The policies for producers that are stored with the database: its own, and those of its namespaces.

They are versions of one small object, created one after the other and never overwritten, in a home that no log has.
"""

from __future__ import annotations

import msgspec

from oncelog import names
from oncelog.errors import InvalidArgument, Unavailable
from oncelog.format import frame
from oncelog.settings import ProducerPolicy, check_policy, resolve
from oncelog.shapes import prepare
from oncelog.storage.base import LogHome, Storage

HOME = "~policies"
"""No log's name becomes this key."""

KIND, FORMAT = b"OLpp", 1


class _StoredPolicies(msgspec.Struct, frozen=True):
    database: ProducerPolicy = ProducerPolicy()
    namespaces: dict[str, ProducerPolicy] = {}


class Policies:
    """Reads and changes the policies of one database. Safe to share between threads and processes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._version = 0  # the newest that was seen: versions are never deleted

    @property
    def _home(self) -> LogHome:
        return self._storage.home(HOME)

    def level(self, namespace: str | None = None) -> ProducerPolicy:
        """Return what the database, or one of its namespaces, says itself."""
        stored, _ = self._newest()
        return stored.database if namespace is None else stored.namespaces.get(namespace, ProducerPolicy())

    def change(self, policy: ProducerPolicy, namespace: str | None = None) -> None:
        """Set what the database, or a namespace, says."""
        policy = check_policy(policy)
        if namespace is not None:
            names.check(namespace, "namespace")
            if "/" in namespace:
                message = f"namespace {namespace!r}: a log's namespace is what stands before the first '/' of its name"
                raise InvalidArgument(message)
        while True:
            stored, version = self._newest()
            after = (
                msgspec.structs.replace(stored, database=policy)
                if namespace is None
                else msgspec.structs.replace(stored, namespaces={**stored.namespaces, namespace: policy})
            )
            if after == stored or self._create(version + 1, frame.wrap(KIND, FORMAT, msgspec.msgpack.encode(after))):
                return

    def _create(self, version: int, data: bytes) -> bool:
        try:
            return self._home.create(_key(version), [data])
        except Unavailable as error:
            if error.outcome != "unknown" or not self._home.exists(_key(version)):
                raise
            return False  # whose it is shows when it is read

    def effective(self, log_name: str, own: ProducerPolicy) -> ProducerPolicy:
        """Return the policy that holds for a log, given its own."""
        stored, version = self._newest()
        namespace, separator, _ = log_name.partition("/")
        if not version or not separator:
            return resolve(own, stored.database)
        return resolve(own, stored.namespaces.get(namespace, ProducerPolicy()), stored.database)

    def _newest(self) -> tuple[_StoredPolicies, int]:
        version = self._version
        while self._home.exists(_key(version + 1)):
            version += 1
        self._version = version
        if not version:
            return _StoredPolicies(), 0
        key = _key(version)
        return frame.unpack(frame.unwrap(KIND, FORMAT, self._home.read(key), key), _StoredPolicies, key), version


def _key(version: int) -> str:
    return f"policies/{version:020d}"


prepare(_StoredPolicies)
