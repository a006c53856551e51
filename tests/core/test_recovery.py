"""Stuck, blocked and circling robots by hand, and recoveries that end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from scanpilot.recovery import (
    FieldOfView,
    Progress,
    Recovery,
    RecoveryConfig,
    Sight,
    free_behind,
    free_direction,
)
from scanpilot.robot import Footprint, Kinematics, Lidar, Limits, RobotSpec
from scanpilot.types import ORIGIN, ZERO_TWIST, InvalidInput, LaserScan, Pose2D, Twist2D

ALL_ROUND = FieldOfView(0.0, 0.0, -math.pi, 2.0 * math.pi)
OPEN = Sight(np.zeros((0, 2)), (ALL_ROUND,))


def make_robot(kinematics: Kinematics = "differential", footprint: Footprint | None = None) -> RobotSpec:
    return RobotSpec(
        "tester",
        kinematics,
        footprint or Footprint(radius=0.2),
        Limits(vx=1.0, wz=1.5),
        Lidar(beams=90),
        turning_radius=0.5 if kinematics == "car" else 0.0,
    )


def watch(
    progress: Progress, poses: list[Pose2D], goal: float = 5.0, blocked: bool = False
) -> list[str | None]:
    """Verdicts at one pose a second, the goal always as far away."""
    return [progress.update(float(i), pose, goal, blocked) for i, pose in enumerate(poses)]


def test_a_robot_that_stays_within_the_radius_is_stuck_after_the_allowance() -> None:
    swaying = [Pose2D(0.2 * math.sin(i), 0.0, 0.0) for i in range(12)]
    verdicts = watch(Progress(RecoveryConfig(movement_time_allowance=10.0)), swaying)
    assert verdicts[:10] == [None] * 10
    assert verdicts[10] == "less than 0.5 m away in 10 s"


def test_a_slow_robot_is_not_stuck() -> None:
    # 0.5 m in 10 s, just enough.
    assert watch(Progress(RecoveryConfig()), [Pose2D(0.051 * i, 0.0, 0.0) for i in range(60)]) == [None] * 60


def test_one_that_the_guard_holds_is_stuck_sooner() -> None:
    verdicts = watch(Progress(RecoveryConfig(blocked_time_allowance=3.0)), [ORIGIN] * 4, blocked=True)
    assert verdicts == [None, None, None, "the guard keeps it standing for 3 s"]


def test_two_turns_that_lead_nowhere_are_circling() -> None:
    # A circle of 1 m radius, a quarter each second: two turns after eight, 8 chords of 1.414 m driven.
    circle = [Pose2D(math.sin(a), 1.0 - math.cos(a), a) for a in 0.5 * math.pi * np.arange(9)]
    verdicts = watch(Progress(RecoveryConfig()), circle)
    assert verdicts == [None] * 8 + ["circling: 2 turns and 11.3 m of way led 0.0 m"]


def test_turns_that_bring_it_nearer_or_far_are_no_circling() -> None:
    spiral = [Pose2D(2.0 * i, 0.0, 0.5 * math.pi * i) for i in range(20)]
    assert watch(Progress(RecoveryConfig()), spiral) == [None] * 20
    progress = Progress(RecoveryConfig())
    for i in range(20):
        pose = Pose2D(math.sin(0.5 * math.pi * i), 0.0, 0.5 * math.pi * i)
        assert progress.update(float(i), pose, 40.0 - i, False) is None
        progress.came_nearer(pose, 40.0 - i)


def test_a_recovery_tries_each_in_turn_and_gives_up() -> None:
    config = RecoveryConfig(
        number_of_retries=3, movement_time_allowance=5.0, wait_duration=2.0, time_allowance=4.0
    )
    recovery = Recovery(config, make_robot())
    log: list[tuple[str, Twist2D | None]] = []
    for second in range(60):
        twist = recovery.update(float(second), ORIGIN, 5.0, OPEN, blocked=False)
        log.append((recovery.words.split(" ")[0], twist))
    told = [name for name, _ in log if name]
    # 2 s of waiting; 4 s each of motions that do not move this robot at all.
    assert told == ["wait"] * 2 + ["spin"] * 4 + ["backup"] * 4
    assert log[5] == ("wait", ZERO_TWIST)
    assert recovery.gave_up == "gave up after 3 recoveries: less than 0.5 m away in 5 s"
    assert log[-1] == ("", None)
    recovery.reset()
    assert recovery.gave_up is None
    assert recovery.count == 3


def test_coming_nearer_to_the_goal_gives_new_tries_going_away_does_not() -> None:
    def tries(distances: list[float]) -> int:
        config = RecoveryConfig(
            number_of_retries=2, behaviors=("wait",), movement_time_allowance=1.0, wait_duration=1
        )
        recovery = Recovery(config, make_robot())
        for i, distance in enumerate(distances):
            # Out of its place between the times it is stuck.
            recovery.update(float(i), Pose2D(distance, 0.0, 0.0), distance, OPEN, blocked=False)
        return recovery.count

    assert tries([5.0] * 4 + [6.0] * 4 + [5.0] * 4 + [6.0] * 4) == 2
    assert tries([5.0] * 4 + [4.0] * 4 + [3.0] * 4) > 2


def test_it_turns_to_the_side_with_room() -> None:
    # Walls of 1 m ahead, to the right and behind, 0.5 m away: at 70 degrees to the left the corner
    # (0.5, 0.5) is passed by 0.30 m, at 60 degrees by 0.18 m; the robot needs 0.25 m.
    s = np.arange(-0.5, 0.51, 0.05)
    walls = ((0 * s + 0.5, s), (s, 0 * s - 0.5), (0 * s - 0.5, s))
    points = np.concatenate([np.stack(wall, axis=1) for wall in walls])
    assert free_direction(make_robot(), Sight(points, (ALL_ROUND,))) == pytest.approx(math.radians(70))
    # A lidar that does not look there does not say that there is room.
    front = FieldOfView(0.0, 0.0, -math.pi / 3, 2.0 * math.pi / 3)
    assert abs(free_direction(make_robot(), Sight(points, (front,)))) <= math.pi / 3


def test_spin_goes_to_that_heading_and_ends() -> None:
    recovery = Recovery(RecoveryConfig(behaviors=("spin",), blocked_time_allowance=1.0), make_robot())
    wall = Sight(np.stack((np.full(40, 0.3), np.linspace(-1.0, 0.5, 40)), axis=1), (ALL_ROUND,))
    yaw, twists = 0.0, []
    for tick in range(40):
        twist = recovery.update(0.2 * tick, Pose2D(0.0, 0.0, yaw), 5.0, wall, blocked=tick < 8)
        if twist is not None:
            twists.append(twist)
            yaw += 0.2 * twist.wz
    assert twists
    assert all(t.vx == 0.0 and 0.0 < abs(t.wz) <= 0.8 for t in twists)
    # Along the wall there are 0.3 m beside it.
    assert abs(yaw) == pytest.approx(math.radians(90), abs=0.12)


def test_it_backs_up_only_where_it_sees_that_it_can() -> None:
    robot = make_robot()
    front = FieldOfView(0.0, 0.0, -0.75 * math.pi, 1.5 * math.pi)
    assert free_behind(robot, OPEN, 0.3)
    assert not free_behind(robot, Sight(np.zeros((0, 2)), (front,)), 0.3)
    assert not free_behind(robot, Sight(np.zeros((0, 2)), ()), 0.3)
    assert not free_behind(robot, Sight(np.array([[-0.45, 0.1]]), (ALL_ROUND,)), 0.3)
    assert free_behind(robot, Sight(np.array([[-0.45, 0.25], [-0.6, 0.0], [0.3, 0.0]]), (ALL_ROUND,)), 0.3)
    # Two lidars that look backwards together.
    left, right = (
        FieldOfView(0.0, 0.0, 0.5 * math.pi, 0.6 * math.pi),
        FieldOfView(0.0, 0.0, math.pi, 0.5 * math.pi),
    )
    assert free_behind(robot, Sight(np.zeros((0, 2)), (left, right)), 0.3)


def test_a_car_does_not_spin_and_what_cannot_be_done_is_skipped() -> None:
    config = RecoveryConfig(
        behaviors=("spin", "backup", "wait"), number_of_retries=3, blocked_time_allowance=1.0
    )
    recovery = Recovery(config, make_robot("car"))
    blind = Sight(np.zeros((0, 2)), ())
    for second in range(3):
        recovery.update(float(second), ORIGIN, 5.0, blind, blocked=True)
    assert recovery.words.startswith("wait (3 of 3)")


@pytest.mark.parametrize(
    ("scan", "mount", "flipped", "start", "span"),
    [
        # 90 beams all round: to half an increment before the first again.
        ((90, -math.pi, 2.0 * math.pi / 90), ORIGIN, False, -math.pi - math.pi / 90, 2.0 * math.pi),
        ((181, -math.pi / 2, math.pi / 180), Pose2D(0.1, 0.0, math.pi), False, math.pi / 2, math.pi),
        # Clockwise and upside down, once each.
        ((91, 0.0, -math.pi / 180), ORIGIN, False, -math.pi / 2, math.pi / 2),
        ((91, 0.0, math.pi / 180), ORIGIN, True, -math.pi / 2, math.pi / 2),
    ],
)
def test_field_of_view_by_hand(
    scan: tuple[int, float, float], mount: Pose2D, flipped: bool, start: float, span: float
) -> None:
    count, first, increment = scan
    field = FieldOfView.of(LaserScan(np.ones(count, np.float32), first, increment, 0.1, 10.0), mount, flipped)
    assert field.start == pytest.approx(start, abs=0.01)
    assert field.span == pytest.approx(span, abs=0.02)
    assert field.x == mount.x


@pytest.mark.parametrize(
    "values", [{"behaviors": ("dance",)}, {"behaviors": ()}, {"backup_speed": 0.0}, {"number_of_retries": -1}]
)
def test_a_configuration_that_means_nothing_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        RecoveryConfig(**values)
