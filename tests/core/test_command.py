"""Actions to commands and back, rate limits and tightening, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scanpilot.command import (
    RateLimiter,
    actions_of,
    active_components,
    commands,
    executed_actions,
    tightened,
    turn_per_forward,
)
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import InvalidInput, Twist2D


def robot(kinematics: str = "differential", **limits: float) -> RobotSpec:
    values: dict[str, Any] = {"vx": 0.5, "wz": 2.0, **limits}
    if kinematics == "omnidirectional":
        values.setdefault("vy", 0.25)
    return RobotSpec(
        "test",
        kinematics,  # type: ignore[arg-type]
        Footprint(radius=0.2),
        Limits(**values),
        Lidar(beams=8),
        turning_radius=0.8 if kinematics == "car" else 0.0,
    )


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_actions_are_clipped_to_their_box() -> None:
    clipped = executed_actions(
        np.array([[2.0, 3.0, -4.0], [-1.0, -3.0, 4.0]], np.float32), robot("omnidirectional")
    )
    assert clipped.tolist() == [[1.0, 1.0, -1.0], [0.0, -1.0, 1.0]]
    assert clipped.dtype == np.float32


@pytest.mark.parametrize("kinematics", ["differential", "car"])
def test_lateral_is_zero_for_a_robot_that_cannot_move_sideways(kinematics: str) -> None:
    for lateral in (1.0, -1.0, -0.0):
        value = executed_actions(row(1.0, lateral, 0.0), robot(kinematics))[1]
        assert value == 0.0
        assert not np.signbit(value)


def test_which_components_move_a_robot() -> None:
    assert active_components(robot()).tolist() == [True, False, True]
    assert active_components(robot("car")).tolist() == [True, False, True]
    assert active_components(robot("omnidirectional")).tolist() == [True, True, True]


def test_car_turn_is_bounded_by_its_radius_by_hand() -> None:
    # At forward 0.6 of 0.5 m/s the car does 0.3 m/s; on its 0.8 m radius that is 0.375 rad/s,
    # 0.1875 of its 2 rad/s.
    car = robot("car")
    assert executed_actions(row(0.6, 0.0, 1.0), car).tolist() == pytest.approx([0.6, 0.0, 0.1875])
    assert executed_actions(row(0.6, 0.0, -1.0), car).tolist() == pytest.approx([0.6, 0.0, -0.1875])
    assert executed_actions(row(0.6, 0.0, 0.1), car).tolist() == pytest.approx([0.6, 0.0, 0.1])


def test_car_does_not_turn_on_the_spot() -> None:
    assert executed_actions(row(0.0, 0.0, 1.0), robot("car")).tolist() == [0.0, 0.0, 0.0]


@given(arrays(np.float32, (3,), elements=st.floats(-2.0, 2.0, width=32)))
def test_car_never_turns_tighter_than_its_radius(action: np.ndarray) -> None:
    car = robot("car")
    vx, _, wz = commands(executed_actions(action, car), car)
    assert abs(wz) * 0.8 <= vx * (1.0 + 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_action_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        executed_actions(row(0.5, 0.0, bad), robot())


def test_the_caller_keeps_its_actions() -> None:
    actions = row(3.0, 1.0, 1.0)
    executed_actions(actions, robot("car"))
    assert actions.tolist() == [3.0, 1.0, 1.0]


def test_commands_are_actions_times_limits() -> None:
    # vx 0.5 m/s, vy 0.25 m/s, wz 2 rad/s
    omni = robot("omnidirectional")
    assert commands(row(0.5, -1.0, 0.25), omni).tolist() == pytest.approx([0.25, -0.25, 0.5])


def test_actions_of_by_hand() -> None:
    assert actions_of(np.array([[0.25, 0.1, -1.0]]), robot()).tolist() == [[0.5, 0.0, -0.5]]
    # Faster than the limits, and backwards, come to the nearest action there is.
    assert actions_of(np.array([[-3.0, 0.0, 9.0]]), robot()).tolist() == [[0.0, 0.0, 1.0]]


@given(arrays(np.float32, (4, 3), elements=st.floats(0.0, 1.0, width=32)))
def test_actions_of_undoes_commands(actions: np.ndarray) -> None:
    omni = robot("omnidirectional", vx=0.7, vy=0.3, wz=1.9)
    np.testing.assert_allclose(actions_of(commands(actions, omni), omni), actions, atol=1e-6)


def test_rate_limiter_by_hand() -> None:
    # 1 m/s^2 for 0.2 s allows steps of 0.2 m/s; 2 rad/s^2 steps of 0.4 rad/s.
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0, ax=1.0, awz=2.0))
    far = Twist2D(9.0, 9.0, -9.0)
    assert limiter(far, 0.2) == pytest.approx((0.2, 0.0, -0.4))
    assert limiter(far, 0.2) == pytest.approx((0.4, 0.0, -0.8))
    # 0.6 and -1.2 would be beyond the limits of speed.
    assert limiter(far, 0.2) == pytest.approx((0.5, 0.0, -1.0))
    assert limiter(Twist2D(0.4, 0.0, -1.0), 0.2) == pytest.approx((0.4, 0.0, -1.0))
    assert limiter(Twist2D(-1.0, 0.0, 1.0), 0.2) == pytest.approx((0.2, 0.0, -0.6))
    assert limiter(Twist2D(-1.0, 0.0, 1.0), 0.2) == pytest.approx((0.0, 0.0, -0.2))
    assert limiter(Twist2D(-1.0, 0.0, 1.0), 0.2) == pytest.approx((0.0, 0.0, 0.2))


def test_rate_limiter_limits_each_axis_by_its_own_acceleration() -> None:
    limiter = RateLimiter(Limits(vx=1.0, vy=1.0, wz=1.0, ax=1.0, ay=2.0, awz=3.0))
    assert limiter(Twist2D(1.0, -1.0, 1.0), 0.1) == pytest.approx((0.1, -0.2, 0.3))


def test_rate_limiter_without_accelerations_only_clips() -> None:
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0))
    assert limiter(Twist2D(0.7, 0.0, -2.0), 0.01) == (0.5, 0.0, -1.0)


def test_rate_limiter_starts_again_from_where_it_is_reset_to() -> None:
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0, ax=1.0))
    for _ in range(3):
        limiter(Twist2D(0.5, 0.0, 0.0), 0.2)
    limiter.reset()
    assert limiter(Twist2D(0.5, 0.0, 0.0), 0.2).vx == pytest.approx(0.2)
    limiter.reset(Twist2D(0.4, 0.0, 0.0))
    assert limiter(Twist2D(0.0, 0.0, 0.0), 0.1).vx == pytest.approx(0.3)


def test_limits_can_be_tightened_one_by_one() -> None:
    limits = Limits(vx=1.0, wz=2.0, vy=0.5, ax=3.0)
    assert tightened(limits, vx=0.4, wz=None) == Limits(vx=0.4, wz=2.0, vy=0.5, ax=3.0)
    assert tightened(limits, vy=0.0, awz=1.0) == Limits(vx=1.0, wz=2.0, vy=0.0, ax=3.0, awz=1.0)
    assert tightened(limits) == limits


@pytest.mark.parametrize("bad", [{"vx": 1.01}, {"vx": math.nan}, {"wz": math.inf}, {"ax": 3.5}, {"vy": 0.1}])
def test_limits_cannot_be_widened(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        tightened(Limits(vx=1.0, wz=2.0, ax=3.0), **bad)


@pytest.mark.parametrize("bad", [{"vx": 0.0}, {"wz": 0.0}, {"ax": 0.0}, {"vx": -1.0}, {"awz": -0.1}])
def test_limits_cannot_be_tightened_to_nothing(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        tightened(Limits(vx=1.0, wz=2.0, ax=3.0), **bad)


def test_the_limiter_refuses_what_is_not_a_command() -> None:
    limiter = RateLimiter(Limits(vx=1.0, wz=1.0, ax=1.0))
    for target, period in ((Twist2D(math.nan, 0.0, 0.0), 0.1), (Twist2D(0.1, 0.0, 0.0), -0.1)):
        with pytest.raises(InvalidInput, match="expected finite numbers"):
            limiter(target, period)


def test_a_limiter_that_goes_on_from_above_its_limits_is_within_them_at_once() -> None:
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0, ax=1.0))
    limiter.reset(Twist2D(0.9, 0.0, 0.0))
    # 0.9 is cut to 0.5, then 1 m/s^2 for 0.1 s downwards
    assert limiter(Twist2D(0.0, 0.0, 0.0), 0.1).vx == pytest.approx(0.4)


def test_a_car_that_gathers_speed_turns_no_tighter_than_its_radius() -> None:
    # 1 m/s^2 for 0.2 s is 0.2 m/s; on a circle of 0.8 m that is 0.25 rad/s of the 1 rad/s asked for.
    limiter = RateLimiter(Limits(vx=1.0, wz=1.0, ax=1.0), turning_radius=0.8)
    assert limiter(Twist2D(1.0, 0.0, 1.0), 0.2) == pytest.approx((0.2, 0.0, 0.25))
    assert limiter(Twist2D(1.0, 0.0, -1.0), 0.2) == pytest.approx((0.4, 0.0, -0.5))
    assert limiter(Twist2D(0.0, 0.0, 1.0), 10.0) == pytest.approx((0.0, 0.0, 0.0))


def test_turn_per_forward_by_hand() -> None:
    # 0.5 m/s on 0.8 m is 0.625 rad/s of the 2 rad/s that 1 stands for.
    car = robot("car")
    assert turn_per_forward(car) == pytest.approx(car.limits.vx / 0.8 / car.limits.wz)
    assert turn_per_forward(robot("differential")) == math.inf


def test_jerk_is_bounded_by_hand() -> None:
    # 1 m/s^3 for 0.2 s: the acceleration grows by 0.2 m/s^2 a period, the speed by 0.04, 0.08, 0.12 m/s.
    # From 0.24 m/s the rate is sqrt(0.01 + 2 * 0.26) - 0.1 = 0.628, and falls by 0.2 from there on.
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0, ax=1.0, awz=2.0), jerk=(1.0, 1.0, math.inf))
    speeds = [limiter(Twist2D(0.5, 0.0, 0.0), 0.2).vx for _ in range(8)]
    assert speeds[:5] == pytest.approx([0.04, 0.12, 0.24, 0.3656, 0.4512], abs=1e-3)
    assert speeds[-1] == pytest.approx(0.5)
    assert limiter(Twist2D(0.5, 0.0, 1.0), 0.2).wz == pytest.approx(0.4)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30))
def test_neither_speed_nor_acceleration_nor_jerk_leave_their_bounds(targets: list[float]) -> None:
    limiter = RateLimiter(Limits(vx=0.5, wz=1.0, ax=1.0, awz=2.0), jerk=(math.inf, math.inf, 4.0))
    last = rate = 0.0
    for target in targets:
        speed = limiter(Twist2D(0.0, 0.0, target), 0.1).wz
        assert abs(speed) <= 1.0
        assert abs(speed - last) / 0.1 <= 2.0 + 1e-9
        # Only where the limit of speed cuts it short may the acceleration fall faster.
        assert abs((speed - last) / 0.1 - rate) <= 0.4 + 1e-9 or abs(speed) == 1.0
        last, rate = speed, (speed - last) / 0.1


def test_a_preview_changes_nothing_and_a_reset_ends_every_ramp() -> None:
    limiter = RateLimiter(Limits(vx=1.0, wz=1.0, ax=1.0), jerk=(2.0, 2.0, 2.0))
    target = Twist2D(1.0, 0.0, 0.0)
    for _ in range(3):
        limiter(target, 0.2)
    assert limiter.preview(target, 0.2) == limiter.preview(target, 0.2) == limiter(target, 0.2)
    limiter.reset()
    assert limiter(target, 0.2).vx == pytest.approx(2.0 * 0.2 * 0.2)


def test_only_who_may_reverse_does() -> None:
    back = Twist2D(-0.5, 0.0, 0.0)
    assert RateLimiter(Limits(vx=1.0, wz=1.0))(back, 0.2).vx == 0.0
    assert RateLimiter(Limits(vx=1.0, wz=1.0), reverse=0.1)(back, 0.2).vx == -0.1
