"""Commands begin quickly: what only draws, converts or computes is not loaded for a list of logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from tests.cli.shell import environment

_RUN = """
import sys
from oncelog.cli import run
code = run(sys.argv[1:])
print(sorted({"pydantic", "pyarrow.compute", "rich.markdown", "asyncio"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""

OWN_MODULES_MAX = 210
MODULES_MAX = 500


@pytest.mark.parametrize("command", [["log", "list"], ["log", "list", "--json"], ["log", "info", "orders"]])
def test_usual_commands_load_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    """To load pydantic takes longer than to list logs; Typer does so for each value unless it is spared."""
    with oncelog.connect(tmp_path.as_uri()) as db:
        db.log("orders", create=True)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *command, "--url", tmp_path.as_uri()],
        env=environment(None),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"
    assert "orders" in done.stdout


def test_a_first_append_loads_little(tmp_path: Path) -> None:
    """A fresh process that appends one record waits for Python, numpy, pyarrow, and for nothing that it does not use.

    Modules are counted, because time is not the same on a machine that is busy: each costs about 0.4 ms.
    """
    program = f"""
import sys, oncelog
with oncelog.connect({str(tmp_path)!r}) as db, db.log("a", create=True).writer() as w:
    w.append(b"x", id="1")
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    heavy = {"asyncio", "duckdb", "grpc", "multiprocessing", "numba", "obstore", "pandas", "pyarrow.compute"}
    heavy |= {"pyarrow.parquet", "pydantic", "rich", "sqlite3", "ssl", "subprocess", "typer", "xml"}
    assert heavy & set(loaded) == set()
    assert sum(name.startswith("oncelog") for name in loaded) <= OWN_MODULES_MAX
    assert len(loaded) <= MODULES_MAX


def test_a_life_of_a_log_loads_no_pandas(tmp_path: Path) -> None:
    """To append, deduplicate, seal and read a log needs no pandas. Arrow loads it, where it is installed, to convert a
    list or an array of numpy: that takes longer than to seal a file, while appends wait for the interpreter.
    """
    program = f"""
import sys, oncelog
records = [oncelog.Record(b"%d" % number, id=str(number)) for number in range(3000)]
with oncelog.connect({str(tmp_path)!r}) as db:
    with db.log("a", create=True).writer() as w:
        w.append_many(records[:2000])
        w.append_many(records[1000:])
        w.append_batch(records[:1])
        for batch in db.log("a").read_arrow():
            w.append_arrow(batch.select(["id", "value"]))
    db.log("a").writer().close()
    assert db.log("a").seal().records == 3000
    assert db.log("a").verify().ok
    assert [record.id for record in db.log("a").read()] == [record.id for record in records]
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
