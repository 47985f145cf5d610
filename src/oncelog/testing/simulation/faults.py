"""What goes wrong in a simulated world, drawn from the seed: storms, crashes, pauses, cuts, absent and bad stores."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from oncelog.errors import InvalidArgument, Unavailable
from oncelog.log.stored.unsealed import unsealed
from oncelog.storage.quorum import health
from oncelog.storage.quorum.home import QuorumStorage
from oncelog.storage.quorum.node import IDENTITY_US
from oncelog.testing.simulation.network import CALM, VirtualStore, Weather
from oncelog.testing.simulation.scheduler import Process
from oncelog.testing.simulation.world import NODES, STORE, World

STORMS = (
    Weather(lost=0.1, answer_lost=0.1, repeated=0.1, slow=0.1),
    Weather(slow=0.5, delay_us=5_000),
    Weather(late=0.05, answer_lost=0.05, repeated=0.2, slow=0.2),
    Weather(lost=0.3, answer_lost=0.2),
)
LAST_NODE_US = 20_000_000
"""So long after everything else has healed one node is still away: recovery must do without, or wait."""

AWAY_AFTER_WIPE_US = IDENTITY_US + 1_000_000
"""A wiped node comes back when every writer checks its identity again: see the documented gap."""


class FaultInjector:
    """Does damage to a world, one thing after the other, until the run is over."""

    def __init__(self, world: World, *, is_over: Callable[[], bool], living: Callable[[], list[Process]]) -> None:
        self._world = world
        self._is_over = is_over
        self._living = living
        self._random = random.Random(f"faults {world.seed}")
        self._nodes = list(NODES)
        self.wiped: str | None = None
        self.damaged: str | None = None
        self.counts: dict[str, int] = {}

    def run(self) -> None:
        """Do damage now and then."""
        actions = self._actions()
        while not self._is_over():
            self._world.scheduler.sleep(self._random.uniform(0.05, 1.0))
            if self._is_over():
                break
            action = self._random.choice(actions)
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            action()
        self.heal()

    def _actions(self) -> list[Callable[[], None]]:
        by_kind: dict[str, list[Callable[[], None]]] = {
            "memory": [self._jump],
            "local": [self._crash, self._crash, self._power_cut, self._pause, self._jump],
            "bucket": [self._crash, self._pause, self._storm, self._storm, self._away, self._cut, self._jump],
            "quorum": [
                self._crash,
                self._crash,
                self._pause,
                self._storm,
                self._storm,
                self._away,
                self._node_away,
                self._node_away,
                self._cut,
                self._scatter,
                self._scatter,
                self._scatter,
                self._jump,
                self._wipe,
                self._damage,
                self._damage,
            ],
        }
        return by_kind[self._world.kind]

    def heal(self) -> None:
        """End everything that is wrong, but for a node that was wiped. One of the others may need some seconds more."""
        self._world.network.weather = CALM
        self._world.network.cut.clear()
        for store in self._world.stores.values():
            store.away = False
        if self._world.kind == "quorum":
            slowest = self._random.choice([name for name in self._nodes if name != self.wiped])
            self._leave(self._world.stores[slowest], LAST_NODE_US)
        for process in self._world.processes:
            process.paused_until_us = 0

    def _victim(self) -> Process | None:
        living = self._living()
        return self._random.choice(living) if living else None

    def _crash(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._world.crash(victim)

    def _power_cut(self) -> None:
        if self._random.random() < 0.3:  # noqa: PLR2004
            self._world.power_cut()

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._world.pause(victim, self._random.randrange(100_000, 12_000_000))

    def _jump(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.wall_offset_us += self._random.randrange(-3_600_000_000, 3_600_000_000)

    def _storm(self) -> None:
        network = self._world.network
        network.weather = self._random.choice(STORMS)

        def end() -> None:
            network.weather = CALM

        self._world.scheduler.after(self._random.randrange(200_000, 4_000_000), end)

    def _away(self) -> None:
        self._leave(self._world.stores[STORE], self._random.randrange(50_000, 3_000_000))

    def _node_away(self) -> None:
        self._leave(self._world.stores[self._random.choice(self._nodes)], self._random.randrange(50_000, 8_000_000))

    def _leave(self, store: VirtualStore, duration_us: int) -> None:
        store.away = True
        store.hangs = self._random.random() < 0.3  # noqa: PLR2004
        self._world.scheduler.note(f"{store.name} is away")

        def back() -> None:
            store.away = False

        self._world.scheduler.after(duration_us, back)

    def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            pairs = {
                (victim.name, name) for name in self._random.sample((STORE, *self._nodes), self._random.randint(1, 3))
            }
            self._world.network.cut |= pairs

            def mend() -> None:
                self._world.network.cut -= pairs

            self._world.scheduler.after(self._random.randrange(100_000, 5_000_000), mend)

    def _scatter(self) -> None:
        """Let each process reach other nodes than its neighbours do: copies and fences end up in different places."""
        cut = self._world.network.cut
        pairs = {(one.name, name) for one in self._living() for name in self._nodes if self._random.random() < 0.4}  # noqa: PLR2004
        cut |= pairs
        self._world.scheduler.note(f"scattered {sorted(pairs)}")

        def mend() -> None:
            cut.difference_update(pairs)

        self._world.scheduler.after(self._random.randrange(300_000, 3_000_000), mend)

    def _wipe(self) -> None:
        """Lose one node for good: a second loss may lose records, as with any quorum."""
        if self.wiped is not None:
            return
        self.wiped = self.damaged or self._random.choice(NODES)
        store = self._world.stores[self.wiped]
        store.wipe()
        self._world.scheduler.note(f"{store.name} is wiped")
        self._leave(store, AWAY_AFTER_WIPE_US)
        if self._random.random() < 0.5:  # noqa: PLR2004
            operator = self._world.process("operator")
            self._world.scheduler.spawn(operator, "replace", lambda: self._replace(operator, store.name))

    def _damage(self) -> None:
        """Spoil an object on a node: a bit flips, or the end is cut off. All damage, and a wipe, are of one node."""
        if self.wiped is not None:
            return
        self.damaged = self.damaged or self._random.choice(NODES)
        objects = self._world.stores[self.damaged].objects
        paths = sorted(path for path, data in objects.items() if path.startswith("logs/") and data.size)
        if paths:
            path = self._random.choice(paths)
            data = bytearray(objects[path].to_pybytes())
            data[self._random.randrange(len(data))] ^= 1
            size_bytes = len(data) if self._random.random() < 0.5 else self._random.randrange(len(data))  # noqa: PLR2004
            objects[path] = pa.py_buffer(bytes(data[:size_bytes]))
            self._world.scheduler.note(f"{self.damaged}/{path} is damaged, {size_bytes} bytes are left")

    def _replace(self, operator: Process, name: str) -> None:
        """Put a new node in the place of the one that was lost, as its operator would."""
        new = f"{name}-new"
        self._world.stores[new] = VirtualStore(new)
        while not self._is_over():
            with contextlib.suppress(Unavailable, InvalidArgument):  # too few nodes answer now
                storage = self._world.storage(operator)
                assert isinstance(storage, QuorumStorage)
                clock = self._world.clock(operator)
                health.replace(storage, name, f"s3://{new}", partial(unsealed, clock=clock), clock)
                self._nodes[self._nodes.index(name)] = new
                return
            self._world.scheduler.sleep(0.5)
