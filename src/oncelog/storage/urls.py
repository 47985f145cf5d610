"""The URLs of databases, and the storage that each of them names."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from oncelog import arguments
from oncelog.errors import InvalidArgument, Unsupported
from oncelog.storage.base import QUORUM_HOME, Storage
from oncelog.storage.local.home import LocalStorage
from oncelog.storage.memory import MemoryStorage

_BUCKETS = {"s3", "gs", "az"}
_QUORUM = "quorum:"
_NODE_VARIABLE = "ONCELOG_NODE_"


def spelled(given: object) -> str:
    """Return a URL as it is, and a path as the URL of its folder."""
    found = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(found, str):
        message = f"a URL is a str such as 'file:///var/lib/shop', or a path, not {type(given).__name__}"
        raise InvalidArgument(message)
    arguments.text("url", found)
    if found is not given or (found and not _parts(found).scheme):
        if "\0" in found:
            message = f"{found!r}: no folder has a zero byte in its name"
            raise InvalidArgument(message)
        return Path(found).absolute().as_uri()
    return found


def open_storage(url: str, options: Mapping[str, str]) -> Storage:
    """Open the storage that a URL names; ``InvalidArgument`` for a URL that names none."""
    if url.startswith(_QUORUM):
        return _on_quorum(url, options)
    parts = _parts(url)
    if parts.scheme in _BUCKETS:
        return _in_bucket(url, parts, options, plain=True)
    if options:
        message = f"options are for buckets ({', '.join(sorted(_BUCKETS))}), not for {url!r}"
        raise InvalidArgument(message)
    if parts.scheme == "memory":
        if parts.path or parts.query or parts.fragment:
            message = f"{url!r}: a URL of a database in memory is memory:// or memory://name, without more"
            raise InvalidArgument(message)
        return MemoryStorage.named(parts.netloc)
    if parts.scheme == "file":
        return _on_disk(url, parts)
    message = (
        f"{url!r} is not a URL of a database: use file:///path, ./path, s3://bucket/prefix, memory://, "
        "or oncelog://host:port for a server"
    )
    raise InvalidArgument(message)


def _on_disk(url: str, parts: SplitResult) -> Storage:
    path = _path(url, parts)
    if (path / "logs" / QUORUM_HOME).exists():  # its blocks are on nodes: opened plainly, they would be missing
        message = f"{url!r} is the store of a quorum: connect to {_QUORUM}{url}"
        raise InvalidArgument(message)
    return LocalStorage(path)


def _on_quorum(url: str, options: Mapping[str, str]) -> Storage:
    """Open the store of a quorum, which knows its nodes. ``az1.endpoint`` is an option of node az1."""
    of_store = {name: value for name, value in options.items() if "." not in name}
    of_nodes = node_options(os.environ)
    for name, value in options.items():
        node, dot, option = name.partition(".")
        if dot:
            of_nodes.setdefault(node, {})[option] = value
    store = quorum_store(url.removeprefix(_QUORUM), of_store)
    from oncelog.storage.quorum.home import QuorumStorage  # noqa: PLC0415  who has no quorum needs no client

    return QuorumStorage(store, of_nodes, near=os.environ.get("ONCELOG_NEAR"))


def quorum_store(url: str, options: Mapping[str, str] | None = None) -> Storage:
    """Open the store of a quorum as what it is: a folder, or a bucket. For what makes quorums and looks after them."""
    if importlib.util.find_spec("obstore") is None:
        message = f"{url!r}: a quorum needs a package that is not installed: pip install 'oncelog[object]'"
        raise Unsupported(message)
    parts = _parts(url)
    if parts.scheme == "file":
        return LocalStorage(_path(url, parts))
    if parts.scheme in _BUCKETS:
        return _in_bucket(url, parts, options or {}, plain=False)
    if parts.scheme == "memory" and parts.netloc:
        return MemoryStorage.named(parts.netloc)
    message = f"{url!r}: the store of a quorum is a folder (file:///…) or a bucket (s3://bucket/prefix)"
    raise InvalidArgument(message)


def node_options(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the options of nodes that the environment gives.

    >>> node_options({"ONCELOG_NODE_AZ1_ACCESS_KEY_ID": "k"})
    {'az1': {'access_key_id': 'k'}}
    """
    found: dict[str, dict[str, str]] = {}
    for variable, value in environment.items():
        if variable.startswith(_NODE_VARIABLE):
            node, _, option = variable.removeprefix(_NODE_VARIABLE).lower().partition("_")
            found.setdefault(node, {})[option] = value
    return found


def _in_bucket(url: str, parts: SplitResult, options: Mapping[str, str], *, plain: bool) -> Storage:
    if "@" in parts.netloc:
        message = f"{url!r}: the URL of a bucket has no user: give access_key_id and secret_access_key as options"
        raise InvalidArgument(message)
    if not parts.netloc or parts.query or parts.fragment:
        message = (
            f"{url!r}: a URL of a bucket is {parts.scheme}://bucket or {parts.scheme}://bucket/prefix, without more"
        )
        raise InvalidArgument(message)
    try:
        from oncelog.storage.bucket.bucket import Bucket  # noqa: PLC0415  who has no bucket needs no client of one
        from oncelog.storage.bucket.home import ObjectStorage  # noqa: PLC0415
    except ImportError as error:
        message = f"{url!r}: buckets need a package that is not installed: pip install 'oncelog[object]'"
        raise Unsupported(message) from error
    return ObjectStorage(Bucket.connect(url.rstrip("/"), options), plain=plain)


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        message = f"{url!r} is not a URL ({error}): use file:///path, s3://bucket/prefix or memory://"
        raise InvalidArgument(message) from error


def _path(url: str, parts: SplitResult) -> Path:
    """Return the folder of a file URL, of which nothing may be left over."""
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        message = f"{url!r}: a file URL has three slashes and an absolute path, as in file:///var/lib/shop"
        raise InvalidArgument(message)
    if parts.query or parts.fragment:
        message = f"{url!r}: write %3F for a ? and %23 for a # in a folder's name, or use Path(…).as_uri()"
        raise InvalidArgument(message)
    path = unquote(parts.path)
    if "\0" in path:
        message = f"{url!r}: no folder has a zero byte in its name"
        raise InvalidArgument(message)
    return Path(path)
