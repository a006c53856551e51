"""scanpilot's types as ROS messages; and, by name from here, what `scanpilot.messages` reads from them."""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose, PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry as OdometryMessage
from sensor_msgs.msg import LaserScan as LaserScanMessage

from scanpilot.geometry import quaternion_from_yaw
from scanpilot.messages import frame_id as frame_id
from scanpilot.messages import mount_from as mount_from
from scanpilot.messages import odometry_from as odometry_from
from scanpilot.messages import path_from as path_from
from scanpilot.messages import planar_from as planar_from
from scanpilot.messages import pose_from as pose_from
from scanpilot.messages import poses_from as poses_from
from scanpilot.messages import scan_from as scan_from
from scanpilot.messages import seconds as seconds
from scanpilot.messages import twist_from as twist_from
from scanpilot.types import DoubleArray, FloatArray, Pose2D, Twist2D


def stamp_of(time: float) -> Time:
    """Seconds, not negative, as ``builtin_interfaces/Time``."""
    nanoseconds = round(time * 1e9)
    return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)


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
