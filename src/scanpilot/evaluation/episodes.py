"""Drive each robot of a fleet through its first episode and record what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scanpilot.fleet import SimulatedFleet
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray, FloatArray, Triplet

Act = Callable[[Triplet], FloatArray]


@dataclass(frozen=True)
class Episode:
    """One episode of one robot.

    Attributes:
        outcome: ``success``, ``collision`` or ``timeout``.
        period: seconds between the rows below.
        poses: ``(T + 1, 3)`` from start to end, world frame.
        actions: ``(T, 3)`` executed.
        goal: x, y, yaw in the world frame.
        min_clearance: smallest distance between footprint and anything, metres.
        shortest: length of the shortest path at the footprint's clearance, metres.
        world: where it took place.
    """

    outcome: str
    period: float
    poses: DoubleArray
    actions: FloatArray
    goal: DoubleArray
    min_clearance: float
    shortest: float
    world: World

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.period * len(self.actions)

    @property
    def length(self) -> float:
        """Metres driven."""
        steps = np.diff(self.poses[:, :2], axis=0)
        return float(np.hypot(steps[:, 0], steps[:, 1]).sum())

    @property
    def straight(self) -> float:
        """Straight line from start to goal, metres."""
        return float(np.hypot(*(self.goal[:2] - self.poses[0, :2])))

    @property
    def detour(self) -> float:
        """Shortest path over straight line, at least 1."""
        return max(1.0, self.shortest / self.straight)


def run_episodes(fleet: SimulatedFleet, act: Act, count: int) -> list[Episode]:
    """The first episode of each of the fleet's first ``count`` robots.

    First episodes only: counting every finished one would favour the short. Robots that are
    done drive on to new goals, so that the others' traffic does not thin out.

    Raises:
        ValueError: the fleet has fewer robots.
    """
    if count > fleet.num_robots:
        raise ValueError(f"{count} episodes asked of a fleet of {fleet.num_robots} robots")
    recorders = [_Recorder(fleet, robot) for robot in range(count)]
    running = recorders
    while running:
        result = fleet.step(act(fleet.observe()))
        ended = {
            "success": result.reached,
            "collision": result.collided,
            "timeout": result.info["timed_out"],
        }
        for recorder in running:
            robot = recorder.robot
            recorder.add(
                result.info["poses"][robot], result.actions[robot], float(result.info["clearance"][robot])
            )
            recorder.outcome = next((name for name, at in ended.items() if at[robot]), None)
        running = [recorder for recorder in running if recorder.outcome is None]
    return [recorder.episode() for recorder in recorders]


class _Recorder:
    def __init__(self, fleet: SimulatedFleet, robot: int) -> None:
        self.robot = robot
        self.outcome: str | None = None
        self._fleet = fleet
        self._world, self._space = fleet.world_of(robot), fleet.space_of(robot)
        self._poses = [fleet.starts[robot].copy()]
        self._actions: list[FloatArray] = []
        self._goal = fleet.goals[robot].copy()
        self._clearance = float("inf")

    def add(self, pose: DoubleArray, action: FloatArray, clearance: float) -> None:
        self._poses.append(pose)
        self._actions.append(action)
        self._clearance = min(self._clearance, clearance)

    def episode(self) -> Episode:
        assert self.outcome is not None
        return Episode(
            outcome=self.outcome,
            period=self._fleet.robot.control_period,
            poses=np.array(self._poses),
            actions=np.array(self._actions),
            goal=self._goal,
            min_clearance=self._clearance,
            shortest=self._space.shortest_path_length(self._poses[0], self._goal),
            world=self._world,
        )
