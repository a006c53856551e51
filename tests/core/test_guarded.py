"""The guard in the simulator: a blind driver, a policy's episodes, a dead end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scanpilot import resources
from scanpilot.evaluation import blind
from scanpilot.evaluation.episodes import run_episodes
from scanpilot.evaluation.guarded import Safety
from scanpilot.fleet import FleetConfig, SimulatedFleet
from scanpilot.guard import GuardConfig
from scanpilot.navigator import Navigator, NavigatorConfig, State
from scanpilot.observation import observation_for
from scanpilot.recovery import RecoveryConfig
from scanpilot.robot import load_robot
from scanpilot.sim import sources
from scanpilot.sim.simulator import Simulator, SimulatorConfig
from scanpilot.sim.world import Solid, build_world
from scanpilot.task import TaskConfig
from scanpilot.types import FloatArray, LaserScan, Odometry, Pose2D, Triplet, Twist2D

ROBOT = load_robot(resources.find("robot", "generic_diff"))
BOX = ((0.25, 0.2), (-0.25, 0.2), (-0.25, -0.2), (0.25, -0.2))


def test_without_a_guard_the_blind_driver_hits_things_at_speed() -> None:
    result = blind.measure(40, 3, ROBOT, None, steps=60)
    assert result.contacts > 30
    assert result.fastest > 0.9


@pytest.mark.parametrize(
    ("robot", "simulator"),
    [
        (ROBOT, SimulatorConfig(robots_visible=False, robots_solid=False)),
        (
            replace(ROBOT, footprint=replace(ROBOT.footprint, radius=None, polygon=BOX), actuation_delay=0.1),
            SimulatorConfig(robots_visible=False, robots_solid=False, scan_latency=0.1),
        ),
    ],
    ids=["ideal", "box, late by 0.2 s"],
)
def test_behind_the_guard_it_hits_nothing(robot, simulator) -> None:
    """A short form of ``python -m scanpilot.evaluation.blind``, whose figures are in docs/safety.md."""
    result = blind.measure(40, 3, robot, GuardConfig(), simulator, steps=60)
    assert result.contacts == 0
    # It was kept from harm, not from driving.
    assert result.metres > 2.0
    assert result.guard_rate > 0.1


def _ahead(triplets: Triplet) -> FloatArray:
    actions = np.zeros((len(triplets), 3), np.float32)
    actions[:, 0] = 1.0
    return actions


def test_episodes_behind_the_guard_count_its_ticks_on_the_same_starts() -> None:
    def drive(safety: Safety | None):
        config = FleetConfig(worlds=2, robots_per_world=4, world_lifetime=0)
        fleet = SimulatedFleet(
            sources.worlds("clutter", "test", 5),
            ROBOT,
            observation_for(ROBOT, beams=36),
            TaskConfig(time_limit=60),
            config,
            5,
        )
        return run_episodes(fleet, _ahead, 8, safety=safety)

    free, guarded, helped = drive(None), drive(Safety()), drive(Safety(recovery=RecoveryConfig()))
    assert [e.guard_ticks for e in free] == [0] * 8
    assert sum(e.outcome == "collision" for e in free) > sum(e.outcome == "collision" for e in guarded)
    for before, after in zip(free, guarded, strict=True):
        np.testing.assert_array_equal(before.poses[0], after.poses[0])
        assert 0 <= after.guard_ticks <= len(after.actions)
    # Driving straight on, only a recovery turns round.
    assert sum(np.ptp(e.poses[:, 2]) > 0.5 for e in helped) > sum(
        np.ptp(e.poses[:, 2]) > 0.5 for e in guarded
    )


class _Stubborn:
    """Straight at the goal, as if nothing were in the way."""

    robot, observation, name, identity = ROBOT, observation_for(ROBOT), "stubborn", "stubborn"
    control_period = ROBOT.control_period

    def act(self, triplet: Triplet) -> FloatArray:
        x, y, _ = map(float, triplet.goal)
        bearing = np.arctan2(y, x)
        return np.array([max(0.0, np.cos(bearing)), 0.0, np.clip(1.5 * bearing, -1.0, 1.0)], np.float32)


def test_in_a_dead_end_it_recovers_a_few_times_touches_nothing_and_gives_up() -> None:
    # A pocket, 2 m deep and 1.2 m wide, between the robot and its goal.
    pocket = (
        (-1.0, 0.6),
        (1.0, 0.6),
        (1.0, -0.6),
        (-1.0, -0.6),
        (-1.0, -0.7),
        (1.1, -0.7),
        (1.1, 0.7),
        (-1.0, 0.7),
    )
    world = build_world("pocket", [Solid((np.array(pocket),))])
    simulator = Simulator([world], ROBOT, 1)
    simulator.place([0], np.array([[-0.5, 0.1, 0.0]]))
    recovery = RecoveryConfig(number_of_retries=3, wait_duration=1.0)
    navigator = Navigator(NavigatorConfig(recovery=recovery), _Stubborn())
    navigator.set_goal(Pose2D(5.0, 0.0, 0.0))
    lidar, states, touched = ROBOT.lidar, [], False
    for tick in range(400):
        now = ROBOT.control_period * tick
        ranges = simulator.scan()[0]
        scan = LaserScan(
            ranges, lidar.angle_min, lidar.angle_increment, lidar.range_min, lidar.range_max, now
        )
        navigator.set_scan(scan, now)
        pose, twist = map(float, simulator.poses[0]), map(float, simulator.twists[0])
        navigator.set_odometry(Odometry(Pose2D(*pose), Twist2D(*twist), now), now)
        command = navigator.tick(now)
        touched |= bool(simulator.step(np.array([command.twist]), ROBOT.control_period)[0])
        states.append(command.state)
        if command.state is State.GAVE_UP:
            break
    assert states[-1] is State.GAVE_UP
    assert "gave up after 3 recoveries" in command.reason
    assert navigator.recoveries == 3
    assert not touched
    assert len(states) < 400
