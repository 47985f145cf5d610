"""Keys in Redis: for effects that do not live in a database.

A key is a hash, changed by one script that compares what is there with what was seen. Nothing expires by itself: a key
that Redis forgot on its own would let its effect happen again, so ``prune`` removes what need not be kept.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from oncelog.errors import CorruptionError, InvalidArgument, Unsupported
from oncelog.inbox.contract import AttemptOutcome, HeldKey, KeyClaim, KeyRow
from oncelog.inbox.decisions import Identity, Status, Stored, event_tail, events, shortened, without_reasons
from oncelog.inbox.steps import Steps
from oncelog.shapes import UNREADABLE

_PREFIX = "oncelog:inbox:"
_SCAN = 500

# The way of an effect: its key, and how it ended. ``ARGV`` of the first: nonce, head, lease in microseconds, tail of
# the event; of the second: nonce, status, result, tail of the event, retention in microseconds (empty: for ever), and
# of a failure its reason and whether it is final. Either may come twice, when its answer was lost and the client has
# sent it again: then it is answered again. What is not written at first: status (PENDING), token and first_us (the time
# of the claim, with which the story begins), attempts (1), final and erased (0). To write few fields is most of what
# makes a script quick. A "-" in a story stands for the token of the event before.
_NOW = "local at = redis.call('TIME')\nlocal now = at[1] .. string.format('%06d', at[2])\n"
_CLAIM = f"""{_NOW}
if redis.call('HSETNX', KEYS[1], 'nonce', ARGV[1]) == 0 then return {{now, redis.call('HGETALL', KEYS[1])}} end
redis.call('HSET', KEYS[1], 'head', ARGV[2], 'until_us', string.format('%.0f', now + ARGV[3]),
  'story', now .. ' ' .. now .. ARGV[4])
return now
"""
_FINISH = f"""
local was = redis.call('HMGET', KEYS[1], 'nonce', 'story', 'status')
if was[1] ~= ARGV[1] then return 0 end
if was[3] and was[3] ~= 'PENDING' then
  return was[3] == ARGV[2] and string.sub(was[2], -#ARGV[4]) == ARGV[4] and 1 or 0
end
{_NOW}
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'result', ARGV[3], 'story', was[2] .. now .. ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'keep_us', string.format('%.0f', now + ARGV[5])) end
if ARGV[6] then redis.call('HSET', KEYS[1], 'error', ARGV[6], 'final', ARGV[7]) end
return 1
"""
# All other changes. ARGV: the status and the nonce that must be there, whether a new token is drawn, the lease and the
# retention in microseconds (empty: none, "=": as it is), the event's tail (empty: none), then fields and values.
_SWAP = """
local at = redis.call('TIME')
local now = at[1] * 1000000 + at[2]
local was = redis.call('HMGET', KEYS[1], 'status', 'nonce', 'token', 'story', 'attempts')
if not was[2] or (was[1] or 'PENDING') ~= ARGV[1] or was[2] ~= ARGV[2] then return {0, '0', 0} end
local function span(text)
  if text == '' then return '' end
  return string.format('%.0f', now + tonumber(text))
end
local token, attempts = tonumber(was[3] or string.match(was[4], '%d+')), tonumber(was[5] or '1')
if ARGV[3] == '1' then
  token = math.max(now, token + 1)
  attempts = attempts + 1
end
local stamp = string.format('%.0f', now)
local written = string.format('%.0f', token)
local fields = {'token', written, 'attempts', attempts}
local function add(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local story = was[4]
for i = 7, #ARGV, 2 do
  if ARGV[i] == 'story' then story = ARGV[i + 1] end
  add(ARGV[i], ARGV[i + 1])
end
if ARGV[4] ~= '=' then add('until_us', span(ARGV[4])) end
if ARGV[5] ~= '=' then add('keep_us', span(ARGV[5])) end
if ARGV[6] ~= '' then add('story', story .. stamp .. ' ' .. written .. ARGV[6]) end
redis.call('HSET', KEYS[1], unpack(fields))
return {1, written, attempts}
"""
_READ = """
local at = redis.call('TIME')
return {string.format('%.0f', at[1] * 1000000 + at[2]), redis.call('HGETALL', KEYS[1])}
"""
_FORGET = """
local at = redis.call('TIME')
local kept = redis.call('HMGET', KEYS[1], 'status', 'keep_us')
if kept[1] and kept[1] ~= 'PENDING' and kept[2] and kept[2] ~= '' and
  tonumber(kept[2]) <= at[1] * 1000000 + at[2] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


class Redis:
    """A client of Redis, plain or asynchronous. There is no transaction: every step takes effect at once."""

    def __init__(self, raw: Any) -> None:
        import redis  # noqa: PLC0415  (the package is installed where this is called)

        self.raw = raw
        self._no_script = redis.exceptions.NoScriptError
        self._refused = redis.exceptions.ResponseError
        self._hashes: dict[str, str] = {}

    def busy(self) -> bool:
        """There is nothing to be in."""
        return False

    def begin(self) -> Steps[None]:
        """Do nothing."""
        yield from ()

    def commit(self) -> Steps[None]:
        """Do nothing."""
        yield from ()

    def rollback(self) -> Steps[None]:
        """Do nothing: what was done outside is done."""
        yield from ()

    def lost(self) -> bool:
        """Tell that it is not: a client finds a new connection by itself."""
        return False

    def close(self) -> Steps[None]:
        """Close the client."""
        yield getattr(self.raw, "aclose", self.raw.close)()

    def check_kept(self) -> Steps[None]:
        """Raise ``Unsupported`` if this server forgets keys when its memory is full."""
        try:
            found = yield self.raw.config_get("maxmemory-policy")
        except self._refused:
            return  # managed servers do not tell
        policy = _text(next(iter(found.values()), "noeviction"))
        if policy.startswith("allkeys"):
            message = (
                f"this Redis forgets keys when its memory is full (maxmemory-policy {policy}), and an effect whose key "
                "is forgotten happens again: set it to noeviction"
            )
            raise Unsupported(message)

    def _call(self, script: str, *arguments: object) -> Steps[Any]:
        if script not in self._hashes:
            self._hashes[script] = _text((yield self.raw.script_load(script)))
        try:
            return (yield self.raw.evalsha(self._hashes[script], 1, *arguments))
        except self._no_script:  # the server was started again
            yield self.raw.script_load(script)
        return (yield self.raw.evalsha(self._hashes[script], 1, *arguments))

    def _swap(
        self,
        identity: Identity,
        seen: tuple[str, str],
        fields: dict[str, str | bytes],
        *,
        token: bool = False,
        lease_us: int | str | None = None,
        retention_us: int | str | None = None,
        tail: str = "",
    ) -> Steps[list[Any]]:
        pairs = [part for field in fields.items() for part in field]
        options = [int(token), "" if lease_us is None else lease_us, "" if retention_us is None else retention_us, tail]
        answer: list[Any] = yield from self._call(_SWAP, _name(identity), *seen, *options, *pairs)
        return answer

    # The store.

    def claim(self, claim: KeyClaim) -> Steps[HeldKey | Stored]:
        """Take a key that is absent; return what is stored if it is not."""
        if claim.lease_us is None:
            message = "no transaction can hold a key here: give lease_s, or the client itself as the inbox's home"
            raise InvalidArgument(message)
        given = (claim.nonce, _head(claim), claim.lease_us, event_tail("claimed", claim.owner))
        answer = yield from self._call(_CLAIM, _name(claim.identity), *given)
        if not isinstance(answer, list):
            return HeldKey(int(answer), 1, None)
        stored = _stored(_fields(answer[1]), int(answer[0]))
        mine = stored.nonce == claim.nonce and stored.status == "PENDING"
        return HeldKey(stored.token, stored.attempts, stored.error) if mine else stored

    def read(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key."""
        now_us, found = yield from self._call(_READ, _name(identity))
        return _stored(_fields(found), int(now_us)) if found else None

    look = read

    def claim_again(self, claim: KeyClaim, stored: Stored) -> Steps[HeldKey | None]:
        """Take a key over from the attempt that was seen there."""
        fields: dict[str, str | bytes] = {
            "status": "PENDING",
            "nonce": claim.nonce,
            "head": _head(claim if claim.fingerprint else claim._replace(fingerprint=stored.fingerprint)),
            "first_us": str(stored.first_us),
            "result": "",
            "final": "0",
            "story": shortened(stored.story),
        }
        taken, token, attempts = yield from self._swap(
            claim.identity,
            (stored.status, stored.nonce),
            fields,
            token=True,
            lease_us=claim.lease_us,
            tail=event_tail("claimed", claim.owner),
        )
        return HeldKey(int(token), int(attempts), stored.error) if taken else None

    def finish(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[bool]:
        """Store how an attempt ended."""
        keep = "" if claim.retention_us is None else claim.retention_us
        failure = () if outcome.error is None else (outcome.error, int(outcome.final))
        tail = " -" + event_tail(outcome.event, claim.owner if outcome.error is None else outcome.error)
        given = (claim.nonce, outcome.status, _armoured(outcome.result), tail, keep, *failure)
        return bool((yield from self._call(_FINISH, _name(claim.identity), *given)))

    def note_failure(self, claim: KeyClaim, outcome: AttemptOutcome) -> Steps[None]:
        """Store that an attempt failed: here every attempt has left its trace."""
        yield from self.finish(claim, outcome)

    def settle(
        self, identity: Identity, stored: Stored, outcome: AttemptOutcome, retention_us: int | None
    ) -> Steps[bool]:
        """Store what somebody has decided about a key as it was seen."""
        fields: dict[str, str | bytes] = {
            "status": outcome.status,
            "result": _armoured(outcome.result),
            "final": str(int(outcome.final)),
        }
        if outcome.error is not None:
            fields["error"] = outcome.error
        tail, seen = event_tail(outcome.event, outcome.error or ""), (stored.status, stored.nonce)
        answer = yield from self._swap(identity, seen, fields, retention_us=retention_us, tail=tail)
        return bool(answer[0])

    def renew(self, claim: KeyClaim) -> Steps[bool]:
        """Have the lease again, from now."""
        seen = ("PENDING", claim.nonce)
        answer = yield from self._swap(claim.identity, seen, {}, lease_us=claim.lease_us, retention_us="=")
        return bool(answer[0])

    def erase(self, identity: Identity, stored: Stored) -> Steps[bool]:
        """Forget all but that the key was there."""
        fields: dict[str, str | bytes] = {
            "head": msgspec.json.encode(_TakenKey(identity._replace(key=""), stored.owner, "")),
            "result": "",
            "error": "",
            "erased": "1",
            "story": without_reasons(stored.story),
        }
        seen = (stored.status, stored.nonce)
        return bool((yield from self._swap(identity, seen, fields, lease_us="=", retention_us="="))[0])

    def _rows(self) -> Steps[list[KeyRow]]:
        cursor, names = 0, set()
        while True:
            cursor, found = yield self.raw.scan(cursor, match=_PREFIX + "*", count=_SCAN)
            names |= {_text(name) for name in found}
            if not int(cursor):
                break
        rows = []
        for name in sorted(names):
            now_us, hash = yield from self._call(_READ, name)
            if hash:
                rows.append(_row(name, _fields(hash), int(now_us)))
        return rows

    def expired(self, limit: int, after: bytes) -> Steps[list[KeyRow]]:
        """Return keys that need not be kept any longer, in the order of their digests, from behind one."""
        rows = yield from self._rows()
        return [
            row
            for row in rows
            if row.stored.status != "PENDING"
            and row.stored.keep_us is not None
            and row.stored.keep_us <= row.stored.now_us
            and row.digest > after
        ][:limit]

    def forget(self, digests: Sequence[bytes]) -> Steps[int]:
        """Remove keys that need not be kept any longer; return how many."""
        count = 0
        for digest in digests:
            count += yield from self._call(_FORGET, _PREFIX + digest.hex())
        return count

    def find(self, key: str, limit: int) -> Steps[list[KeyRow]]:
        """Return what is stored under a key. It looks at every key there is."""
        rows = yield from self._rows()
        return [row for row in rows if row.identity.key == key][:limit]

    def latest(self, status: Status | None, limit: int) -> Steps[list[KeyRow]]:
        """Return the keys that changed last. It looks at every key there is."""
        rows = yield from self._rows()
        wanted = [row for row in rows if status is None or row.stored.status == status]
        return sorted(wanted, key=lambda row: (-row.stored.changed_us, row.digest))[:limit]


def _name(identity: Identity) -> str:
    return _PREFIX + identity.digest.hex()


class _TakenKey(NamedTuple):
    """What is written when a key is taken, and not looked at by any script."""

    identity: Identity
    owner: str
    fingerprint: str


def _head(claim: KeyClaim) -> bytes:
    return msgspec.json.encode(_TakenKey(claim.identity, claim.owner, _armoured(claim.fingerprint)))


def _armoured(data: bytes | None) -> str:
    """Return bytes as text, which a client that decodes what it reads can read."""
    return "" if data is None else base64.b64encode(data).decode()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _fields(found: Sequence[Any]) -> dict[str, str]:
    texts = [_text(each) for each in found]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _number(text: str) -> int | None:
    return int(text) if text else None


def _head_of(fields: dict[str, str]) -> _TakenKey:
    try:
        return msgspec.json.decode(fields["head"], type=_TakenKey)
    except (KeyError, *UNREADABLE) as error:
        message = f"a key of the inbox in Redis cannot be read ({error}): delete it, or restore it"
        raise CorruptionError(message) from error


def _whole(story: str) -> str:
    """Return a story in which every event has its token."""
    token, lines = "", []
    for line in story.split("\n")[:-1]:
        at_us, own, rest = line.split(" ", 2)
        token = token if own == "-" else own
        lines.append(f"{at_us} {token} {rest}\n")
    return "".join(lines)


def _stored(fields: dict[str, str], now_us: int) -> Stored:
    head, story = _head_of(fields), _whole(fields["story"])
    told = events(story)
    return Stored(
        status=fields.get("status", "PENDING"),  # type: ignore[arg-type]
        nonce=fields["nonce"],
        token=int(fields.get("token") or told[0].token),
        attempts=int(fields.get("attempts", 1)),
        owner=head.owner,
        fingerprint=base64.b64decode(head.fingerprint) or None,
        until_us=_number(fields.get("until_us", "")),
        result=base64.b64decode(fields.get("result", "")) or None,
        error=fields.get("error") or None,
        final=fields.get("final") == "1",
        erased=fields.get("erased") == "1",
        first_us=int(fields.get("first_us") or told[0].at_us),
        changed_us=told[-1].at_us,
        keep_us=_number(fields.get("keep_us", "")),
        story=story,
        now_us=now_us,
    )


def _row(name: str, fields: dict[str, str], now_us: int) -> KeyRow:
    return KeyRow(bytes.fromhex(name.removeprefix(_PREFIX)), _head_of(fields).identity, _stored(fields, now_us))
