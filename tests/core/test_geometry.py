"""Rigid motions against hand-drawn ones and against complex arithmetic, never against themselves."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanpilot.geometry import (
    compose,
    inverse,
    quaternion_from_yaw,
    relative,
    relative_poses,
    transform_points,
    wrap_angle,
    yaw_from_quaternion,
)
from scanpilot.types import InvalidInput, Pose2D

coordinates = st.floats(-100.0, 100.0)
poses = st.builds(Pose2D, coordinates, coordinates, st.floats(-10.0, 10.0))


def as_complex(pose: Pose2D) -> tuple[complex, complex]:
    """Translation and rotation as complex numbers: an independent SE(2)."""
    return complex(pose.x, pose.y), cmath.exp(1j * pose.yaw)


def assert_same(pose: Pose2D, translation: complex, rotation: complex) -> None:
    assert complex(pose.x, pose.y) == pytest.approx(translation, abs=1e-9)
    assert cmath.exp(1j * pose.yaw) == pytest.approx(rotation, abs=1e-9)


@pytest.mark.parametrize(
    ("angle", "wrapped"),
    [
        (0.0, 0.0),
        (math.pi, -math.pi),
        (-math.pi, -math.pi),
        (1.5 * math.pi, -0.5 * math.pi),
        (7.0, 7.0 - 2 * math.pi),
    ],
)
def test_wrap_angle_by_hand(angle: float, wrapped: float) -> None:
    assert wrap_angle(angle) == pytest.approx(wrapped, abs=1e-12)


@given(st.floats(-1e3, 1e3))
def test_wrapped_angle_is_the_same_direction_within_half_a_turn(angle: float) -> None:
    wrapped = wrap_angle(angle)
    assert -math.pi <= wrapped <= math.pi
    assert (math.cos(wrapped), math.sin(wrapped)) == pytest.approx(
        (math.cos(angle), math.sin(angle)), abs=1e-9
    )


def test_compose_by_hand() -> None:
    # One metre ahead of a robot at (2, 3) that looks along +y is (2, 4); its left is -x.
    assert compose(Pose2D(2.0, 3.0, math.pi / 2), Pose2D(1.0, 0.0, 0.0)) == pytest.approx(
        (2.0, 4.0, math.pi / 2)
    )
    assert compose(Pose2D(2.0, 3.0, math.pi / 2), Pose2D(0.0, 1.0, 0.5)) == pytest.approx(
        (1.0, 3.0, math.pi / 2 + 0.5)
    )


def test_relative_by_hand() -> None:
    # From (1, 1) looking along +y, the point (1, 4) is 3 m ahead and (0, 1) is 1 m to the left.
    origin = Pose2D(1.0, 1.0, math.pi / 2)
    assert relative(Pose2D(1.0, 4.0, math.pi), origin) == pytest.approx((3.0, 0.0, math.pi / 2), abs=1e-12)
    assert relative(Pose2D(0.0, 1.0, 0.0), origin) == pytest.approx((0.0, 1.0, -math.pi / 2), abs=1e-12)


@given(poses, poses)
def test_compose_is_complex_multiplication(a: Pose2D, b: Pose2D) -> None:
    (ta, ra), (tb, rb) = as_complex(a), as_complex(b)
    assert_same(compose(a, b), ta + ra * tb, ra * rb)


@given(poses)
def test_inverse_undoes_from_either_side(pose: Pose2D) -> None:
    assert_same(compose(pose, inverse(pose)), 0.0, 1.0)
    assert_same(compose(inverse(pose), pose), 0.0, 1.0)


@given(st.lists(st.tuples(poses, poses), min_size=1, max_size=4))
def test_relative_poses_is_complex_division_in_every_row(pairs: list[tuple[Pose2D, Pose2D]]) -> None:
    rows = relative_poses(np.array([t for t, _ in pairs]), np.array([o for _, o in pairs]))
    for row, (target, origin) in zip(rows, pairs, strict=True):
        (tt, rt), (to, ro) = as_complex(target), as_complex(origin)
        assert_same(Pose2D(*row), (tt - to) / ro, rt / ro)
        assert_same(relative(target, origin), (tt - to) / ro, rt / ro)


def test_transform_points_by_hand() -> None:
    # Turned a quarter left, x becomes y and y becomes -x; then shifted by (10, 20).
    points = transform_points(Pose2D(10.0, 20.0, math.pi / 2), np.array([[1.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(points, [[10.0, 21.0], [8.0, 20.0]], atol=1e-12)


@given(st.floats(-math.pi + 1e-6, math.pi - 1e-6), st.floats(0.01, 100.0))
def test_yaw_of_a_quaternion_of_any_length(yaw: float, length: float) -> None:
    # Rotation about z by yaw: (0, 0, sin(yaw/2), cos(yaw/2)), here scaled.
    z, w = length * math.sin(yaw / 2), length * math.cos(yaw / 2)
    assert yaw_from_quaternion(0.0, 0.0, z, w) == pytest.approx(yaw, abs=1e-9)
    assert yaw_from_quaternion(0.0, 0.0, -z, -w) == pytest.approx(yaw, abs=1e-9)


def test_yaw_survives_roll_and_pitch() -> None:
    # ZYX Euler angles by the product q_z * q_y * q_x, written out.
    yaw, pitch, roll = 0.7, 0.2, -0.3
    cz, sz, cy, sy = math.cos(yaw / 2), math.sin(yaw / 2), math.cos(pitch / 2), math.sin(pitch / 2)
    cx, sx = math.cos(roll / 2), math.sin(roll / 2)
    w, x = cz * cy * cx + sz * sy * sx, cz * cy * sx - sz * sy * cx
    y, z = cz * sy * cx + sz * cy * sx, sz * cy * cx - cz * sy * sx
    assert yaw_from_quaternion(x, y, z, w) == pytest.approx(0.7)


def test_quaternion_from_yaw_by_hand() -> None:
    assert quaternion_from_yaw(math.pi / 2) == pytest.approx((0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5)))


def test_zero_quaternion_is_refused() -> None:
    with pytest.raises(InvalidInput, match="all zero"):
        yaw_from_quaternion(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_quaternion_that_is_not_finite_is_refused(bad: float, place: int) -> None:
    values = [0.0, 0.0, 0.0, 1.0]
    values[place] = bad
    with pytest.raises(InvalidInput, match="not finite"):
        yaw_from_quaternion(*values)
