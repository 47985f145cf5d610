"""Keys in Redis: for effects that do not live in a database.

A key is a hash, changed by one script that compares what is there with what was seen. Nothing expires by itself: a key
that Redis forgot on its own would let its effect happen again, so ``prune`` removes what need not be kept.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from oncelog.errors import Unsupported
from oncelog.queue.inbox_states import Identity, Stored, event_tail, shortened, without_reasons
from oncelog.queue.inbox_steps import Steps
from oncelog.queue.inbox_store import Claim, Held, Outcome, Row

_PREFIX = "oncelog:inbox:"
_SCAN = 500

# ARGV: the status and the nonce that must be there (both empty: nothing), whether a new token is drawn, the lease and
# the retention in microseconds (empty: none, "=": as it is), the event's tail (empty: none), then fields and values.
_SWAP = """
local at = redis.call('TIME')
local now = at[1] * 1000000 + at[2]
local was = redis.call('HMGET', KEYS[1], 'status', 'nonce', 'token', 'story', 'first_us', 'attempts')
if (was[1] or '') ~= ARGV[1] or (was[2] or '') ~= ARGV[2] then
  return {0, string.format('%.0f', now), redis.call('HGETALL', KEYS[1])}
end
local function span(text)
  if text == '' then return '' end
  return string.format('%.0f', now + tonumber(text))
end
local token, attempts = tonumber(was[3] or '0'), tonumber(was[6] or '0')
if ARGV[3] == '1' then
  token = math.max(now, token + 1)
  attempts = attempts + 1
end
local stamp = string.format('%.0f', now)
local written = string.format('%.0f', token)
local fields = {'token', written, 'attempts', attempts, 'first_us', was[5] or stamp}
local function add(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
local story = was[4] or ''
for i = 7, #ARGV, 2 do
  if ARGV[i] == 'story' then story = ARGV[i + 1] end
  add(ARGV[i], ARGV[i + 1])
end
if ARGV[4] ~= '=' then add('until_us', span(ARGV[4])) end
if ARGV[5] ~= '=' then add('keep_us', span(ARGV[5])) end
if ARGV[6] ~= '' then
  add('changed_us', stamp)
  add('story', story .. stamp .. ' ' .. written .. ARGV[6])
end
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

    transactional = False

    def __init__(self, raw: Any) -> None:
        import redis  # noqa: PLC0415  whoever gets here has it

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
        except self._no_script:  # the server was started anew
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

    def claim(self, claim: Claim) -> Steps[Held | Stored]:
        """Take a key that is absent; return what is stored if it is not."""
        first = {**_claimed(claim), **_named(claim.identity), "final": "0", "erased": "0"}
        taken, token, rest = yield from self._swap(
            claim.identity,
            ("", ""),
            first,
            token=True,
            lease_us=claim.lease_us,
            tail=event_tail("claimed", claim.owner),
        )
        return Held(int(token), 1, None) if taken else _stored(_fields(rest), int(token))

    def read(self, identity: Identity) -> Steps[Stored | None]:
        """Return what is stored of a key."""
        now_us, found = yield from self._call(_READ, _name(identity))
        return _stored(_fields(found), int(now_us)) if found else None

    look = read

    def claim_again(self, claim: Claim, stored: Stored) -> Steps[Held | None]:
        """Take a key over from the attempt that was seen there."""
        fields = {**_claimed(claim), "final": "0", "story": shortened(stored.story)}
        if claim.fingerprint is None:
            del fields["fingerprint"]
        taken, token, attempts = yield from self._swap(
            claim.identity,
            (stored.status, stored.nonce),
            fields,
            token=True,
            lease_us=claim.lease_us,
            tail=event_tail("claimed", claim.owner),
        )
        return Held(int(token), int(attempts), stored.error) if taken else None

    def finish(self, claim: Claim, outcome: Outcome) -> Steps[bool]:
        """Store how an attempt ended."""
        detail = claim.owner if outcome.error is None else outcome.error
        return (yield from self._settle(claim.identity, ("PENDING", claim.nonce), outcome, claim.retention_us, detail))

    def note_failure(self, claim: Claim, outcome: Outcome) -> Steps[None]:
        """Store that an attempt failed: here every attempt has left its trace."""
        yield from self.finish(claim, outcome)

    def settle(self, identity: Identity, stored: Stored, outcome: Outcome, retention_us: int | None) -> Steps[bool]:
        """Store what somebody has decided about a key as it was seen."""
        seen = (stored.status, stored.nonce)
        return (yield from self._settle(identity, seen, outcome, retention_us, outcome.error or ""))

    def _settle(
        self, identity: Identity, seen: tuple[str, str], outcome: Outcome, retention_us: int | None, detail: str
    ) -> Steps[bool]:
        fields: dict[str, str | bytes] = {
            "status": outcome.status,
            "result": _armoured(outcome.result),
            "final": str(int(outcome.final)),
        }
        if outcome.error is not None:
            fields["error"] = outcome.error
        tail = event_tail(outcome.event, detail)
        answer = yield from self._swap(identity, seen, fields, retention_us=retention_us, tail=tail)
        return bool(answer[0])

    def renew(self, claim: Claim) -> Steps[bool]:
        """Have the lease again, from now."""
        seen = ("PENDING", claim.nonce)
        answer = yield from self._swap(claim.identity, seen, {}, lease_us=claim.lease_us, retention_us="=")
        return bool(answer[0])

    def erase(self, identity: Identity, stored: Stored) -> Steps[bool]:
        """Forget all but that the key was there."""
        fields: dict[str, str | bytes] = {
            "key": "",
            "fingerprint": "",
            "result": "",
            "error": "",
            "erased": "1",
            "story": without_reasons(stored.story),
        }
        seen = (stored.status, stored.nonce)
        return bool((yield from self._swap(identity, seen, fields, lease_us="=", retention_us="="))[0])

    def _rows(self) -> Steps[list[Row]]:
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

    def expired(self, limit: int, after: bytes) -> Steps[list[Row]]:
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

    def find(self, key: str, limit: int) -> Steps[list[Row]]:
        """Return what is stored under a key. It looks at every key there is."""
        rows = yield from self._rows()
        return [row for row in rows if row.identity.key == key][:limit]


def _name(identity: Identity) -> str:
    return _PREFIX + identity.digest.hex()


def _named(identity: Identity) -> dict[str, str | bytes]:
    return {"tenant": identity.tenant, "topic": identity.topic, "grp": identity.group, "key": identity.key}


def _claimed(claim: Claim) -> dict[str, str | bytes]:
    return {
        "status": "PENDING",
        "nonce": claim.nonce,
        "owner": claim.owner,
        "fingerprint": _armoured(claim.fingerprint),
        "result": "",
    }


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


def _stored(fields: dict[str, str], now_us: int) -> Stored:
    return Stored(
        status=fields["status"],  # type: ignore[arg-type]
        nonce=fields["nonce"],
        token=int(fields["token"]),
        attempts=int(fields["attempts"]),
        owner=fields["owner"],
        fingerprint=base64.b64decode(fields["fingerprint"]) or None,
        until_us=_number(fields.get("until_us", "")),
        result=base64.b64decode(fields["result"]) or None,
        error=fields.get("error") or None,
        final=fields["final"] == "1",
        erased=fields["erased"] == "1",
        first_us=int(fields["first_us"]),
        changed_us=int(fields["changed_us"]),
        keep_us=_number(fields.get("keep_us", "")),
        story=fields["story"],
        now_us=now_us,
    )


def _row(name: str, fields: dict[str, str], now_us: int) -> Row:
    identity = Identity(fields["tenant"], fields["topic"], fields["grp"], fields["key"])
    return Row(bytes.fromhex(name.removeprefix(_PREFIX)), identity, _stored(fields, now_us))
