"""Profiles: databases by a name of one's own, with what is needed to reach them.

They are in one file of the user's, ``~/.config/oncelog/profiles.json`` (``ONCELOG_PROFILES`` names another). No secret
is in it: a token stays in a file of its own, and the profile says where.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from oncelog import names
from oncelog.errors import InvalidArgument, NotFound
from oncelog.names import check as check_name
from oncelog.redaction import redacted
from oncelog.shapes import UNREADABLE

SCHEME = "profile:"
"""``connect("profile:prod")`` opens the database of a profile."""

FILE_VARIABLE = "ONCELOG_PROFILES"
_FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")
_PRIVATE = ("token_file", "tls_key")
"""Options that name a file with a secret in it: nobody else may read it."""

OPTIONS = ("token_file", "tls", "tls_ca", "tls_cert", "tls_key", "tls_name")
"""What a profile may say of a server."""


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A database: its URL, and the options to connect with."""

    url: str
    options: Mapping[str, str] = {}


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file that profiles are in."""
    if given := environment.get(FILE_VARIABLE):
        return Path(given)
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "oncelog" / "profiles.json"


def load(file: Path) -> dict[str, Profile]:
    """Return all profiles; none if there is no file. A file that others may write is refused: the one who changes a URL
    in it is sent the token.
    """
    try:
        with file.open("rb") as opened:
            _check_owned(
                file, os.fstat(opened.fileno()), stat.S_IWGRP | stat.S_IWOTH, "may be written by others", "go-w"
            )
            return msgspec.json.decode(opened.read(), type=dict[str, Profile])
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        message = f"the profiles in {str(file)!r} cannot be read: {error}"
        raise InvalidArgument(message) from error


def find(name: str, file: Path) -> Profile:
    """Return a profile, after a look at the modes of the files with its secrets."""
    profiles = load(file)
    if name not in profiles:
        message = f"there is no profile {name!r} in {str(file)!r}: there are {', '.join(sorted(profiles)) or 'none'}"
        raise NotFound(message)
    check_secrets(profiles[name])
    return profiles[name]


def add(name: str, profile: Profile, file: Path) -> bool:
    """Store a profile; return whether one of that name was there, and is replaced."""
    check_name(name, "profile")
    _check(profile)
    options = {key: str(Path(value).absolute()) if key in _FILES else value for key, value in profile.options.items()}
    is_path = not urlsplit(profile.url).scheme
    whole = Profile(Path(profile.url).absolute().as_uri() if is_path else profile.url, options)
    check_secrets(whole)
    profiles = load(file)
    was_there = name in profiles
    _store({**profiles, name: whole}, file)
    return was_there


def remove(name: str, file: Path) -> None:
    """Forget a profile; the files that it names stay. ``NotFound`` if it is not there."""
    profiles = load(file)
    if profiles.pop(name, None) is None:
        message = f"there is no profile {name!r} in {str(file)!r}: there are {', '.join(sorted(profiles)) or 'none'}"
        raise NotFound(message)
    _store(profiles, file)


def _check(profile: Profile) -> None:
    if profile.url.startswith(SCHEME):
        message = f"{profile.url!r}: a profile names a database, not another profile"
        raise InvalidArgument(message)
    if redacted(profile.url) != profile.url:
        message = (
            f"{profile.url!r}: secrets are not kept in a profile: give them as options or in the environment, "
            "and a token in a file (--token-file)"
        )
        raise InvalidArgument(message)
    if profile.options and not profile.url.startswith(names.SERVER_SCHEMES):
        message = f"tokens and TLS are for servers (oncelog://host:port), not for {profile.url!r}"
        raise InvalidArgument(message)
    for name in profile.options:
        if name not in OPTIONS:
            message = f"option {name!r}: a profile has {', '.join(OPTIONS)}; secrets are not kept in it"
            raise InvalidArgument(message)


def check_secrets(profile: Profile) -> None:
    """Raise ``InvalidArgument`` for a file with a secret that others than its owner may read."""
    for name in _PRIVATE:
        if name in profile.options:
            secret = Path(profile.options[name])
            try:
                found = secret.stat()
            except OSError as error:
                message = f"{name} {str(secret)!r} cannot be read: {error}"
                raise InvalidArgument(message) from error
            _check_owned(secret, found, stat.S_IRWXG | stat.S_IRWXO, "may be read by others", "600")


def _check_owned(file: Path, found: os.stat_result, forbidden: int, what: str, remedy: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        message = f"{str(file)!r} is not a file"
        raise InvalidArgument(message)
    if found.st_uid not in {os.geteuid(), 0}:
        message = f"{str(file)!r} belongs to another user (uid {found.st_uid}): it is not trusted"
        raise InvalidArgument(message)
    if found.st_mode & forbidden:
        message = f"{str(file)!r} {what} (mode {stat.S_IMODE(found.st_mode):04o}): chmod {remedy} it"
        raise InvalidArgument(message)


def _store(profiles: Mapping[str, Profile], file: Path) -> None:
    """Replace the file whole: who is killed in the midst leaves the old one."""
    data = msgspec.json.format(msgspec.json.encode(dict(sorted(profiles.items()))), indent=2) + b"\n"
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(file)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        message = f"the profiles in {str(file)!r} cannot be written: {error}"
        raise InvalidArgument(message) from error
