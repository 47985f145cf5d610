"""The records that every contender stores: ids of 28 to 36 bytes, values of random bytes, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_ID_BYTES_MIN, _ID_BYTES_MAX = 28, 36
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "<u2")


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one commit, in columns."""

    ids: pa.Array
    values: pa.Array

    def table(self) -> pa.RecordBatch:
        """Return what ``append_arrow`` takes."""
        return pa.record_batch({"value": self.values, "id": self.ids})

    def anonymous(self) -> pa.RecordBatch:
        """Return the values alone."""
        return pa.record_batch({"value": self.values})

    def folded(self) -> pa.RecordBatch:
        """Return values that begin with the id: where nobody keeps ids, the same bytes are stored all the same."""
        pairs = zip(self.ids.to_pylist(), self.values.to_pylist(), strict=True)
        return pa.record_batch({"value": pa.array([id.encode() + value for id, value in pairs], pa.binary())})

    def rows(self) -> list[tuple[str, bytes]]:
        """Return the records one by one."""
        return list(zip(self.ids.to_pylist(), self.values.to_pylist(), strict=True))

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.ids)


class Source:
    """Makes batches of records that never occurred before."""

    def __init__(self, value_bytes: int, seed: int = 1) -> None:
        """Draw from one seed: two sources of the same seed give the same records."""
        self._random = np.random.default_rng(seed)
        self._value_bytes = value_bytes

    def batch(self, count: int) -> Batch:
        """Return so many new records."""
        return Batch(self._ids(count), self._values(count))

    def retried(self, before: Batch, count: int) -> Batch:
        """Return records half of which were in the batch before this one, in any order."""
        repeats = count // 2
        new = self.batch(count - repeats)
        chosen = self._random.permutation(len(before))[:repeats]
        order = pa.array(self._random.permutation(count))
        ids = pa.concat_arrays([new.ids, before.ids.take(pa.array(chosen))])
        values = pa.concat_arrays([new.values, before.values.take(pa.array(chosen))])
        return Batch(ids.take(order), values.take(order))

    def _ids(self, count: int) -> pa.Array:
        letters = _HEX[self._random.integers(0, 256, (count, _ID_BYTES_MAX // 2), np.uint8)].view(np.uint8)
        lengths = self._random.integers(_ID_BYTES_MIN, _ID_BYTES_MAX + 1, count)
        data = letters[np.arange(_ID_BYTES_MAX) < lengths[:, None]]
        return pa.StringArray.from_buffers(count, _offsets(lengths), pa.py_buffer(data))

    def _values(self, count: int) -> pa.Array:
        data = self._random.bytes(count * self._value_bytes)
        offsets = _offsets(np.full(count, self._value_bytes))
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


def _offsets(lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Buffer:
    return pa.py_buffer(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
