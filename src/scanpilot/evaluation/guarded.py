"""A simulated fleet behind the collision guard, and behind recoveries as far as actions can do them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scanpilot import command
from scanpilot.fleet import SimulatedFleet
from scanpilot.geometry import relative_poses, wrap_angle
from scanpilot.guard import Action, Guard, GuardConfig
from scanpilot.observation import interpret_ranges
from scanpilot.recovery import FieldOfView, Recovery, RecoveryConfig, Sight
from scanpilot.sim.simulator import Simulator
from scanpilot.types import BoolArray, DoubleArray, FloatArray, LaserScan, Pose2D, Triplet, Twist2D


@dataclass(frozen=True)
class Safety:
    """What of the policy node stands between a policy and the robots of an evaluation.

    Attributes:
        guard: the guard.
        recovery: what robots do that get nowhere; None: nothing.
    """

    guard: GuardConfig = field(default_factory=GuardConfig)
    recovery: RecoveryConfig | None = None


class FleetGuard:
    """The guard of every robot of a simulator; feeds it the raw scans, as the policy node does.

    Attributes:
        slowed, stopped: ``(N,)`` what it did to each robot's latest command.
        points: ``(N, P, 2)`` what each robot's lidar hit when it was last asked, in base_link; beams that
            hit nothing are far away.
    """

    def __init__(self, simulator: Simulator, config: GuardConfig) -> None:
        self._simulator = simulator
        robot, lidar = simulator.robot, simulator.robot.lidar
        self._robot = robot
        self._guard = Guard(config, robot)
        angles = lidar.mount.yaw + lidar.angle_min + lidar.angle_increment * np.arange(lidar.beams)
        self._directions = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        self._offset = np.array([lidar.mount.x, lidar.mount.y])
        self._poses = simulator.poses.copy()
        self._previous = np.zeros((simulator.num_robots, 3))
        self.slowed: BoolArray = np.zeros(simulator.num_robots, dtype=np.bool_)
        self.stopped: BoolArray = np.zeros(simulator.num_robots, dtype=np.bool_)

    def __call__(self, commands: DoubleArray) -> DoubleArray:
        """What limits and guard leave of ``(N, 3)`` velocity commands, by the scans as they are now."""
        limits, period = self._robot.limits, self._robot.control_period
        lidar, twists = self._robot.lidar, self._simulator.twists
        distances = interpret_ranges(self._simulator.scan(), lidar.range_min, lidar.range_max)
        reach = np.minimum(np.array([limits.ax, limits.ay, limits.awz]) * period, 1e9)
        sent: DoubleArray = self._previous + np.clip(commands - self._previous, -reach, reach)
        self.slowed[:] = self.stopped[:] = False
        speeds = np.hypot(*np.maximum(np.abs(sent[:, :2]), np.abs(twists[:, :2])).T)
        self.points = points = (
            self._offset + np.where(np.isfinite(distances), distances, 1e6)[..., None] * self._directions
        )
        self._move_on(points)
        for robot in np.flatnonzero(self._guard.relevant(points, speeds, period)):
            verdict = self._guard.check(
                Twist2D(*map(float, sent[robot])),
                points[robot],
                measured=Twist2D(*map(float, twists[robot])),
                previous=Twist2D(*map(float, self._previous[robot])),
                period=period,
            )
            sent[robot] = verdict.twist
            self.slowed[robot] = verdict.action is Action.SLOWED
            self.stopped[robot] = verdict.action is Action.STOPPED
        self._previous[:] = sent
        return sent

    def _move_on(self, points: DoubleArray) -> None:
        """Put points to where they are seen from now: since a late scan was taken the robots have moved."""
        poses, latency = self._simulator.poses, self._simulator.config.scan_latency
        before, self._poses = self._poses, poses.copy()
        # A robot that was put elsewhere has not driven there.
        drove = np.hypot(*(poses - before)[:, :2].T) < _JUMP
        if latency == 0.0:
            return
        share = min(1.0, latency / self._robot.control_period)
        then = np.where(drove[:, None], poses + share * _way_back(before, poses), poses)
        moved = relative_poses(then, poses)
        c, s = np.cos(moved[:, 2])[:, None], np.sin(moved[:, 2])[:, None]
        x, y = points[..., 0].copy(), points[..., 1].copy()
        points[..., 0] = moved[:, :1] + c * x - s * y
        points[..., 1] = moved[:, 1:2] + s * x + c * y


# No robot drives farther in one control period, metres.
_JUMP = 2.0


def _way_back(before: DoubleArray, now: DoubleArray) -> DoubleArray:
    """``(N, 3)`` from poses now back to those before, the turn the short way."""
    back = before - now
    back[:, 2] = wrap_angle(back[:, 2])
    return back


class GuardedFleet:
    """Acts for a fleet as a policy would, behind the guard.

    An action has no way backwards: recoveries that back up are left out.

    Attributes:
        acted: one ``(N,)`` row a step: where the guard made the command smaller.
    """

    def __init__(self, fleet: SimulatedFleet, act: Callable[[Triplet], FloatArray], safety: Safety) -> None:
        self._fleet, self._act = fleet, act
        self._guard = FleetGuard(fleet.simulator, safety.guard)
        self._recoveries: list[Recovery] = []
        if safety.recovery is not None:
            behaviors = tuple(name for name in safety.recovery.behaviors if name != "backup")
            config = replace(safety.recovery, behaviors=behaviors)
            self._recoveries = [Recovery(config, fleet.robot) for _ in range(fleet.num_robots)]
        lidar = fleet.robot.lidar
        ranges = np.ones(lidar.beams, np.float32)
        scan = LaserScan(ranges, lidar.angle_min, lidar.angle_increment, lidar.range_min, lidar.range_max)
        self._fields = (FieldOfView.of(scan, lidar.mount, False),)
        self._goals = fleet.goals.copy()
        self._blocked: BoolArray = np.zeros(fleet.num_robots, dtype=np.bool_)
        self.acted: list[BoolArray] = []

    def __call__(self, triplets: Triplet) -> FloatArray:
        """``(N, 3)`` actions for what the robots see."""
        robot = self._fleet.robot
        wanted = command.commands(command.executed_actions(self._act(triplets), robot), robot)
        if self.acted:
            self._recover(wanted)
        allowed = self._guard(wanted)
        acted = self._guard.slowed | self._guard.stopped
        self._blocked = self._guard.stopped.copy()
        self.acted.append(acted)
        return command.actions_of(allowed, robot)

    def ticks(self, robot: int, steps: int) -> int:
        """In how many of a robot's first steps the guard acted."""
        return sum(int(row[robot]) for row in self.acted[:steps])

    def _recover(self, wanted: DoubleArray) -> None:
        """Put what recoveries want in place of what the policy wants, by the scans of a step before."""
        fleet = self._fleet
        now = len(self.acted) * fleet.robot.control_period
        fresh = (fleet.goals != self._goals).any(axis=1)
        self._goals[:] = fleet.goals
        for robot, recovery in enumerate(self._recoveries):
            if fresh[robot]:
                recovery.reset()
                continue
            x, y, yaw = map(float, fleet.simulator.poses[robot])
            distance = math.hypot(fleet.goals[robot, 0] - x, fleet.goals[robot, 1] - y)
            sight = Sight(self._guard.points[robot], self._fields)
            twist = recovery.update(now, Pose2D(x, y, yaw), distance, sight, bool(self._blocked[robot]))
            if twist is not None:
                wanted[robot] = twist
            elif recovery.gave_up is not None:
                wanted[robot] = 0.0
