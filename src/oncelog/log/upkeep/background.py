"""What has to be done now and then (snapshots, sealing, retention): in a thread of its own, one thing at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from oncelog.concurrency.trouble import Trouble
from oncelog.errors import Closed, OncelogError, WriterFenced


class Housekeeper:
    """Runs jobs off the append path. A job that fails is left: what it would have done is asked for again."""

    def __init__(self, logger: str = "oncelog.log", where: str = "a log") -> None:
        """Name the logger of jobs that fail, and of what they are."""
        self._logger, self._where = logger, where
        self._troubles: dict[str, Trouble] = {}
        self._lock = threading.Lock()
        self._jobs: dict[str, Callable[[], object]] = {}
        self._thread: threading.Thread | None = None

    def ask(self, name: str, job: Callable[[], object]) -> None:
        """Have a job done soon; asking again before it has begun changes nothing."""
        with self._lock:
            self._jobs.setdefault(name, job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="oncelog-housekeeping", daemon=True)
                with contextlib.suppress(RuntimeError):  # there are no more threads: it waits for the next time
                    thread.start()
                    self._thread = thread

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                name = next(iter(self._jobs))
                job = self._jobs.pop(name)
            trouble = self._troubles.setdefault(name, Trouble(self._logger, f"the job {name!r} of {self._where}"))
            try:
                job()
                trouble.end()
            except (Closed, WriterFenced):  # the writer has ended, and says so itself
                continue
            except OncelogError as error:
                trouble.begin(error)
                continue
            except BaseException:
                with self._lock:
                    self._thread = None  # a bug in one job must not keep the next from being done
                raise

    def stop(self) -> None:
        """Begin nothing more, and return when what was begun is done."""
        with self._lock:
            self._jobs.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
