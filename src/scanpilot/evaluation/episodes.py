"""Drive each robot of a fleet through its first episode and record what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scanpilot.evaluation.guarded import GuardedFleet, Safety
from scanpilot.fleet import SimulatedFleet
from scanpilot.robot import Footprint
from scanpilot.sim.world import World
from scanpilot.types import DoubleArray, FloatArray, Triplet

Act = Callable[[Triplet], FloatArray]


@dataclass(frozen=True, eq=False)
class Scene:
    """All that moved in one world while its episodes lasted; shared by them.

    Attributes:
        tracks: ``(T + 1, R, 3)`` float32 poses of the world's robots; those whose episode is over drive
            on, from new starts.
        walkers: ``(T + 1, M, 3)`` float32 x, y, radius; a radius below 0 is nobody.
        footprint: of the robots.
    """

    tracks: FloatArray
    walkers: FloatArray
    footprint: Footprint


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
        top_speed: the fastest that the robot can drive, m/s.
        condition: under which of its suite's conditions.
        scene: what else moved there, and which of its robots this was; None when nobody recorded it.
        guard_ticks: of its steps, those in which a guard made the command smaller.
    """

    outcome: str
    period: float
    poses: DoubleArray
    actions: FloatArray
    goal: DoubleArray
    min_clearance: float
    shortest: float
    world: World
    top_speed: float
    condition: str = ""
    scene: tuple[Scene, int] | None = None
    guard_ticks: int = 0

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
    def optimal(self) -> float:
        """Seconds of the shortest path at top speed."""
        return self.shortest / self.top_speed

    @property
    def straight(self) -> float:
        """Straight line from start to goal, metres."""
        return float(np.hypot(*(self.goal[:2] - self.poses[0, :2])))

    @property
    def detour(self) -> float:
        """Shortest path over straight line, at least 1."""
        return max(1.0, self.shortest / self.straight)


def run_episodes(
    fleet: SimulatedFleet, act: Act, count: int, condition: str = "", safety: Safety | None = None
) -> list[Episode]:
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
    guarded = None if safety is None else GuardedFleet(fleet, act, safety)
    poses, walkers = [fleet.simulator.poses.copy()], [fleet.simulator.movers()]
    while running:
        result = fleet.step((guarded or act)(fleet.observe()))
        # Where robots are now: those whose episode ended are at their next start.
        poses.append(fleet.simulator.poses.copy())
        walkers.append(fleet.simulator.movers())
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
    episodes = [recorder.episode(condition) for recorder in recorders]
    if guarded is not None:
        episodes = [
            replace(episode, guard_ticks=guarded.ticks(robot, len(episode.actions)))
            for robot, episode in enumerate(episodes)
        ]
    return _with_scenes(episodes, fleet, np.array(poses, np.float32), np.array(walkers, np.float32))


def _with_scenes(
    episodes: list[Episode], fleet: SimulatedFleet, poses: FloatArray, walkers: FloatArray
) -> list[Episode]:
    per_world = fleet.simulator.robots_per_world
    told: list[Episode] = []
    for first in range(0, len(episodes), per_world):
        own = episodes[first : first + per_world]
        end = 1 + max(len(episode.actions) for episode in own)
        tracks = poses[:end, first : first + per_world].copy()
        scene = Scene(tracks, walkers[:end, first // per_world].copy(), fleet.robot.footprint)
        told += [replace(episode, scene=(scene, place)) for place, episode in enumerate(own)]
    return told


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

    def episode(self, condition: str) -> Episode:
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
            top_speed=self._fleet.robot.limits.vx,
            condition=condition,
        )
