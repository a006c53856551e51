"""Goals in a row, planned paths, arrival; values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scanpilot.frozen import FrozenScan
from scanpilot.goals import (
    Arrival,
    Phase,
    PlannedPath,
    Waypoints,
    free_way,
    turn_rate,
    turns_freely,
)
from scanpilot.robot import Footprint
from scanpilot.types import InvalidInput, LaserScan, Pose2D, Twist2D

NOTHING = np.zeros((0, 2))


def at(x: float, y: float = 0.0, yaw: float = 0.0) -> Pose2D:
    return Pose2D(x, y, yaw)


# Goals in a row.


def test_goals_are_visited_in_their_order() -> None:
    route = Waypoints((at(2.0), at(2.0, 2.0), at(0.0, 2.0)), tolerance=0.3)
    first = route.target(at(0.0))
    assert (first.pose, first.final, first.remaining) == (at(2.0), False, 6.0)
    assert first.words == "goal 1 of 3 is 2.0 m away"
    assert route.target(at(1.69)).pose == at(2.0)
    second = route.target(at(1.71))
    assert (second.pose, second.final) == (at(2.0, 2.0), False)
    # Once visited it stays so.
    assert route.target(at(0.0)).pose == at(2.0, 2.0)
    last = route.target(at(2.0, 2.0))
    assert (last.pose, last.final, last.remaining) == (at(0.0, 2.0), True, 2.0)
    assert route.target(at(0.0, 2.0)).final


def test_goals_on_top_of_each_other_are_visited_at_once() -> None:
    assert Waypoints((at(1.0), at(1.1), at(1.2))).target(at(1.0)).final


def test_one_goal_is_final_from_the_start() -> None:
    target = Waypoints((at(3.0, 4.0, 1.0),)).target(at(0.0))
    assert (target.pose, target.final, target.words) == (at(3.0, 4.0, 1.0), True, "goal is 5.0 m away")


@pytest.mark.parametrize("poses", [(), (at(0.0), at(math.nan))])
def test_a_route_without_goals_or_with_a_broken_one_is_refused(poses: tuple[Pose2D, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"no poses|not finite: pose 1"):
        Waypoints(poses)
    with pytest.raises(InvalidInput, match=r"no poses|not finite: pose 1"):
        PlannedPath(np.array(poses).reshape(-1, 3))


# Planned paths: 10 m ahead, then 10 m to the left.


def corner() -> PlannedPath:
    x = np.concatenate((np.arange(0.0, 10.0, 0.5), np.full(21, 10.0)))
    y = np.concatenate((np.zeros(20), np.arange(0.0, 10.1, 0.5)))
    return PlannedPath(np.stack((x, y, np.zeros_like(x)), axis=1), look_ahead=2.0)


def test_the_sub_goal_is_ahead_on_the_path() -> None:
    path = corner()
    target = path.target(at(1.0, 0.3))
    assert target.pose == pytest.approx((3.0, 0.0, 0.0))
    assert not target.final
    assert target.remaining == pytest.approx(19.3)
    assert target.words == "following the plan, 19.3 m to go"
    assert path.target(at(9.0)).pose == pytest.approx((10.0, 1.0, math.pi / 2))


def test_the_end_is_final_and_keeps_its_heading() -> None:
    path = corner()
    path.target(at(9.5))
    target = path.target(at(10.0, 8.5))
    assert (target.pose, target.final) == (at(10.0, 10.0), True)
    assert target.remaining == pytest.approx(1.5)


def test_progress_never_goes_back() -> None:
    path = corner()
    path.target(at(3.0))
    path.target(at(5.0))
    assert path.target(at(3.0)).pose == pytest.approx((7.0, 0.0, 0.0))


def test_a_path_that_comes_by_again_is_not_cut_short() -> None:
    # Round a square of 4 m and back to the start.
    square = np.array([(0, 0), (4, 0), (4, 4), (0, 4), (0, 0)], dtype=float)
    path = PlannedPath(np.column_stack((square, np.zeros(5))), look_ahead=1.0)
    assert path.target(at(0.0)).pose == pytest.approx((1.0, 0.0, 0.0))
    for place in (at(2.0), at(4.0), at(4.0, 2.0), at(4.0, 4.0), at(2.0, 4.0), at(0.0, 4.0)):
        assert not path.target(place).final
    assert path.target(at(0.0, 0.9)).final


def test_a_robot_carried_off_goes_on_from_where_it_is() -> None:
    assert corner().target(at(10.5, 6.0)).pose == pytest.approx((10.0, 8.0, math.pi / 2))


def test_the_sub_goal_stays_on_this_side_of_a_corner() -> None:
    # A wall along the corner's inside, from (9.4, 0.4) up: 2 m ahead on the path is behind it.
    wall = np.column_stack((np.full(40, 9.4), np.linspace(0.4, 4.3, 40)))
    robot = at(8.5)
    path = corner()
    assert path.target(robot, wall - robot[:2]).pose == pytest.approx((10.0, 0.2, math.pi / 2), abs=0.31)
    assert corner().target(robot, NOTHING).pose == pytest.approx((10.0, 0.5, math.pi / 2))


def test_repeated_poses_and_a_single_one() -> None:
    path = PlannedPath(np.array([(0, 0, 0), (0, 0, 0), (3, 0, 0), (3, 0, 1)], dtype=float), look_ahead=1.0)
    assert path.length == 3.0
    assert path.target(at(2.5)).pose == at(3.0, 0.0, 1.0)
    one = PlannedPath(np.array([(3.0, 4.0, 1.0)]))
    assert one.target(at(0.0)).pose == at(3.0, 4.0, 1.0)
    assert one.target(at(0.0)).remaining == 5.0


@pytest.mark.parametrize(
    ("point", "free"),
    [((1.0, 0.19), False), ((1.0, 0.21), True), ((2.1, 0.0), True), ((-0.5, 0.0), True), ((0.1, 0.1), True)],
)
def test_what_is_in_the_way(point: tuple[float, float], free: bool) -> None:
    assert free_way(at(2.0), np.array([point]), 0.2) == free


# Arrival.


def test_arrival_with_hysteresis() -> None:
    arrival = Arrival(0.3, 0.2)
    phases = [arrival.judge(at(x)) for x in (0.31, 0.29, 0.49, 0.51, 0.49, 0.29)]
    assert phases == [
        Phase.DRIVE, Phase.ARRIVED, Phase.ARRIVED, Phase.DRIVE, Phase.DRIVE, Phase.ARRIVED
    ]  # fmt: skip


def test_arrival_with_a_heading() -> None:
    arrival = Arrival(0.3, 0.2, heading_tolerance=0.1)
    steps = [at(1.0, 0.0, 0.0), at(0.2, 0.0, 3.0), at(0.4, 0.0, -0.11), at(0.0, 0.0, 2 * math.pi - 0.09),
             at(0.0, 0.0, 0.19), at(0.0, 0.0, 0.21), at(0.6, 0.0, 0.0)]  # fmt: skip
    assert [arrival.judge(step) for step in steps] == [
        Phase.DRIVE, Phase.TURN, Phase.TURN, Phase.ARRIVED, Phase.ARRIVED, Phase.TURN, Phase.DRIVE
    ]  # fmt: skip


def test_turning_ends_at_the_heading_without_overshooting() -> None:
    assert turn_rate(3.0, 1.0, 4.0) == 1.0
    assert turn_rate(-3.0, 1.0, 4.0) == -1.0
    assert turn_rate(0.2, 1.0, 4.0) == pytest.approx(0.3)
    assert turn_rate(0.5, 2.0, 0.5) == 0.5
    assert turn_rate(2 * math.pi - 0.2, 1.0, 4.0) == pytest.approx(-0.3)
    assert turn_rate(0.5, 1.0, math.inf) == 0.75


def test_a_rectangle_does_not_turn_where_its_corners_would_touch() -> None:
    box = Footprint(polygon=((0.3, 0.2), (-0.3, 0.2), (-0.3, -0.2), (0.3, -0.2)))
    # Corners reach 0.36 m.
    assert turns_freely(box, np.array([(0.0, 0.4), (0.4, 0.0)]))
    assert not turns_freely(box, np.array([(0.0, 0.3)]))
    assert turns_freely(box, np.array([(0.1, 0.0)])), "a part of the robot itself"
    assert turns_freely(Footprint(radius=0.3), np.array([(0.0, 0.301)]))
    assert turns_freely(box, NOTHING)


# A scan that no longer changes.


def scan(*ranges: float) -> LaserScan:
    return LaserScan(np.array(ranges, np.float32), 0.0, 0.1, 0.1, 10.0)


def test_a_frozen_scan_is_noticed_once_odometry_has_moved_enough() -> None:
    frozen = FrozenScan()
    problems = []
    for i in range(8):
        frozen.moved(Twist2D(0.5, 0.0, 0.0), 0.1 * i)
        problems.append(frozen.problem(scan(1.0, 2.0)))
    # The first sight counts as news; 0.3 m after it are driven at the sixth repetition.
    assert [p is not None for p in problems] == [False] * 6 + [True, True]
    assert problems[6] is not None
    assert "has not changed for 6 scans while odometry moved 0.3 m" in problems[6]
    assert frozen.problem(scan(1.0, 2.001)) is None


def test_a_robot_that_stands_may_see_the_same_for_ever() -> None:
    frozen = FrozenScan()
    for i in range(100):
        frozen.moved(Twist2D(0.0, 0.0, 0.0), 0.1 * i)
        assert frozen.problem(scan(1.0, 2.0)) is None


def test_an_empty_field_is_no_frozen_scan() -> None:
    frozen = FrozenScan()
    for i in range(100):
        frozen.moved(Twist2D(1.0, 0.0, 1.0), 0.1 * i)
        assert frozen.problem(scan(0.0, 0.0)) is None
