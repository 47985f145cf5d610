"""A home for Spark on this machine whose Python workers start in a third of the time.

Spark's workers import ``pyspark.zip``, which holds no compiled modules, so that each start compiles hundreds of files.
This home is links to the installed pyspark, in which that zip is a folder that leads to the installed package.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path


def use() -> None:
    """Have Spark use this home, unless there is another, or this one cannot be made."""
    if "SPARK_HOME" in os.environ:
        return
    try:
        os.environ["SPARK_HOME"] = str(made())
    except OSError:
        return  # it only saves time


def made() -> Path:
    """Return the home; it is made when it is not there, and belongs to one installation of pyspark."""
    package, py4j = _package("pyspark"), _package("py4j")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncelog"
    installed = f"{package} {os.stat(package).st_mtime_ns}"  # noqa: PTH116 (one line)
    home = cache / f"spark-{hashlib.sha256(installed.encode()).hexdigest()[:16]}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(cache)
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _link(package, py4j, Path(folder) / "home")
            try:
                (Path(folder) / "home").rename(home)
            except OSError:  # somebody else made it meanwhile
                if not home.exists():
                    raise
    _check_own(home)
    return home


def _check_own(folder: Path) -> None:
    """Raise ``OSError`` for a folder that others can write: the code that Spark runs is found there."""
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        message = f"{folder} belongs to somebody else, or others may write there"
        raise PermissionError(message)


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        message = f"{name} is not installed"
        raise FileNotFoundError(message)
    return Path(found.origin).parent.resolve()


def _link(package: Path, py4j: Path, home: Path) -> None:
    home.mkdir()
    for path in package.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    for archive in (package / "python" / "lib").glob("*.zip"):
        folder = home / "python" / "lib" / archive.name
        folder.mkdir(parents=True)
        target = py4j if archive.name.startswith("py4j") else package
        (folder / target.name).symlink_to(target)
