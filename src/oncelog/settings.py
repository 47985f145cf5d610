"""A log's settings: data, checked where they come in, stored with the log."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from oncelog import limits
from oncelog.errors import InvalidArgument
from oncelog.shapes import prepare

Idempotence = Literal["explicit", "content", "off"]
IdScope = Literal["log", "stream"]
OnConflict = Literal["error", "original"]
Seal = Literal["auto", "off"]


TIMEOUT_S = 30.0
"""How long a call waits for storage or for a server, unless ``timeout_s`` says otherwise."""

DURATION_S, MAX_KEYS = 600.0, 100_000
"""What a window that is bounded on one side only has on the other; truncation forgets no id sooner than these say."""

_FOREVER_US, _ALL_KEYS = 1 << 62, 1 << 40


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How long ids are remembered: as long as their records are in the log, or less where the user bounds it.

    ``Window()`` is unbounded. ``duration_s`` and ``max_keys`` bound it, whichever limit is reached first; with one of
    them alone, the other is 600 s or 100,000 ids. ``duration_s`` is counted in up-time (a writer was there and its
    storage answered), so an outage never ages the window. ``refresh_on_hit`` makes a duplicate as young as a new id; it
    needs bounds.

    >>> Window().unbounded, Window(max_keys=5).duration_s
    (True, 600.0)
    """

    duration_s: float | None = None
    max_keys: int | None = None
    refresh_on_hit: bool = False

    def __post_init__(self) -> None:
        if self.duration_s is None and self.max_keys is not None:
            msgspec.structs.force_setattr(self, "duration_s", DURATION_S)
        elif self.max_keys is None and self.duration_s is not None:
            msgspec.structs.force_setattr(self, "max_keys", MAX_KEYS)

    @property
    def unbounded(self) -> bool:
        """Whether an id is remembered as long as its record is in the log."""
        return self.duration_s is None

    @property
    def duration_us(self) -> int:
        """How long an id is remembered, in microseconds; without bounds longer than any log lives."""
        return _FOREVER_US if self.duration_s is None else int(self.duration_s * 1e6)

    @property
    def keys_max(self) -> int:
        """How many ids are remembered; without bounds more than any log has."""
        return _ALL_KEYS if self.max_keys is None else self.max_keys


class ProducerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the sequences of producers are treated; what is ``None`` is as the next level has it.

    A log's own policy comes before its namespace's, and that before the database's. ``enabled``: whether sequences
    are held against each other (they are stored in any case). A producer that stored nothing for ``inactive_s`` of
    up-time is forgotten, and so is the least recently active one beyond ``max_producers``.
    """

    enabled: bool | None = None
    inactive_s: float | None = None
    max_producers: int | None = None


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a log promises and how it is kept.

    ``idempotence``: ``"explicit"`` deduplicates records that carry an id, ``"content"`` gives the others a
    hash of their content as id, ``"off"`` refuses ids and keeps no window. ``id_scope``: whether
    an id is one of the whole log or of its record's stream; it never changes. ``producers``: this log's part of the
    policies for sequences. ``on_conflict``: what the same id with other content gets: ``IdConflict``, or the original's
    ack marked ``conflict``. ``seal``: whether the writer turns closed segments into Parquet files by itself, once there
    is enough for a file. ``commit_interval_s``: how long a block that is not full waits after the one before (``None``:
    not at all on a disk, 0.1 s in a bucket, where every block is a paid request).
    """

    idempotence: Idempotence = "explicit"
    window: Window = Window()
    on_conflict: OnConflict = "error"
    segment_bytes: int = 64 * limits.MIB
    segment_age_s: float | None = None
    block_bytes: int = 4 * limits.MIB
    block_records: int = 10_000
    commit_interval_s: float | None = None
    snapshot_interval_s: float = 30.0
    snapshot_records: int = 250_000
    seal: Seal = "auto"
    retention_s: float | None = None
    retention_bytes: int | None = None
    pending_bytes: int = 64 * limits.MIB
    pending_records: int = 1_000_000
    producers: ProducerPolicy = ProducerPolicy()
    id_scope: IdScope = "log"


FORMER_WINDOWS = (
    Window(duration_s=DURATION_S, max_keys=MAX_KEYS),
    Window(duration_s=limits.WINDOW_DURATION_S_MAX, max_keys=65_536),
)
"""What earlier versions stored for a log, and for a log of streams, where no window was named."""

PRODUCERS = ProducerPolicy(enabled=True, inactive_s=7 * 86_400.0, max_producers=10_000)
"""The policy where no level says otherwise."""

_RANGES: dict[str, tuple[float, float]] = {
    "segment_bytes": (limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
    "segment_age_s": (0.001, limits.WINDOW_DURATION_S_MAX),
    "block_bytes": (limits.KIB, limits.BLOCK_BYTES_MAX),
    "block_records": (1, limits.BLOCK_RECORDS_MAX),
    "commit_interval_s": (0, 60),
    "snapshot_interval_s": (0.001, limits.WINDOW_DURATION_S_MAX),
    "snapshot_records": (1, limits.WINDOW_KEYS_MAX),
    "retention_s": (0.001, 1e12),
    "retention_bytes": (0, 2**62),
    "pending_bytes": (limits.KIB, limits.PENDING_BYTES_MAX),
    "pending_records": (1, limits.PENDING_RECORDS_MAX),
}


_CHOICES: dict[str, tuple[str, ...]] = {
    "idempotence": get_args(Idempotence),
    "on_conflict": get_args(OnConflict),
    "seal": get_args(Seal),
    "id_scope": get_args(IdScope),
}


def check(settings: LogSettings) -> LogSettings:
    """Return the settings, or raise ``InvalidArgument`` naming the first that is wrong."""
    _check_type("settings", settings, LogSettings)
    _check_type("settings: window", settings.window, Window)
    _check_type("settings: producers", settings.producers, ProducerPolicy)
    for name, choices in _CHOICES.items():
        if (value := getattr(settings, name)) not in choices:
            message = f"settings: {name} is {value!r}, must be {' or '.join(map(repr, choices))}"
            raise InvalidArgument(message)
    try:
        checked = msgspec.convert(msgspec.to_builtins(settings), LogSettings, strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        message = f"settings: {error}"
        raise InvalidArgument(message) from error
    for name, (low, high) in _RANGES.items():
        _check_range(name, getattr(checked, name), low, high)
    _check_range("window.duration_s", checked.window.duration_s, 0.001, limits.WINDOW_DURATION_S_MAX)
    _check_range("window.max_keys", checked.window.max_keys, 1, limits.WINDOW_KEYS_MAX)
    if checked.window.unbounded and checked.window.refresh_on_hit:
        message = "settings: window.refresh_on_hit needs bounds: give window.duration_s or window.max_keys, or leave it"
        raise InvalidArgument(message)
    _check_policy_ranges("producers.", checked.producers)
    if msgspec.msgpack.decode(msgspec.msgpack.encode(checked), type=LogSettings) != checked:
        message = "settings: what would be stored reads as other settings"
        raise InvalidArgument(message)
    return checked


def check_policy(policy: ProducerPolicy) -> ProducerPolicy:
    """Return a policy, or raise ``InvalidArgument`` naming what is wrong with it."""
    _check_type("policy", policy, ProducerPolicy)
    try:
        checked = msgspec.convert(msgspec.to_builtins(policy), ProducerPolicy, strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        message = f"policy: {error}"
        raise InvalidArgument(message) from error
    _check_policy_ranges("", checked)
    return checked


def _check_policy_ranges(where: str, policy: ProducerPolicy) -> None:
    _check_range(f"{where}inactive_s", policy.inactive_s, 0.001, 1e12)
    _check_range(f"{where}max_producers", policy.max_producers, 1, limits.PRODUCERS_MAX)


def resolve(*levels: ProducerPolicy) -> ProducerPolicy:
    """Return the policy that holds: of each part, what the first level says that says anything.

    >>> resolve(ProducerPolicy(enabled=False), ProducerPolicy(enabled=True, max_producers=5)).max_producers
    5
    """
    parts = {
        name: next((value for level in (*levels, PRODUCERS) if (value := getattr(level, name)) is not None), None)
        for name in ProducerPolicy.__struct_fields__
    }
    return ProducerPolicy(**parts)


def _check_type(name: str, value: object, wanted: type) -> None:
    """Refuse what would be taken for settings that are all as by default: a mapping, or the wrong class."""
    if not isinstance(value, wanted):
        message = f"{name}: is {type(value).__name__}, must be {wanted.__name__}"
        raise InvalidArgument(message)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        message = f"settings: {name} is {value}, must be from {low} to {high}"
        raise InvalidArgument(message)


def keeping_window(stored: LogSettings, given: LogSettings) -> LogSettings:
    """Return settings that are given for a log, with its stored window if neither the program nor its author named one.

    Earlier versions stored bounds for a window that was not named, where ``Window()`` has none now. The same program
    opens the log after an upgrade, and the log keeps its bounds until ``configure`` lifts them.

    >>> keeping_window(LogSettings(window=FORMER_WINDOWS[0]), LogSettings()).window.max_keys
    100000
    """
    if given.window == Window() and stored.window in FORMER_WINDOWS:
        return msgspec.structs.replace(given, window=stored.window)
    return given


def differences(stored: LogSettings, given: LogSettings) -> list[str]:
    """Return one line for each setting that differs: ``window.max_keys: stored 10, given 20``."""
    before, after = _flat(stored), _flat(given)
    return [f"{name}: stored {before[name]!r}, given {after[name]!r}" for name in before if before[name] != after[name]]


def _flat(settings: LogSettings) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in LogSettings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, Window | ProducerPolicy):
            values |= {f"{name}.{part}": getattr(value, part) for part in value.__struct_fields__}
        else:
            values[name] = value
    return values


prepare(LogSettings, ProducerPolicy)
