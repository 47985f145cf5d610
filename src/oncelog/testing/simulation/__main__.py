"""``python -m oncelog.testing.simulation``: many seeds, for as long as one likes; or one seed, with its trace."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

import msgspec

from oncelog.testing.simulation.run import SimulatedRun
from oncelog.testing.simulation.world import KINDS, Kind

_COUNTED = (
    "records",
    "attempts",
    "acks",
    "unknown",
    "duplicates",
    "crashes",
    "takeovers",
    "seen",
    "steps",
    "virtual_s",
)


def main() -> int:
    """Run seeds; return 1 if one of them broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m oncelog.testing.simulation", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], default=[], metavar="HOME", help=", ".join(KINDS))
    parser.add_argument("--seeds", type=int, default=100, help="how many, of each kind of home")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--duration", type=float, default=4.0, help="virtual seconds in which clients write")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    given = parser.parse_args()
    kinds: tuple[Kind, ...] = tuple(given.kinds) or KINDS
    failed = 0
    for kind in kinds:
        totals: Counter[str] = Counter()
        started = time.monotonic()
        for seed in range(given.first, given.first + given.seeds):
            failed += _ran(kind, seed, given, totals)
        told = ", ".join(f"{totals[name]:,.0f} {name}" for name in _COUNTED)
        _say(f"{kind}: {given.seeds:,} seeds in {time.monotonic() - started:.1f} s: {told}")
    return 1 if failed else 0


def _ran(kind: Kind, seed: int, given: argparse.Namespace, totals: Counter[str]) -> int:
    run = SimulatedRun(kind, seed, keep_trace=given.trace, duration_s=given.duration)
    try:
        summary = msgspec.to_builtins(run.run())
    except Exception:  # noqa: BLE001  told, and the next seed is run
        _say(f"{kind}, seed {seed}:\n{traceback.format_exc()}")
        return 1
    finally:
        for line in run.world.scheduler.trace or ():
            _say(line)
    totals.update({name: summary[name] for name in _COUNTED})
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
