"""The guard by hand: how far it looks, what it lets pass, and that nobody is locked in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanpilot.guard import Action, Guard, GuardConfig, Verdict
from scanpilot.robot import Footprint, Kinematics, Lidar, Limits, RobotSpec
from scanpilot.types import ZERO_TWIST, InvalidInput, Twist2D

PERIOD = 0.2
LIMITS = Limits(vx=1.0, wz=1.5, ax=2.0, awz=4.0)
ROUND = Footprint(radius=0.2)
# 0.6 m long, 0.4 m wide.
BOX = Footprint(polygon=((0.3, 0.2), (-0.3, 0.2), (-0.3, -0.2), (0.3, -0.2)))
FULL = Twist2D(1.0, 0.0, 0.0)


def make_guard(
    footprint: Footprint = ROUND, kinematics: Kinematics = "differential", delay: float = 0.0, **config: Any
) -> Guard:
    config = {"time_before_collision": 0.0, "footprint_padding": 0.03, **config}
    robot = RobotSpec(
        "tester",
        kinematics,
        footprint,
        LIMITS,
        Lidar(beams=360),
        turning_radius=0.5 if kinematics == "car" else 0.0,
        actuation_delay=delay,
    )
    return Guard(GuardConfig(**config), robot)


def check(
    guard: Guard,
    command: Twist2D,
    *points: tuple[float, float],
    measured: Twist2D | None = None,
    age: float = 0,
) -> Verdict:
    """A robot that already moves as commanded, unless told otherwise."""
    moving = command if measured is None else measured
    return guard.check(command, np.array(points), measured=moving, previous=moving, age=age, period=PERIOD)


@pytest.mark.parametrize(
    ("guard", "age", "reach"),
    [
        # One period at 1 m/s and then braking with 2 m/s^2: 0.2 + 1 / 4 m.
        (make_guard(), 0.0, 0.45),
        (make_guard(delay=0.1), 0.0, 0.55),
        (make_guard(deceleration=1.0), 0.0, 0.7),
        # A scan that is 0.1 s old shows the obstacle 0.1 m too far away.
        (make_guard(), 0.1, 0.55),
        (make_guard(base_shift_correction=False), 0.1, 0.45),
        # 0.1 s later in coming, and as much in taking effect.
        (make_guard(latency=0.1), 0.0, 0.65),
        # Nothing within 1 s at 1 m/s.
        (make_guard(time_before_collision=1.0), 0.0, 1.0),
    ],
)
def test_an_obstacle_ahead_slows_only_within_reach(guard: Guard, age: float, reach: float) -> None:
    edge = 0.2 + 0.03 + reach
    free = check(guard, FULL, (edge + 0.01, 0.0), age=age)
    slowed = check(guard, FULL, (edge - 0.01, 0.0), age=age)
    assert (free.twist, free.action) == (FULL, Action.NONE)
    assert slowed.action is Action.SLOWED
    assert 0.0 < slowed.twist.vx < 1.0


def test_the_measured_speed_decides_how_far_braking_takes() -> None:
    # From rest: 0.4 m/s after one period, 0.04 m on the way, and 0.16 / 4 m to brake: 0.08 m.
    command = Twist2D(0.4, 0.0, 0.0)
    assert check(make_guard(), command, (0.32, 0.0), measured=ZERO_TWIST).action is Action.NONE
    assert check(make_guard(), command, (0.30, 0.0), measured=ZERO_TWIST).action is Action.SLOWED
    # At 0.4 m/s already: 0.08 m on the way.
    assert check(make_guard(), command, (0.32, 0.0)).action is Action.SLOWED
    assert check(make_guard(), command, (0.36, 0.0)).action is Action.NONE


def test_what_the_arc_passes_does_not_matter() -> None:
    guard = make_guard(time_before_collision=1.0)
    # 0.24 m to the side of a round robot of 0.2 m, all along its way; and right behind it.
    wall = [(x, 0.24) for x in np.arange(-1.0, 2.0, 0.02)]
    assert check(guard, FULL, *wall, (-0.24, 0.0)).action is Action.NONE
    # A turn to the left leads into it, one to the right does not.
    assert check(guard, Twist2D(1.0, 0.0, 1.0), *wall).action is Action.SLOWED
    assert check(guard, Twist2D(1.0, 0.0, -1.0), *wall).action is Action.NONE


def test_a_blocked_robot_turns_on() -> None:
    verdict = check(make_guard(), Twist2D(0.5, 0.0, 0.7), (0.2101, 0.0), measured=ZERO_TWIST)
    assert (verdict.twist, verdict.action) == (Twist2D(0.0, 0.0, 0.7), Action.STOPPED)
    assert verdict.clearance == pytest.approx(0.0101)


def test_a_car_keeps_its_arc() -> None:
    command = Twist2D(0.8, 0.0, 1.2)
    verdict = check(make_guard(kinematics="car"), command, (0.45, 0.0), (0.4, 0.2))
    assert verdict.action is not Action.NONE
    assert verdict.twist.wz * 0.8 == pytest.approx(verdict.twist.vx * 1.2)


def test_one_that_is_too_close_may_only_not_come_closer_and_slowly() -> None:
    guard = make_guard()
    wall = [(0.205, y) for y in np.arange(-0.5, 0.51, 0.01)]
    ahead = check(guard, Twist2D(0.5, 0.0, 0.0), *wall, measured=ZERO_TWIST)
    assert (ahead.twist, ahead.action) == (ZERO_TWIST, Action.STOPPED)
    # Backwards at most at 0.1 m/s; a round robot may turn as it likes.
    back = check(guard, Twist2D(-0.5, 0.0, 0.5), *wall, measured=ZERO_TWIST)
    assert back.twist == pytest.approx((-0.1, 0.0, 0.5))
    assert check(guard, Twist2D(0.0, 0.0, 1.5), *wall, measured=ZERO_TWIST).action is Action.NONE


def test_a_corner_that_would_swing_into_something_stops_the_turn() -> None:
    # The corner at (0.3, 0.2) is 0.36 m away from the centre: beside it, a turn to the left swings it in.
    guard = make_guard(BOX)
    left = check(guard, Twist2D(0.0, 0.0, 1.0), (0.22, 0.25), measured=ZERO_TWIST)
    right = check(guard, Twist2D(0.0, 0.0, -1.0), (0.22, 0.25), measured=ZERO_TWIST)
    assert left.twist.wz < 0.6
    assert right.action is Action.NONE
    # Too close beside the box: driving straight on keeps the distance, slowly.
    beside = check(guard, FULL, (0.0, 0.215), measured=ZERO_TWIST)
    assert beside.twist == pytest.approx((0.1, 0.0, 0.0))


def test_a_lone_point_can_be_taken_for_dust() -> None:
    points = [(0.4, 0.0), (0.41, 0.01)]
    assert check(make_guard(min_points=3), FULL, *points).action is Action.NONE
    assert check(make_guard(min_points=2), FULL, *points).action is not Action.NONE
    assert check(make_guard(min_points=2), FULL, points[0]).action is Action.NONE


def test_a_robot_too_fast_to_stop_is_told_to_stop() -> None:
    verdict = check(make_guard(), FULL, *[(0.3, y) for y in np.arange(-0.3, 0.31, 0.01)])
    assert (verdict.twist, verdict.action) == (ZERO_TWIST, Action.STOPPED)


def test_standing_needs_no_guard_and_an_empty_scan_stops_nobody() -> None:
    assert check(make_guard(), ZERO_TWIST, (0.1, 0.0)).action is Action.NONE
    empty = make_guard().check(FULL, np.zeros((0, 2)), measured=FULL, period=PERIOD)
    assert (empty.twist, empty.action, empty.clearance) == (FULL, Action.NONE, math.inf)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)), min_size=1, max_size=30),
    st.tuples(st.floats(-1.0, 1.0), st.floats(-1.5, 1.5)),
    st.sampled_from([ROUND, BOX]),
)
def test_a_command_never_grows_nor_turns_round(
    points: list[tuple[float, float]], command: tuple[float, float], footprint: Footprint
) -> None:
    wanted = Twist2D(command[0], 0.0, command[1])
    twist = check(make_guard(footprint), wanted, *points).twist
    assert twist.vy == 0.0
    for sent, asked in ((twist.vx, wanted.vx), (twist.wz, wanted.wz)):
        assert abs(sent) <= abs(asked) + 1e-12
        assert sent * asked >= 0.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("footprint", [ROUND, BOX], ids=["round", "box"])
def test_ticks_in_a_row_never_touch_what_is_seen(footprint: Footprint, seed: int) -> None:
    """Random full commands among points, the base simulated finely by its ramps, apart from the guard."""
    rng = np.random.default_rng(seed)
    scene = rng.uniform(-2.0, 2.0, (60, 2))
    scene = scene[np.hypot(*scene.T) > 0.6]
    guard = make_guard(footprint)
    pose, twist = np.zeros(3), np.zeros(3)
    nearest = math.inf
    for _ in range(60):
        target = np.array((1.0, 0.0, rng.uniform(-1.5, 1.5)))
        limited = twist + np.clip(target - twist, -np.array((0.4, 0.0, 0.8)), np.array((0.4, 0.0, 0.8)))
        c, s = math.cos(pose[2]), math.sin(pose[2])
        seen = (scene - pose[:2]) @ np.array(((c, -s), (s, c)))
        sent = guard.check(Twist2D(*limited), seen, measured=Twist2D(*twist), period=PERIOD).twist
        for _ in range(20):
            step = np.array((0.02, 0.0, 0.04))
            after = twist + np.clip(np.array(sent) - twist, -step, step)
            mean = 0.5 * (twist + after) * 0.01
            heading = pose[2] + 0.5 * mean[2]
            pose += (mean[0] * math.cos(heading), mean[0] * math.sin(heading), mean[2])
            twist = after
            c, s = math.cos(pose[2]), math.sin(pose[2])
            x, y = ((scene - pose[:2]) @ np.array(((c, -s), (s, c)))).T
            if footprint.polygon is None:
                gap = np.hypot(x, y) - 0.2
            else:
                outside = np.maximum(np.abs(x) - 0.3, 0.0), np.maximum(np.abs(y) - 0.2, 0.0)
                gap = np.hypot(*outside)
            nearest = min(nearest, float(gap.min()))
    assert nearest > 0.0


@pytest.mark.parametrize(
    "values", [{"footprint_padding": -0.1}, {"min_points": 0}, {"deceleration": 0.0}, {"latency": math.nan}]
)
def test_a_configuration_that_means_nothing_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        GuardConfig(**values)
