"""How hard a set of worlds is: the fate of robots that drive straight at their goals.

The yardstick of every procedural world: a proportional heading controller that sees
nothing. Success falls as worlds fill, whatever policy is trained in them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scanpilot.geometry import wrap_angle
from scanpilot.robot import RobotSpec
from scanpilot.sim.free_space import FreeSpace
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray


@dataclass(frozen=True)
class Difficulty:
    """What became of straight driving.

    Attributes:
        success, collision, timeout: fractions of each robot's first episode.
        detours: ``(episodes,)`` shortest path over straight distance.
        reached: ``(episodes,)`` whether each arrived.
    """

    success: float
    collision: float
    timeout: float
    detours: DoubleArray
    reached: DoubleArray

    def detour_shares(self) -> tuple[float, float, float, float]:
        """Fractions of episodes with a detour below 1.1, 1.1 to 1.25, 1.25 to 1.5, and above."""
        edges = np.array([1.1, 1.25, 1.5])
        counts = np.bincount(np.searchsorted(edges, self.detours, side="right"), minlength=4)
        a, b, c, d = counts / max(len(self.detours), 1)
        return float(a), float(b), float(c), float(d)


def straight_commands(poses: DoubleArray, goals: DoubleArray, robot: RobotSpec) -> DoubleArray:
    """``(N, 3)`` velocities that turn to the goal in proportion to its bearing and drive on."""
    offset = goals[:, :2] - poses[:, :2]
    bearing = wrap_angle(np.arctan2(offset[:, 1], offset[:, 0]) - poses[:, 2])
    commands = np.zeros((len(poses), 3))
    # A car that stood until it faces its goal would stand for ever.
    slowest = 0.3 if robot.kinematics == "car" else 0.0
    commands[:, 0] = robot.limits.vx * np.clip(np.cos(bearing), slowest, 1.0)
    commands[:, 2] = np.clip(2.0 * bearing, -robot.limits.wz, robot.limits.wz)
    return commands


def measure(
    worlds: Sequence[World],
    robot: RobotSpec,
    *,
    robots_per_world: int = 8,
    seed: int = 0,
    goal_radius: float = 0.3,
    steps: int = 300,
    min_distance: float = 2.0,
    max_distance: float = 12.0,
    spacing: float = 1.0,
) -> Difficulty:
    """Drive every robot's first episode; robots that are done start again and remain traffic."""
    rng = np.random.default_rng(seed)
    spaces = [FreeSpace(world, robot.footprint, turning_radius=robot.turning_radius) for world in worlds]
    simulator = Simulator(worlds, robot, robots_per_world, SimulatorConfig(), seed)
    n = simulator.num_robots
    goals = np.zeros((n, 3))
    detours = np.zeros(n)

    def begin(i: int, placed: DoubleArray, other_goals: DoubleArray) -> None:
        start, goals[i] = spaces[i // robots_per_world].sample(
            rng,
            min_distance=min_distance,
            max_distance=max_distance,
            taken=placed,
            taken_goals=other_goals,
            spacing=spacing,
        )
        simulator.place([i], start[None])

    for i in range(n):
        first = i - i % robots_per_world
        begin(i, simulator.poses[first:i], goals[first:i])
        detours[i] = spaces[i // robots_per_world].detour(simulator.poses[i], goals[i])
    fate = np.full(n, "", dtype=object)
    age = np.zeros(n, dtype=np.int64)
    while np.any(fate == ""):
        contacts = simulator.step(straight_commands(simulator.poses, goals, robot), robot.control_period)
        age += 1
        arrived = np.hypot(*(goals[:, :2] - simulator.poses[:, :2]).T) < goal_radius
        late = age >= steps
        for i in map(int, np.flatnonzero(contacts | arrived | late)):
            if fate[i] == "":
                fate[i] = "collision" if contacts[i] else "success" if arrived[i] else "timeout"
            first = i - i % robots_per_world
            others = np.delete(np.arange(first, first + robots_per_world), i - first)
            begin(i, simulator.poses[others], goals[others])
            age[i] = 0
    return Difficulty(
        success=float(np.mean(fate == "success")),
        collision=float(np.mean(fate == "collision")),
        timeout=float(np.mean(fate == "timeout")),
        detours=detours,
        reached=np.asarray(fate == "success"),
    )
