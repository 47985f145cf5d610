"""The key of a log's hashes: an object of its own, which writers read and readers need not.

Identities and fingerprints are hashes under a key, so that nobody can make two records that are taken for one. The
hashes are linear: with the key, another value with the same fingerprint is found in a second. So the key is not in the
manifest, which every reader reads. It lies under a prefix of its own (``secret/``): the policy of a bucket can keep
readers from it. Logs that were made before have it in their manifest, and keep it there.
"""

from __future__ import annotations

from functools import lru_cache

from oncelog.clock import Clock
from oncelog.dedup.identity import Hasher
from oncelog.errors import CorruptionError, NotFound
from oncelog.format import frame
from oncelog.format.manifest import Manifest
from oncelog.storage.base import LogHome

PREFIX = "secret/"
KIND, VERSION = b"OLsc", 1
_SECRET_BYTES = 32
_KNOWN_MAX = 256
_known: dict[str, bytes] = {}
"""Secrets that were read, by the id of their log, which no other log ever has."""


def key_of(log_id: str) -> str:
    """Return the key of the object that has a log's secret."""
    return f"{PREFIX}{log_id}"


def create(home: LogHome, log_id: str, clock: Clock) -> None:
    """Store a secret for a log that is about to be made."""
    _store(home, log_id, clock.token(_SECRET_BYTES))


def copy(source: LogHome, target: LogHome, manifest: Manifest) -> None:
    """Let a copy of a log have the log's secret: its records keep their identities."""
    if not manifest.secret:
        _store(target, manifest.log_id, read(source, manifest))


def read(home: LogHome, manifest: Manifest) -> bytes:
    """Return the secret of a log; ``CorruptionError`` if it is lost, what the home raises if it may not be read."""
    if manifest.secret:
        return manifest.secret
    found = _known.get(manifest.log_id)
    if found is None:
        found = _read(home, key_of(manifest.log_id))
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[manifest.log_id] = found
    return found


def hasher_of(home: LogHome, manifest: Manifest) -> Hasher:
    """Return the keyed hashes of a log: drawing their coefficients takes milliseconds, so the last are kept."""
    return _hasher(read(home, manifest), manifest.settings.id_scope == "stream")


@lru_cache(maxsize=16)
def _hasher(secret: bytes, by_stream: bool) -> Hasher:  # noqa: FBT001
    return Hasher(secret, by_stream=by_stream)


def _store(home: LogHome, log_id: str, secret: bytes) -> None:
    key = key_of(log_id)
    data = frame.wrap(KIND, VERSION, secret)
    if not home.create(key, [data]) and home.read(key).to_pybytes() != data:
        message = f"{home.location(key)}: the secret of this log is there, and is another"
        raise CorruptionError(message)


def _read(home: LogHome, key: str) -> bytes:
    try:
        found = bytes(frame.unwrap(KIND, VERSION, home.read(key), key))
    except NotFound as error:
        message = f"{home.location(key)} is missing, and without it no id can be recognised: restore it from a copy"
        raise CorruptionError(message) from error
    if len(found) != _SECRET_BYTES:
        message = f"{key}: a secret of {len(found)} bytes, {_SECRET_BYTES} were written"
        raise CorruptionError(message)
    return found
