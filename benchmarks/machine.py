"""What it was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def machine(folder: Path) -> dict[str, str]:
    """Return processor, memory, file system and versions."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "pyarrow", "oncelog"))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory_gib:.0f} GiB",
        "file system": _file_system(folder),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "load when it began": f"{os.getloadavg()[0]:.1f}",
        "versions": f"Python {platform.python_version()}, {versions}",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the kind of file system a folder is on: that of the longest mount point it lies below."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    points = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    below = [(point, kind) for point, kind in points if folder.resolve().is_relative_to(point)]
    return max(below, key=lambda found: len(found[0]))[1] if below else "unknown"
