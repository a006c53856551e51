"""A whole simulated fleet behind the collision guard."""

from __future__ import annotations

import numpy as np

from scanpilot import command
from scanpilot.evaluation.episodes import Act
from scanpilot.fleet import SimulatedFleet
from scanpilot.guard import Action, Guard, GuardConfig
from scanpilot.observation import interpret_ranges
from scanpilot.sim.simulator import Simulator
from scanpilot.types import BoolArray, DoubleArray, FloatArray, Triplet, Twist2D


class FleetGuard:
    """The guard of every robot of a simulator; feeds it the raw scans, as the policy node does.

    Attributes:
        slowed, stopped: ``(N,)`` what it did to each robot's latest command.
    """

    def __init__(self, simulator: Simulator, config: GuardConfig) -> None:
        self._simulator = simulator
        robot, lidar = simulator.robot, simulator.robot.lidar
        self._robot = robot
        self._guard = Guard(config, robot)
        angles = lidar.mount.yaw + lidar.angle_min + lidar.angle_increment * np.arange(lidar.beams)
        self._directions = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        self._offset = np.array([lidar.mount.x, lidar.mount.y])
        self._previous = np.zeros((simulator.num_robots, 3))
        self.slowed: BoolArray = np.zeros(simulator.num_robots, dtype=np.bool_)
        self.stopped: BoolArray = np.zeros(simulator.num_robots, dtype=np.bool_)

    def __call__(self, commands: DoubleArray) -> DoubleArray:
        """What of ``(N, 3)`` velocity commands may be sent, by the scans as they are now."""
        limits, period = self._robot.limits, self._robot.control_period
        lidar, twists = self._robot.lidar, self._simulator.twists
        distances = interpret_ranges(self._simulator.scan(), lidar.range_min, lidar.range_max)
        # The base cannot do more within the period, as the limiter of a real robot sees to.
        reach = np.minimum(np.array([limits.ax, limits.ay, limits.awz]) * period, 1e9)
        sent: DoubleArray = twists + np.clip(commands - twists, -reach, reach)
        self.slowed[:] = self.stopped[:] = False
        speeds = np.hypot(*np.maximum(np.abs(sent[:, :2]), np.abs(twists[:, :2])).T)
        points = self._offset + np.where(np.isfinite(distances), distances, 1e6)[..., None] * self._directions
        for robot in np.flatnonzero(self._guard.relevant(points, speeds, period)):
            verdict = self._guard.check(
                Twist2D(*map(float, sent[robot])),
                points[robot],
                measured=Twist2D(*map(float, twists[robot])),
                previous=Twist2D(*map(float, self._previous[robot])),
                age=self._simulator.config.scan_latency,
                period=period,
            )
            sent[robot] = verdict.twist
            self.slowed[robot] = verdict.action is Action.SLOWED
            self.stopped[robot] = verdict.action is Action.STOPPED
        self._previous[:] = sent
        return sent


class GuardedAct:
    """Acts for a fleet as a policy would, behind the guard.

    Attributes:
        acted: one ``(N,)`` row a step: where the guard made the command smaller.
    """

    def __init__(self, fleet: SimulatedFleet, act: Act, config: GuardConfig) -> None:
        self._robot = fleet.robot
        self._act = act
        self._guard = FleetGuard(fleet.simulator, config)
        self.acted: list[BoolArray] = []

    def __call__(self, triplets: Triplet) -> FloatArray:
        """``(N, 3)`` actions for what the robots see."""
        robot = self._robot
        wanted = command.commands(command.executed_actions(self._act(triplets), robot), robot)
        allowed = self._guard(wanted)
        self.acted.append(self._guard.slowed | self._guard.stopped)
        # Commands that the guard left alone go out as they were: the base ramps by itself.
        sent = np.where(self.acted[-1][:, None], allowed, wanted)
        return command.actions_of(sent, robot)
