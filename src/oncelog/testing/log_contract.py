"""What every log must do, wherever it lives: one suite that each kind of database runs.

Derive a class from ``LogContract`` in a test file and give it two fixtures::

    class TestMine(LogContract):
        @pytest.fixture
        def database(self):
            with oncelog.connect("mine://…") as db:
                yield db

        @pytest.fixture
        def reopen(self, database):
            def again(*, crash):
                ...  # close it, or let its process die with all handles open
                return oncelog.connect("mine://…")

            return again

``reopen`` ends the first database and returns another one on the same logs; it may be called several times in a test.
"""

from __future__ import annotations

from oncelog.testing.logs.batches import ArrowContract, ManyContract
from oncelog.testing.logs.life import LifeContract, ReopenContract, SettingsContract
from oncelog.testing.logs.reading import ReadContract, TailContract
from oncelog.testing.logs.writing import AppendContract, ConflictContract, IdempotenceContract, SubmitContract


class LogContract(
    AppendContract,
    SubmitContract,
    ConflictContract,
    ManyContract,
    ArrowContract,
    IdempotenceContract,
    ReadContract,
    TailContract,
    SettingsContract,
    LifeContract,
    ReopenContract,
):
    """The public surface of a log, as programs are written against it."""
