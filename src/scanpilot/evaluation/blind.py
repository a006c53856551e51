"""How good the guard is, with the worst of policies: full speed ahead with random turns, seeing nothing.

``python -m scanpilot.evaluation.blind --scenes 10000`` prints contacts and at which speed they happened.
A scene is a random start in a random world of the test stream; four share a world, and neither see nor
hit each other unless ``--traffic`` is given. Then those contacts in which another robot was the nearest
thing count apart: robots that drive at each other break the guard's assumption that things stand still.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scanpilot import resources
from scanpilot.evaluation.guarded import FleetGuard
from scanpilot.evaluation.metrics import wilson_interval
from scanpilot.guard import GuardConfig
from scanpilot.robot import RobotSpec, load_robot
from scanpilot.sim import sources
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.types import BoolArray, DoubleArray

_PER_WORLD = 4
_WORLDS_AT_ONCE = 100
# A control period is simulated in so many pieces, to know the speed at the moment of a contact.
_PIECES = 10
# Between two robots that touch, metres.
_TOUCH = 0.02


@dataclass(frozen=True)
class Contacts:
    """What became of so many scenes.

    Attributes:
        scenes: driven, each until its first contact or the end.
        contacts: with what stands still.
        contacts_interval: Wilson's, of their share.
        fastest: m/s at the moment of the worst of these; 0 without any.
        traffic: contacts with other robots.
        fastest_traffic: m/s of the worst of these.
        guard_rate: share of ticks in which the guard acted.
        metres: driven a scene, on average.
    """

    scenes: int
    contacts: int
    contacts_interval: tuple[float, float]
    fastest: float
    traffic: int
    fastest_traffic: float
    guard_rate: float
    metres: float


def measure(
    scenes: int,
    seed: int,
    robot: RobotSpec,
    guard: GuardConfig | None,
    simulator: SimulatorConfig | None = None,
    steps: int = 75,
    generator: str = "clutter",
) -> Contacts:
    """Drive blindly; without a guard for comparison.

    Args:
        scenes: how many; rounded up to whole worlds.
        seed: of worlds, starts and turns.
        robot: that drives.
        guard: what keeps it from harm, if anything.
        simulator: noise, latency, and whether robots see and hit each other; by default they do not.
        steps: control periods a scene.
        generator: of the worlds.
    """
    config = simulator or SimulatorConfig(robots_visible=False, robots_solid=False)
    worlds = -(-scenes // _PER_WORLD)
    parts = [
        _Scenes(
            range(first, min(first + _WORLDS_AT_ONCE, worlds)), seed, robot, guard, config, generator
        ).drive(steps)
        for first in range(0, worlds, _WORLDS_AT_ONCE)
    ]
    contact, traffic, speed, acted, ticks, metres = map(np.concatenate, zip(*parts, strict=True))
    return Contacts(
        scenes=len(contact),
        contacts=int(contact.sum()),
        contacts_interval=wilson_interval(int(contact.sum()), len(contact)),
        fastest=float(speed[contact].max(initial=0.0)),
        traffic=int(traffic.sum()),
        fastest_traffic=float(speed[traffic].max(initial=0.0)),
        guard_rate=float(acted.sum() / ticks.sum()),
        metres=float(metres.mean()),
    )


class _Scenes:
    """Some worlds of scenes, driven side by side."""

    def __init__(
        self,
        worlds: range,
        seed: int,
        robot: RobotSpec,
        guard: GuardConfig | None,
        config: SimulatorConfig,
        generator: str,
    ) -> None:
        self._rng = np.random.default_rng([seed, worlds.start])
        self._robot = robot
        make = sources.worlds(generator, "test", seed)
        made = [make(number) for number in worlds]
        self._simulator = Simulator(made, robot, _PER_WORLD, config, seed, streams=list(worlds))
        for slot, world in enumerate(made):
            space, taken = FreeSpace(world, robot.footprint), np.zeros((0, 3))
            for place in range(_PER_WORLD):
                start, _ = space.sample(
                    self._rng,
                    min_distance=1.0,
                    max_distance=12.0,
                    taken=taken,
                    taken_goals=np.zeros((0, 3)),
                    spacing=0.0,
                )
                taken = np.concatenate((taken, start[None]))
                self._simulator.place([slot * _PER_WORLD + place], start[None])
        self._guard = None if guard is None else FleetGuard(self._simulator, guard)

    def drive(
        self, steps: int
    ) -> tuple[BoolArray, BoolArray, DoubleArray, DoubleArray, DoubleArray, DoubleArray]:
        """Contacts with what stands, contacts with robots, speeds at those, ticks acted, ticks, metres."""
        count, limits = self._simulator.num_robots, self._robot.limits
        contact: BoolArray = np.zeros(count, dtype=np.bool_)
        traffic: BoolArray = np.zeros(count, dtype=np.bool_)
        speed, acted, ticks, metres = (np.zeros(count) for _ in range(4))
        turn, left = np.zeros(count), np.zeros(count, dtype=np.int64)
        for _ in range(steps):
            # Each turn is kept for up to two seconds.
            fresh = left <= 0
            turn[fresh] = self._rng.uniform(-limits.wz, limits.wz, int(fresh.sum()))
            left[fresh] = self._rng.integers(1, 11, int(fresh.sum()))
            left -= 1
            commands = np.stack((np.full(count, limits.vx), np.zeros(count), turn), axis=1)
            running = ~(contact | traffic)
            if self._guard is not None:
                commands = self._guard(commands)
                acted += (self._guard.slowed | self._guard.stopped) & running
            ticks += running
            for _ in range(_PIECES):
                before, poses = self._simulator.twists.copy(), self._simulator.poses.copy()
                hit = self._simulator.step(commands, self._robot.control_period / _PIECES)
                new = hit & ~(contact | traffic)
                speed[new] = np.hypot(before[new, 0], before[new, 1])
                by_robot = new & self._beside_another()
                traffic |= by_robot
                contact |= new & ~by_robot
                metres += np.hypot(*(self._simulator.poses - poses)[:, :2].T) * running
        return contact, traffic, speed, acted, ticks, metres

    def _beside_another(self) -> BoolArray:
        """``(N,)`` whether another robot of the world is within touch, by circles around footprints."""
        if not self._simulator.config.robots_solid:
            return np.zeros(self._simulator.num_robots, dtype=np.bool_)
        places = self._simulator.poses[:, :2].reshape(-1, _PER_WORLD, 2)
        apart = np.hypot(*np.moveaxis(places[:, :, None] - places[:, None], -1, 0))
        apart[:, range(_PER_WORLD), range(_PER_WORLD)] = np.inf
        near = apart.min(axis=2) < 2.0 * self._robot.footprint.circumscribed_radius + _TOUCH
        return np.asarray(near.reshape(-1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m scanpilot.evaluation.blind", description=__doc__)
    parser.add_argument("--scenes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--robot", default="generic_diff", help="name of a shipped robot, or its YAML file")
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--traffic", action="store_true", help="the four robots of a world meet each other")
    parser.add_argument("--noise", type=float, default=0.0, help="of ranges, metres")
    parser.add_argument("--scan-latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--actuation-delay", type=float, default=0.0, help="seconds more than the robot's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    robot = load_robot(resources.find("robot", args.robot))
    robot = replace(robot, actuation_delay=robot.actuation_delay + args.actuation_delay)
    simulator = SimulatorConfig(
        robots_visible=args.traffic,
        robots_solid=args.traffic,
        scan_noise=args.noise,
        scan_latency=args.scan_latency,
    )
    guard = None if args.no_guard else GuardConfig()
    result: dict[str, Any] = asdict(measure(args.scenes, args.seed, robot, guard, simulator))
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
