"""Asking the one who holds a log to let it go, through the log itself: where no lock keeps the others out.

::

    requests/<epoch>    somebody would like to have the log from the writer of that epoch
    answers/<epoch>     that writer lives, and will let it go in so many milliseconds

A holder that does not answer, or does not do as it said, is taken for dead, and fenced. That is safe, dead or not: this
is a courtesy, not a lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.errors import LogBusy, NotFound, OncelogError
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import LogHome

TENURE_S = 5.0
"""A writer keeps a log at least so long, although another asks for it."""

SERVER_TENURE_S_MAX = 600.0
"""A server may keep a log for longer, but never for longer than this."""

LOOK_S = 1.0
"""So often a writer looks whether somebody asks for its log."""

ANSWER_S = 3.0
"""A holder that has not answered by then counts as dead."""

POLL_S = 0.1
_DIGITS = 18
"""More of them is no answer that a writer gives."""


def request_key(epoch: int) -> str:
    """Return the key of what is asked of the writer of ``epoch``."""
    return f"requests/{epoch:020d}"


def answer_key(epoch: int) -> str:
    """Return the key of its answer."""
    return f"answers/{epoch:020d}"


def ask(home: LogHome, manifests: Manifests, clock: Clock, wait_s: float, answer_s: float | None = None) -> None:
    """Return when the log may be taken: nobody holds it, its holder let it go, or does not answer.

    Raises ``LogBusy`` when a holder that answers keeps it for ``wait_s``.
    """
    answer_us = int((ANSWER_S if answer_s is None else answer_s) * 1e6)
    started_us = clock.elapsed_us()
    asked_epoch, patience_until_us, answered, request = -1, 0, False, b""
    idle = threading.Condition()
    known = manifests.newest()
    while True:
        if known is None:
            message = "the log's manifest is gone: was it deleted?"
            raise NotFound(message)
        if known.manifest.open_segment is None:
            return
        epoch, now_us = known.manifest.epoch, clock.elapsed_us()
        home.create(request_key(epoch), [clock.token(8)])  # again, if another who asked has given up
        if epoch != asked_epoch:
            asked_epoch, patience_until_us, answered = epoch, now_us + answer_us, False
            request = _request(home, epoch)
        longest_s = TENURE_S if known.manifest.holder is None else SERVER_TENURE_S_MAX
        if not answered and (left_ms := _answer(home, epoch, longest_s)) is not None:
            patience_until_us, answered = now_us + left_ms * 1000 + answer_us, True
        if now_us >= patience_until_us:
            if answered or (newer := _request(home, epoch)) == request:
                return
            # Another who asked was answered and gave up, and took request and answer away: the holder lives.
            request, patience_until_us = newer, now_us + answer_us
        if answered and now_us - started_us >= wait_s * 1e6:
            # Nobody waits for it any more: the holder keeps the log. Its answer goes too: a holder that died after it
            # answered would be taken for alive by everybody who waits for less than the answer says.
            for key in (request_key(epoch), answer_key(epoch)):
                with contextlib.suppress(OncelogError):
                    home.delete(key)
            message = f"log {known.manifest.name!r} is held by a living writer: wait longer, or take it by force"
            raise LogBusy(message)
        with idle:
            clock.wait(idle, POLL_S)
        known = manifests.newest(known)


def _request(home: LogHome, epoch: int) -> bytes:
    """Return what is asked of the writer of ``epoch``: each request is another one."""
    try:
        return bytes(home.read(request_key(epoch)))
    except NotFound:
        return b""


def _answer(home: LogHome, epoch: int, longest_s: float) -> int | None:
    """Return in how many milliseconds the writer of ``epoch`` will let go; ``None`` when it has not answered."""
    try:
        left = home.read(answer_key(epoch)).to_pybytes()
    except NotFound:
        return None
    return min(int(left[:_DIGITS]), int(longest_s * 1000)) if left.isdigit() else 0


class Watch:
    """Looks, for one writer, whether somebody asks for its log, and lets it go then.

    It answers from the moment that the log is taken, though only a writer that has recovered can let go: a recovery
    that takes long is not taken for dead.
    """

    def __init__(self, home: LogHome, clock: Clock, epoch: int, tenure_s: float | None = None) -> None:
        self._home = home
        self._clock = clock
        self._epoch = epoch
        self._let_go: Callable[[], None] | None = None
        self._has_ended: Callable[[], bool] = lambda: False
        self._seen: Callable[[], None] = lambda: None
        self._until_us = clock.elapsed_us() + int((TENURE_S if tenure_s is None else tenure_s) * 1e6)
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        if not home.exclusive:
            self._thread = threading.Thread(target=self._watch, name="oncelog-watch", daemon=True)
            with contextlib.suppress(RuntimeError):  # without a thread nobody is answered, and the fence decides
                self._thread.start()

    def serve(self, let_go: Callable[[], None], has_ended: Callable[[], bool], seen: Callable[[], None]) -> None:
        """From now on let go when asked to, as long as the log is this writer's (``has_ended`` tells when not).

        ``seen`` is called whenever storage has answered: an idle writer learns of an outage from nobody else.
        """
        with self._changed:
            self._let_go, self._has_ended, self._seen = let_go, has_ended, seen

    def _watch(self) -> None:
        self._clear(self._epoch - 1)  # of a holder that was killed, and could not
        while not self._wait(LOOK_S) and not self._has_ended():
            with contextlib.suppress(OncelogError):
                if self._asked() and self._let_go is not None:
                    self._let_go()
                    break
        self._clear(self._epoch)

    def _clear(self, epoch: int) -> None:
        """Remove what was asked of an epoch that is over, and its answer."""
        for key in (request_key(epoch), answer_key(epoch)):
            with contextlib.suppress(OncelogError):
                self._home.delete(key)

    def _asked(self) -> bool:
        """Tell whether the log is to be let go now."""
        is_wanted = self._home.exists(request_key(self._epoch))
        self._seen()
        if not is_wanted:
            return False
        left_s = (self._until_us - self._clock.elapsed_us()) / 1e6
        if left_s <= 0 and self._let_go is not None:
            return True
        left_s = left_s if self._let_go is not None else TENURE_S  # it cannot let go before it has recovered
        self._home.create(answer_key(self._epoch), [b"%d" % (left_s * 1000)])
        if self._let_go is None or left_s > LOOK_S:
            return False  # answer again at the next look: somebody who gave up may have removed the answer
        return not self._wait(left_s) and self._is_still_wanted()

    def _is_still_wanted(self) -> bool:
        """Tell whether somebody still waits for the log; a process that only looked has taken its request back."""
        if self._home.exists(request_key(self._epoch)):
            return True
        self._home.delete(answer_key(self._epoch))  # it tells of a moment that is over
        return False

    def _wait(self, timeout_s: float) -> bool:
        """Wait; tell whether it is over."""
        with self._changed:
            if not self._stopping:
                self._clock.wait(self._changed, timeout_s)
            return self._stopping

    def stop(self) -> None:
        """Look no more, and return when what was begun is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join()
