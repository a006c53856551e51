"""Planar rigid motions, angles and quaternions (SE(2)); knows nothing of robots or sensors."""

from __future__ import annotations

import math
from typing import overload

import numpy as np

from scanpilot.types import DoubleArray, InvalidInput, Pose2D


@overload
def wrap_angle(angle: float) -> float: ...
@overload
def wrap_angle(angle: DoubleArray) -> DoubleArray: ...
def wrap_angle(angle: float | DoubleArray) -> float | DoubleArray:
    """The same direction in ``[-pi, pi)``, radians."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def compose(a: Pose2D, b: Pose2D) -> Pose2D:
    """Pose ``b``, given in frame ``a``, expressed in the frame that ``a`` is given in."""
    c, s = math.cos(a.yaw), math.sin(a.yaw)
    return Pose2D(a.x + c * b.x - s * b.y, a.y + s * b.x + c * b.y, wrap_angle(a.yaw + b.yaw))


def inverse(a: Pose2D) -> Pose2D:
    """The pose that undoes ``a``: composed with it, either way round, it gives the identity."""
    c, s = math.cos(a.yaw), math.sin(a.yaw)
    return Pose2D(-c * a.x - s * a.y, s * a.x - c * a.y, wrap_angle(-a.yaw))


def relative(target: Pose2D, origin: Pose2D) -> Pose2D:
    """``target`` expressed in the frame of ``origin``, both given in one common frame."""
    return compose(inverse(origin), target)


def relative_poses(targets: DoubleArray, origins: DoubleArray) -> DoubleArray:
    """Row-wise `relative`: ``(N, 3)`` targets in the frames of ``(N, 3)`` origins."""
    c, s = np.cos(origins[:, 2]), np.sin(origins[:, 2])
    dx, dy = targets[:, 0] - origins[:, 0], targets[:, 1] - origins[:, 1]
    return np.stack((c * dx + s * dy, c * dy - s * dx, wrap_angle(targets[:, 2] - origins[:, 2])), axis=1)


def transform_points(pose: Pose2D, points: DoubleArray) -> DoubleArray:
    """``(P, 2)`` points given in the frame of ``pose``, expressed in the frame it is given in."""
    c, s = math.cos(pose.yaw), math.sin(pose.yaw)
    x, y = points[:, 0], points[:, 1]
    return np.stack((pose.x + c * x - s * y, pose.y + s * x + c * y), axis=1)


def yaw_from_quaternion(x: float, y: float, z: float, w: float) -> float:
    """Yaw (rotation about z) of a quaternion that need not be normalised, radians.

    Raises:
        InvalidInput: the quaternion is not finite, or all zero and so no rotation at all.
    """
    norm = math.sqrt(x * x + y * y + z * z + w * w)
    if not math.isfinite(norm):
        raise InvalidInput(f"orientation quaternion ({x}, {y}, {z}, {w}) is not finite")
    if norm < 1e-6:
        raise InvalidInput("orientation quaternion is all zero, expected a rotation such as (0, 0, 0, 1)")
    x, y, z, w = x / norm, y / norm, z / norm, w / norm
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def quaternion_from_yaw(yaw: float) -> tuple[float, float, float, float]:
    """Quaternion ``(x, y, z, w)`` of a rotation by ``yaw`` about z."""
    return 0.0, 0.0, math.sin(0.5 * yaw), math.cos(0.5 * yaw)
