"""Counting what came in, what was stored, and what came out, from the files themselves: nothing here asks those who
wrote them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

import oncelog
from oncelog.errors import NotFound


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a number of attempts to tell of a number of logical records."""

    logical: int
    attempts: int
    stored: int
    duplicates: int
    conflicts: int
    lost: int
    doubled: int


def data_files(folder: Path) -> list[Path]:
    """Return the files with data in a folder; names that begin with _ or . are nobody's data, as everywhere."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )


def input_rows(folder: Path, format: str, id: str, leave_out: set[str]) -> pd.DataFrame:
    """Return the attempts in the order of their files: all columns as text, the id, and a hash of the content."""
    tables = [ds.dataset(path, format=format).to_table() for path in data_files(folder)]
    rows = pa.concat_tables(tables, promote_options="permissive").to_pandas(types_mapper=pd.ArrowDtype).astype("string")
    content = [name for name in rows.columns if name not in leave_out]
    rows["_content"] = pd.util.hash_pandas_object(rows[content], index=False)
    rows["_id"] = rows[id]
    return rows


def log_rows(url: str, name: str) -> pd.DataFrame:
    """Return the records of a log: ids, and values as they are."""
    with oncelog.connect(url) as db:
        try:
            log = db.log(name)
        except NotFound:
            return pd.DataFrame({"id": [], "value": []})
        batches = list(log.read_arrow(columns=["id", "value"]))
        return pa.Table.from_batches(batches).to_pandas() if batches else pd.DataFrame({"id": [], "value": []})


def parquet_ids(folder: Path, id: str) -> pd.Series[Any]:
    """Return the ids in all Parquet files of a folder, whoever wrote them."""
    files = [str(path) for path in data_files(folder)]
    if not files:
        return pd.Series([], dtype="string")
    return ds.dataset(files, format="parquet").to_table([id]).column(id).cast(pa.string()).to_pandas()


def settle(rows: pd.DataFrame, stored: pd.DataFrame, id: str) -> pd.DataFrame:
    """Say of each attempt what became of it: ``stored``, ``duplicate`` or ``conflict``.

    What is stored tells which of several contents stands; the first attempt with that content is the one that counts.
    """
    winners = _winners(rows, stored, id)
    stands = rows["_content"] == rows["_id"].map(winners)
    again = rows[stands].duplicated("_id").reindex(rows.index, fill_value=False)
    fate = pd.Series("stored", rows.index)
    fate[again] = "duplicate"
    fate[~stands] = "conflict"
    return rows.assign(_fate=fate)


def _winners(rows: pd.DataFrame, stored: pd.DataFrame, id: str) -> dict[str, int]:
    """Return the content that stands, for each id."""
    first = rows.drop_duplicates(["_id", "_content"])
    disputed = first[first["_id"].duplicated(keep=False)]
    found = dict(zip(first["_id"], first["_content"], strict=True))
    values = dict(zip(stored["id"], stored["value"], strict=True))
    for one in disputed.to_dict("records"):
        if _says(values.get(one["_id"]), one, id):
            found[one["_id"]] = one["_content"]
    return found


def _says(value: bytes | None, row: dict[Any, Any], id: str) -> bool:
    """Tell whether a stored value is that row's: every column it has is as in the row."""
    if value is None:
        return False
    told = msgspec.json.decode(value)
    return all(str(found) == str(row.get(name)) for name, found in told.items() if name != id)


def count(rows: pd.DataFrame, stored: pd.DataFrame, quarantined: int, out: pd.Series[Any]) -> Counted:
    """Return the figures of a pipeline: from its input, its log, what it put aside, and its output."""
    ids = set(rows["_id"].dropna())
    return Counted(
        logical=len(ids),
        attempts=len(rows),
        stored=len(stored),
        duplicates=len(rows) - len(stored) - quarantined,
        conflicts=quarantined,
        lost=len(ids - set(out)),
        doubled=len(out) - len(set(out)),
    )
