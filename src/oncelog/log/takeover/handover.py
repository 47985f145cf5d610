"""Asking the one who holds a log to let it go, through the log itself: where no lock keeps the others out.

::

    requests/<epoch>    somebody would like to have the log from the writer of that epoch
    answers/<epoch>     that writer lives, and will let it go in so many milliseconds

A holder that does not answer, or does not do as it said, is taken for dead, and fenced. That is safe, dead or not: this
is a courtesy, not a lock.

A process that holds a thousand logs does not look for a thousand requests. It has one *mailbox* for all logs of a
database, whose name is the first half of ``Manifest.writer``, and looks for one object every second::

    ~mailboxes/<mailbox>/mail                     somebody has asked for a log since the last look
    ~mailboxes/<mailbox>/asked/<log id>.<epoch>   for this one
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from oncelog.clock import Clock
from oncelog.errors import LogBusy, NotFound, OncelogError
from oncelog.format.manifest import Manifest
from oncelog.log.stored.manifests import Manifests
from oncelog.storage.base import LogHome, Storage

TENURE_S = 5.0
"""A writer keeps a log at least so long, although another asks for it."""

SERVER_TENURE_S_MAX = 600.0
"""A server may keep a log for longer, but never for longer than this."""

LOOK_S = 1.0
"""So often a process looks whether somebody asks for one of its logs. Who asks puts mail up again as often."""

ANSWER_S = 3.0
"""A holder that has not answered by then counts as dead."""

POLL_S = 0.1
_DIGITS = 18
"""More of them is no answer that a writer gives."""

MAILBOXES = "~mailboxes"
"""The key of the home of the mailboxes: no log's name becomes it."""

MAILBOX_BYTES = 8
"""So many bytes of ``Manifest.writer`` name the mailbox of the writer's process."""


def request_key(epoch: int) -> str:
    """Return the key of what is asked of the writer of ``epoch``."""
    return f"requests/{epoch:020d}"


def answer_key(epoch: int) -> str:
    """Return the key of its answer."""
    return f"answers/{epoch:020d}"


def _mail_key(mailbox: bytes) -> str:
    return f"{mailbox.hex()}/mail"


def _asked_prefix(mailbox: bytes) -> str:
    return f"{mailbox.hex()}/asked/"


def _asked_key(mailbox: bytes, log_id: str, epoch: int) -> str:
    return f"{_asked_prefix(mailbox)}{log_id}.{epoch:020d}"


class AskingMail:
    """Mail of one who asks for a log, in the mailbox of the log's holder.

    Mail is put up again every ``LOOK_S`` until it is answered: another who asked may have removed the sign of mail.
    """

    def __init__(self, mailboxes: LogHome, clock: Clock) -> None:
        self._mailboxes = mailboxes
        self._clock = clock
        self._mailbox, self._asked = b"", ""
        self._again_us = 0

    def make(self, manifest: Manifest, *, again: bool, answered: bool) -> None:
        """Put mail up: for which log first, then that there is mail. Mail that is up stays, unless ``again``, or it is
        not ``answered`` and was put up a while ago.
        """
        now_us = self._clock.elapsed_us()
        if len(manifest.writer) < MAILBOX_BYTES:
            return  # its holder has no mailbox
        if again or (not answered and now_us >= self._again_us):
            mailbox = manifest.writer[:MAILBOX_BYTES]
            asked = _asked_key(mailbox, manifest.log_id, manifest.epoch)
            if asked != self._asked:
                self.take_back()  # the holder is another one now
            self._mailbox, self._asked = mailbox, asked
            self._again_us = now_us + int(LOOK_S * 1e6)
            self._mailboxes.create(self._asked, [])
            self._mailboxes.create(_mail_key(self._mailbox), [])

    def take_back(self) -> None:
        """Remove mail that nobody has read: its process is dead, or let the log go meanwhile."""
        with contextlib.suppress(OncelogError):
            if self._asked:
                self._mailboxes.delete(self._asked)
                if not self._mailboxes.list(_asked_prefix(self._mailbox)):
                    self._mailboxes.delete(_mail_key(self._mailbox))


def ask(
    home: LogHome,
    manifests: Manifests,
    clock: Clock,
    wait_s: float,
    answer_s: float | None = None,
    *,
    mailboxes: LogHome,
) -> None:
    """Return when the log may be taken: nobody holds it, its holder let it go, or does not answer.

    Raises ``LogBusy`` when a holder that answers keeps it for ``wait_s``.
    """
    mail = AskingMail(mailboxes, clock)
    try:
        _ask(home, manifests, clock, mail, wait_s=wait_s, answer_s=ANSWER_S if answer_s is None else answer_s)
    finally:
        mail.take_back()


def _ask(
    home: LogHome, manifests: Manifests, clock: Clock, mail: AskingMail, *, wait_s: float, answer_s: float
) -> None:
    answer_us = int(answer_s * 1e6)
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
        is_new = home.create(request_key(epoch), [clock.token(8)])  # again, if another who asked has given up
        if epoch != asked_epoch:
            asked_epoch, patience_until_us, answered = epoch, now_us + answer_us, False
            request = _request(home, epoch)
        mail.make(known.manifest, again=is_new, answered=answered)
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
            _clear(home, epoch)
            message = f"log {known.manifest.name!r} is held by a living writer: wait longer, or take it by force"
            raise LogBusy(message)
        with idle:
            clock.wait(idle, POLL_S)
        known = manifests.newest(known)


def _clear(home: LogHome, epoch: int) -> None:
    """Remove what was asked of the writer of ``epoch``, and its answer."""
    for key in (request_key(epoch), answer_key(epoch)):
        with contextlib.suppress(OncelogError):
            home.delete(key)


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


class Mailbox:
    """Where a process is asked for the logs that it holds of one database: one look and one thread for all of them.

    The thread is there while the process holds a log. Each answer of storage is a sign of life for all held logs.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._changed = threading.Condition()
        self._watches: dict[str, Watch] = {}  # by the key of what is asked
        self._shift: object | None = None  # of the thread that looks: another object for each
        self._name = b""
        self._has_mail = False  # seen, and not read to its end

    @property
    def home(self) -> LogHome:
        """Where all mailboxes of the database are."""
        return self._storage.home(MAILBOXES)

    @property
    def name(self) -> bytes:
        """The name of this mailbox, with which ``Manifest.writer`` of each held log begins."""
        with self._changed:
            self._name = self._name or self._clock.token(MAILBOX_BYTES)
            return self._name

    def key_of(self, manifest: Manifest) -> str:
        """Return the key under which somebody asks for a log that is held in this epoch."""
        return _asked_key(self.name, manifest.log_id, manifest.epoch)

    def join(self, key: str, watch: Watch) -> None:
        """Look for those who ask for a log, from now on."""
        with self._changed:
            self._watches[key] = watch
            if self._shift is None:
                shift = object()
                thread = threading.Thread(target=self._look_on, args=(shift,), name="oncelog-watch", daemon=True)
                with contextlib.suppress(RuntimeError):  # without a thread nobody is answered, and the fence decides
                    thread.start()
                    self._shift = shift

    def leave(self, key: str) -> None:
        """Look for them no more."""
        with self._changed:
            self._watches.pop(key, None)
            if not self._watches:
                self._shift = None
                self._changed.notify_all()

    def _look_on(self, shift: object) -> None:
        try:
            while watches := self._held(shift):
                with contextlib.suppress(Exception):  # of one look: the next may succeed
                    self._look(watches)
        finally:
            with self._changed:
                self._shift = None if self._shift is shift else self._shift

    def _held(self, shift: object) -> dict[str, Watch]:
        """Wait; return the logs that are held then: none if this thread is to end."""
        with self._changed:
            if self._shift is shift:
                self._clock.wait(self._changed, LOOK_S)
            if self._shift is not shift:
                return {}
            self._watches = {key: watch for key, watch in self._watches.items() if not watch.has_ended}
            if not self._watches:
                self._shift = None
            return dict(self._watches)

    def _look(self, watches: dict[str, Watch]) -> None:
        """Read the mail, if there is mail. First wake every watch whose log is asked for, then delete the mail: a
        deletion is a request, and the watches of many logs must not wait for many requests.
        """
        home, mail = self.home, _mail_key(self.name)
        self._has_mail = home.exists(mail) or self._has_mail
        for watch in watches.values():
            watch.note_sign()
        if not self._has_mail:
            return
        home.delete(mail)  # first: who asks from now on puts it up again
        asked = home.list(_asked_prefix(self.name))
        for key in asked:
            if key in watches:
                watches[key].knock()
        for key in asked:
            home.delete(key)
        self._has_mail = False


class Watch:
    """Answers, for one writer, those who ask for its log, and lets it go then.

    It answers from the moment that the log is taken, though only a writer that has recovered can let go: a recovery
    that takes long is not taken for dead. Its thread begins when somebody asks, and ends when nobody does any more.
    """

    def __init__(
        self, home: LogHome, clock: Clock, manifest: Manifest, mailbox: Mailbox | None, tenure_s: float | None = None
    ) -> None:
        """Prepare to watch for those who ask, where there is a mailbox: elsewhere a lock keeps them out."""
        self._home = home
        self._clock = clock
        self._epoch = manifest.epoch
        self._let_go: Callable[[], None] | None = None
        self._has_ended: Callable[[], bool] = lambda: False
        self._seen: Callable[[], None] = lambda: None
        self._until_us = clock.elapsed_us() + int((TENURE_S if tenure_s is None else tenure_s) * 1e6)
        self._changed = threading.Condition()
        self._stopping = False
        self._knocked = self._wanted = False
        self._thread: threading.Thread | None = None
        self._mailbox = mailbox
        if mailbox is not None:
            self._key = mailbox.key_of(manifest)

    def begin(self) -> None:
        """Watch from now on, until ``stop``: call that also if this is interrupted."""
        if self._mailbox is not None:
            self._mailbox.join(self._key, self)
            _clear(self._home, self._epoch - 1)  # of a holder that was killed, and could not

    def serve(self, let_go: Callable[[], None], has_ended: Callable[[], bool], seen: Callable[[], None]) -> None:
        """From now on let go when asked to, as long as the log is this writer's (``has_ended`` tells when not).

        ``seen`` is called whenever storage has answered: an idle writer learns of an outage from nobody else.
        """
        with self._changed:
            self._let_go, self._has_ended, self._seen = let_go, has_ended, seen

    @property
    def has_ended(self) -> bool:
        """Whether the log is this writer's no more: then nobody can ask for it here."""
        return self._has_ended()

    def note_sign(self) -> None:
        """Note that storage has answered."""
        self._seen()

    def knock(self) -> None:
        """Have a thread answer: somebody asks for the log."""
        with self._changed:
            self._knocked = True
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._attend, name="oncelog-handover", daemon=True)
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def _attend(self) -> None:
        """Answer until nobody asks any more, or the log is let go."""
        try:
            while self._goes_on():
                with contextlib.suppress(Exception):  # it answers again at the next look
                    if self._asked() and self._let_go is not None:
                        self._let_go()
                        _clear(self._home, self._epoch)
                if self._wanted:
                    self._wait(LOOK_S)
        finally:
            with self._changed:
                self._thread = None if self._thread is threading.current_thread() else self._thread

    def _goes_on(self) -> bool:
        with self._changed:
            if self._stopping or self._has_ended() or not (self._knocked or self._wanted):
                self._thread = None
                return False
            self._knocked, self._wanted = False, True
            return True

    def _asked(self) -> bool:
        """Tell whether the log is to be let go now."""
        if not self._is_still_wanted():
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
        self._wanted = self._home.exists(request_key(self._epoch))
        if not self._wanted:
            self._home.delete(answer_key(self._epoch))  # it tells of a moment that is over
        return self._wanted

    def _wait(self, timeout_s: float) -> bool:
        """Wait; tell whether it is over."""
        with self._changed:
            if not self._stopping:
                self._clock.wait(self._changed, timeout_s)
            return self._stopping

    def stop(self) -> None:
        """Look no more, and return when what was begun is done."""
        with self._changed:
            was_stopping, self._stopping = self._stopping, True
            self._changed.notify_all()
            thread = self._thread
        if self._mailbox is None or was_stopping:
            return
        self._mailbox.leave(self._key)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if not self._has_ended():
            _clear(self._home, self._epoch)
