"""Discs that move by themselves: walkers with places to go, and patrols on fixed rounds.

They make way for each other and for robots, and stand still rather than run into
anything; a robot can run into them. Move them before each `Simulator.step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scanpilot.robot import Footprint
from scanpilot.sim.free_space import FreeSpace, NoRoom
from scanpilot.sim.simulator import Simulator
from scanpilot.types import DoubleArray


@dataclass(frozen=True)
class Patrol:
    """A disc that goes round and round.

    Attributes:
        waypoints: metres, world frame; it starts at the first and returns to it.
        speed: m/s.
        radius: metres.
    """

    waypoints: tuple[tuple[float, float], ...]
    speed: float = 0.5
    radius: float = 0.25

    def __post_init__(self) -> None:
        if not self.waypoints:
            raise ValueError("patrol waypoints: expected at least one")
        if not (self.speed > 0.0 and self.radius > 0.0):
            raise ValueError(f"patrol speed {self.speed} m/s, radius {self.radius} m: expected more than 0")


@dataclass(frozen=True)
class WalkerConfig:
    """Moving discs of one world.

    Attributes:
        count: how many wander.
        patrolling: how many go to and fro between two places, which are drawn; they turn back early
            where somebody stands in their way.
        vary: draw for each world anew how many there are, up to what is stated of these two.
        radius: metres.
        min_speed, max_speed: each walker's own pace is drawn between, m/s.
        margin: metres that they keep from everything.
        patience: seconds without progress after which one turns to another place, or back.
        patrols: who goes round where it is told, and waits where it cannot, in every world.
    """

    count: int = 0
    patrolling: int = 0
    vary: bool = False
    radius: float = 0.25
    min_speed: float = 0.3
    max_speed: float = 1.0
    margin: float = 0.05
    patience: float = 2.0
    patrols: tuple[Patrol, ...] = ()

    def __post_init__(self) -> None:
        for name in ("count", "patrolling"):
            if getattr(self, name) < 0:
                raise ValueError(f"walkers {name} is {getattr(self, name)}, expected 0 or more")
        if not self.radius > 0.0:
            raise ValueError(f"walkers radius is {self.radius} m, expected more than 0")
        if not 0.0 < self.min_speed <= self.max_speed:
            raise ValueError(f"walkers speed {self.min_speed}..{self.max_speed} m/s: expected 0 < min <= max")


class Walkers:
    """The moving discs of all worlds of a simulator, which was made with ``movers=Walkers.room(...)``."""

    def __init__(
        self,
        simulator: Simulator,
        config: WalkerConfig,
        seed: int = 0,
        *,
        streams: Sequence[int] | None = None,
    ) -> None:
        """Nobody stands anywhere until `reset`.

        Args:
            simulator: whose worlds they walk in.
            config: who walks.
            seed: decides starts, goals and speeds, together with the number of a world's stream.
            streams: number of each world; by default its slot.
        """
        self.simulator = simulator
        self.config = config
        worlds, room = len(simulator.worlds), self.room(config)
        numbers = range(worlds) if streams is None else streams
        self._rngs = [np.random.default_rng([seed, int(number)]) for number in numbers]
        self.movers: DoubleArray = np.full((worlds, room, 3), -1.0)
        self._speeds: DoubleArray = np.zeros((worlds, room))
        self._targets: DoubleArray = np.zeros((worlds, room, 2))
        self._paths: list[list[list[tuple[float, float]]]] = [
            [[] for _ in range(room)] for _ in range(worlds)
        ]
        self._stuck: DoubleArray = np.zeros((worlds, room))
        self._spaces: dict[int, FreeSpace] = {}

    @staticmethod
    def room(config: WalkerConfig) -> int:
        """Discs in a world."""
        return config.count + config.patrolling + len(config.patrols)

    def reset(self, world: int) -> None:
        """Put the walkers of one world anew, clear of its robots and of each other.

        Those for whom there is no room stay away. Patrols start where they start, unless a
        robot stands there.
        """
        rng, r = self._rngs[world], self.simulator.robots_per_world
        self._spaces.pop(world, None)
        self.movers[world] = -1.0
        taken = self.simulator.poses[world * r : (world + 1) * r, :2]
        for m in self._drawn(rng):
            self._speeds[world, m] = rng.uniform(self.config.min_speed, self.config.max_speed)
            try:
                start, _ = self._space(world).sample(
                    rng,
                    min_distance=0.5,
                    max_distance=math.inf,
                    taken=taken,
                    spacing=self._reach() - self.config.radius + self.config.margin,
                    tries=200,
                )
            except NoRoom:
                continue
            self.movers[world, m] = (start[0], start[1], self.config.radius)
            taken = np.vstack((taken, start[:2]))
            self._send(world, m)
            if m >= self.config.count:
                there = [
                    (float(start[0]), float(start[1])),
                    tuple(self._targets[world, m]),
                    *self._paths[world][m],
                ]
                self._paths[world][m] = [*there, *there[-2:0:-1]]
                self._turn_round(world, m)
        for k, patrol in enumerate(self.config.patrols):
            m = self.config.count + self.config.patrolling + k
            self._speeds[world, m] = patrol.speed
            self._paths[world][m] = [(float(x), float(y)) for x, y in patrol.waypoints]
            x, y = patrol.waypoints[0]
            apart = np.hypot(taken[:, 0] - x, taken[:, 1] - y)
            if not len(taken) or apart.min() > patrol.radius + self._reach() + self.config.margin:
                self.movers[world, m] = (x, y, patrol.radius)
                self._turn_round(world, m)
        self.simulator.set_movers(self.movers)

    def _drawn(self, rng: np.random.Generator) -> list[int]:
        """Indices of those who are there, of those who wander and those who go to and fro."""
        wander, patrol = self.config.count, self.config.patrolling
        some, others = wander, patrol
        if self.config.vary:
            some, others = (int(n) for n in rng.integers(0, (wander, patrol), endpoint=True))
        return [*range(some), *range(wander, wander + others)]

    def step(self, duration: float) -> None:
        """Let everybody walk for ``duration`` seconds."""
        before = self.movers.copy()
        self.simulator.walk(self._targets, self._speeds, duration, self.config.margin)
        self.movers = self.simulator.movers()
        moved = np.hypot(*(self.movers - before)[:, :, :2].transpose(2, 0, 1))
        self._stuck = np.where(moved < 0.2 * self._speeds * duration, self._stuck + duration, 0.0)
        there = np.hypot(*(self.movers[:, :, :2] - self._targets).transpose(2, 0, 1)) < 0.1
        for world, m in np.argwhere(
            (there | (self._stuck > self.config.patience)) & (self.movers[:, :, 2] > 0.0)
        ):
            self._next(int(world), int(m), bool(there[world, m]))

    def state_dict(self) -> dict[str, Any]:
        """Where all are, where they go and what decides the rest, apart from the simulator's state."""
        return {
            "rngs": [rng.bit_generator.state for rng in self._rngs],
            "movers": self.movers,
            "speeds": self._speeds,
            "targets": self._targets,
            "stuck": self._stuck,
            "paths": [[[list(point) for point in path] for path in world] for world in self._paths],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, in the worlds that the simulator has now."""
        for rng, known in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = known
        self.movers[:], self._speeds[:] = state["movers"], state["speeds"]
        self._targets[:], self._stuck[:] = state["targets"], state["stuck"]
        self._paths = [
            [[(float(x), float(y)) for x, y in path] for path in world] for world in state["paths"]
        ]
        self._spaces.clear()
        self.simulator.set_movers(self.movers)

    def _next(self, world: int, m: int, there: bool) -> None:
        self._stuck[world, m] = 0.0
        if m >= self.config.count:
            if there:
                self._turn_round(world, m)
            elif m < self.config.count + self.config.patrolling:
                # Somebody stands in its way: back to where it came from.
                self._paths[world][m].reverse()
                self._targets[world, m] = self._paths[world][m][0]
        elif there and self._paths[world][m]:
            self._targets[world, m] = self._paths[world][m].pop(0)
        else:
            self._send(world, m)

    def _turn_round(self, world: int, m: int) -> None:
        path = self._paths[world][m]
        path.append(path.pop(0))
        self._targets[world, m] = path[0]

    def _send(self, world: int, m: int) -> None:
        """A new place to go, and the way there."""
        here = self.movers[world, m, :2]
        self._targets[world, m] = here
        self._paths[world][m] = []
        try:
            _, goal = self._space(world).sample(
                self._rngs[world], min_distance=1.0, max_distance=math.inf, tries=50
            )
        except NoRoom:
            return
        path = self._space(world).shortest_path(here, goal)
        if path is not None and len(path) > 1:
            self._paths[world][m] = [(float(x), float(y)) for x, y in path[1:]]
            self._targets[world, m] = self._paths[world][m].pop(0)

    def _space(self, world: int) -> FreeSpace:
        if world not in self._spaces:
            footprint = Footprint(radius=self.config.radius)
            margin = self.config.margin + 0.05
            self._spaces[world] = FreeSpace(self.simulator.worlds[world], footprint, margin=margin)
        return self._spaces[world]

    def _reach(self) -> float:
        return max(self.simulator.robot.footprint.circumscribed_radius, self.config.radius)
