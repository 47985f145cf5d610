"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

AUTHORITY = ("-addext", "keyUsage=critical,keyCertSign")
"""What an authority must say of itself: Python from 3.13 on believes no other."""

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make(folder: Path, names: dict[str, str]) -> Path:
    """Make an authority (``ca.pem``), and for each name a certificate with alternative names; return the folder."""
    authority = ("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test", "-days", "2", *AUTHORITY)
    _openssl(folder, "req", "-x509", *_KEY, *authority)
    for name, san in names.items():
        _openssl(folder, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "san").write_text(f"subjectAltName={san}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    return folder
