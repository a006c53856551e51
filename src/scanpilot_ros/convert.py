"""ROS messages to scanpilot's types and back; the only place that knows message fields.

Frame ids lose a leading slash (a ROS 1 habit that tf2 refuses). Orientations that are no rotation
(all zero, not a number) are refused with `InvalidInput`; others are normalised.
"""

from __future__ import annotations

import array
import math
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose, PoseStamped, Transform, Twist, TwistStamped
from nav_msgs.msg import Odometry as OdometryMessage
from sensor_msgs.msg import LaserScan as LaserScanMessage

from scanpilot.geometry import quaternion_from_yaw, yaw_from_quaternion
from scanpilot.types import DoubleArray, FloatArray, InvalidInput, LaserScan, Odometry, Pose2D, Twist2D


def frame_id(raw: str) -> str:
    """A frame's name as tf2 wants it."""
    return raw.lstrip("/")


def seconds(stamp: Any) -> float:
    """A stamp (``builtin_interfaces/Time``) in seconds."""
    return float(stamp.sec) + 1e-9 * float(stamp.nanosec)


def stamp_of(time: float) -> Time:
    """Seconds, not negative, as ``builtin_interfaces/Time``."""
    nanoseconds = round(time * 1e9)
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


def scan_from(message: LaserScanMessage) -> LaserScan:
    """A scan, in its sensor's frame.

    Raises:
        scanpilot.types.InvalidInput: the header describes no possible sensor.
    """
    # Through the buffer protocol: 2 us for 720 beams, where element by element would be 60.
    ranges: FloatArray = np.array(message.ranges, dtype=np.float32)
    return LaserScan(
        ranges,
        float(message.angle_min),
        float(message.angle_increment),
        float(message.range_min),
        float(message.range_max),
        seconds(message.header.stamp),
    )


def scan_message(
    ranges: FloatArray,
    angle_min: float,
    angle_increment: float,
    range_limits: tuple[float, float],
    frame: str,
    stamp: Time,
) -> LaserScanMessage:
    """A scan message of ``(m,)`` ranges, metres."""
    message = LaserScanMessage()
    message.header.frame_id = frame
    message.header.stamp = stamp
    message.angle_min = float(angle_min)
    message.angle_increment = float(angle_increment)
    message.angle_max = float(angle_min + angle_increment * (len(ranges) - 1))
    message.range_min, message.range_max = map(float, range_limits)
    # An array.array is taken as it is; a numpy array would be checked element by element.
    message.ranges = array.array("f", np.ascontiguousarray(ranges, dtype=np.float32).tobytes())
    return message


def odometry_from(message: OdometryMessage, twist_in_parent_frame: bool = False) -> Odometry:
    """Odometry with its twist in ``base_link``.

    Args:
        message: with the twist in the child frame, as REP-105 wants it.
        twist_in_parent_frame: the driver states it in the odometry frame instead.

    Raises:
        scanpilot.types.InvalidInput: the orientation is no rotation.
    """
    pose = pose_from(message.pose.pose)
    raw = message.twist.twist
    twist = Twist2D(raw.linear.x, raw.linear.y, raw.angular.z)
    if twist_in_parent_frame:
        c, s = math.cos(pose.yaw), math.sin(pose.yaw)
        twist = Twist2D(c * twist.vx + s * twist.vy, c * twist.vy - s * twist.vx, twist.wz)
    return Odometry(pose, twist, seconds(message.header.stamp))


def odometry_message(
    pose: DoubleArray, twist: DoubleArray, frame: str, child_frame: str, stamp: Time
) -> OdometryMessage:
    """Odometry of a pose ``(3,)`` in ``frame`` and a twist ``(3,)`` in ``child_frame``."""
    message = OdometryMessage()
    message.header.frame_id = frame
    message.header.stamp = stamp
    message.child_frame_id = child_frame
    _set_pose(message.pose.pose, Pose2D(*map(float, pose)))
    twist_fields = message.twist.twist
    twist_fields.linear.x, twist_fields.linear.y, twist_fields.angular.z = map(float, twist)
    return message


def pose_from(pose: Pose) -> Pose2D:
    """A pose, seen from above.

    Raises:
        scanpilot.types.InvalidInput: a number is not finite or the orientation is no rotation.
    """
    q = pose.orientation
    planar = Pose2D(pose.position.x, pose.position.y, yaw_from_quaternion(q.x, q.y, q.z, q.w))
    if not all(math.isfinite(v) for v in planar):
        raise InvalidInput(f"position ({pose.position.x}, {pose.position.y}) is not finite")
    return planar


def pose_message(pose: Pose2D, frame: str, stamp: Time) -> PoseStamped:
    """A stamped pose in ``frame``."""
    message = PoseStamped()
    message.header.frame_id = frame
    message.header.stamp = stamp
    _set_pose(message.pose, pose)
    return message


def _set_pose(message: Pose, pose: Pose2D) -> None:
    message.position.x, message.position.y = pose.x, pose.y
    q = message.orientation
    q.x, q.y, q.z, q.w = quaternion_from_yaw(pose.yaw)


def planar_from(transform: Transform) -> Pose2D:
    """A transform, seen from above: the pose of its child frame in its parent.

    Raises:
        scanpilot.types.InvalidInput: the rotation is none.
    """
    q, t = transform.rotation, transform.translation
    return Pose2D(t.x, t.y, yaw_from_quaternion(q.x, q.y, q.z, q.w))


def mount_from(transform: Transform) -> tuple[Pose2D, bool]:
    """A lidar's mount in its robot, and whether it hangs upside down.

    Raises:
        scanpilot.types.InvalidInput: the rotation is none, or tilts the scan plane by over 45 deg.
    """
    q = transform.rotation
    yaw_from_quaternion(q.x, q.y, q.z, q.w)
    norm = math.sqrt(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w)
    x, y, z, w = q.x / norm, q.y / norm, q.z / norm, q.w / norm
    upright = 1.0 - 2.0 * (x * x + y * y)
    if abs(upright) < math.cos(math.radians(45.0)):
        raise InvalidInput(f"lidar is tilted: its z axis points {upright:.2f} up, expected about 1 or -1")
    # Where the lidar's x axis points to, seen from above.
    yaw = math.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
    return Pose2D(transform.translation.x, transform.translation.y, yaw), upright < 0.0


def twist_from(message: Twist | TwistStamped) -> Twist2D:
    """A velocity command, stamped or not."""
    twist = message.twist if isinstance(message, TwistStamped) else message
    return Twist2D(twist.linear.x, twist.linear.y, twist.angular.z)


def twist_message(twist: Twist2D) -> Twist:
    """A velocity command."""
    message = Twist()
    message.linear.x, message.linear.y, message.angular.z = twist
    return message


def stamped_twist_message(twist: Twist2D, frame: str, stamp: Time) -> TwistStamped:
    """A velocity command with header."""
    message = TwistStamped()
    message.header.frame_id = frame
    message.header.stamp = stamp
    message.twist = twist_message(twist)
    return message
