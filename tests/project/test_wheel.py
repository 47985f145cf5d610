"""What is shipped is what Spark looks for: a module of its own at the top, named as those are that Spark imports."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK = """
import importlib, pkgutil
names = [found.name for found in pkgutil.iter_modules() if found.name.startswith("pyspark_")]
sources = {name: importlib.import_module(name) for name in names}
print(sources["pyspark_oncelog"].DefaultSource.name(), sources["pyspark_oncelog"].__file__)
"""
"""What Spark does when a format is not its own."""


def test_the_wheel_has_what_spark_looks_for(tmp_path: Path) -> None:
    """With nothing but the wheel on the path the format is found, in the wheel, which holds the package and no more."""
    wheel = importlib.import_module("hatchling.builders.wheel")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"oncelog", "pyspark_oncelog.py"}
    environment = os.environ | {"PYTHONPATH": built}
    found = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    name, place = found.stdout.split()
    assert name == "oncelog"
    assert place.startswith(built)
