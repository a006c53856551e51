"""What ROS messages say, as scanpilot's types: the only place that knows the fields of messages.

Free of ROS: a message is any object with the fields of the ROS type that is named, be it rclpy's (live)
or the rosbags library's (recorded, ROS 1 or 2), so that a bag means what the topic meant. Writing
messages is `scanpilot_ros.convert`'s business.

Frame ids lose a leading slash (a ROS 1 habit that tf2 refuses). Orientations that are no rotation
(all zero, not a number) are refused with `InvalidInput`; others are normalised.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scanpilot.geometry import yaw_from_quaternion
from scanpilot.types import DoubleArray, FloatArray, InvalidInput, LaserScan, Odometry, Pose2D, Twist2D

Quaternion = tuple[float, float, float, float]


def frame_id(raw: str) -> str:
    """A frame's name as tf2 wants it."""
    return raw.lstrip("/")


def seconds(stamp: Any) -> float:
    """A ``builtin_interfaces/Time`` in seconds."""
    return float(stamp.sec) + 1e-9 * float(stamp.nanosec)


def stamp_near(message: Any, now: float) -> float:
    """When a message is meant: the stamp of its header, if it has one that is within a second of ``now``.

    Headers of commands and goals are often left empty, or filled on a machine with another clock.
    """
    header = getattr(message, "header", None)
    if header is None:
        return now
    stamp = seconds(header.stamp)
    return stamp if abs(stamp - now) <= 1.0 else now


def scan_from(message: Any) -> LaserScan:
    """A ``sensor_msgs/LaserScan``, in its sensor's frame, its header mended where that is safe.

    Raises:
        scanpilot.types.InvalidInput: the header describes no possible sensor, or contradicts itself.
    """
    # Through the buffer protocol: 2 us for 720 beams, where element by element would be 60.
    ranges: FloatArray = np.array(message.ranges, dtype=np.float32)
    first, last, increment = map(float, (message.angle_min, message.angle_max, message.angle_increment))
    increment, mended = _spread(ranges.size, first, last, increment)
    time_increment, ignored = _rotation(ranges.size, float(message.time_increment), float(message.scan_time))
    return LaserScan(
        ranges,
        first,
        increment,
        float(message.range_min),
        float(message.range_max),
        seconds(message.header.stamp),
        time_increment,
        mended + ignored,
    )


# By how many of its beams a header may miss its own angle_max and still be believed.
_MISSED_BEAMS = 1.5
_MISSED_SHARE = 0.02


def _spread(beams: int, first: float, last: float, increment: float) -> tuple[float, tuple[str, ...]]:
    """The increment that leads from the first beam to the last, and what was mended.

    Drivers state fov/N where fov/(N-1) is meant, or send some beams more or less than their header is
    made for: then the stated field of view is believed. A full turn is another matter: there N beams stand
    fov/N apart, and ``angle_max`` may name the place where the turn closes.

    Raises:
        scanpilot.types.InvalidInput: the header's three angles describe no one scan.
    """
    if beams < 2 or increment == 0.0 or not math.isfinite(first) or not math.isfinite(increment):
        return increment, ()
    if not math.isfinite(last):
        raise InvalidInput(f"scan header angle_max is {last}, expected a finite number")
    stated = last - first
    missed = stated / increment - (beams - 1)
    if abs(missed) <= 0.5:
        return increment, ()
    # An even turn: the increment is right, whatever angle_max names.
    if abs(abs(increment) * beams - 2.0 * math.pi) <= 0.5 * abs(increment) and abs(missed) <= _MISSED_BEAMS:
        return increment, ()
    if abs(missed) > max(_MISSED_BEAMS, _MISSED_SHARE * beams):
        raise InvalidInput(
            f"scan header contradicts itself: {beams} beams from angle_min {first:.4f} on, {increment:.6f} "
            f"rad apart, end at {first + increment * (beams - 1):.4f}, but angle_max is {last:.4f}"
        )
    return stated / (beams - 1), ("angle_increment did not lead to angle_max: beams spread evenly",)


# A mechanical lidar turns at least this often.
_LONGEST_TURN = 1.0


def _rotation(beams: int, time_increment: float, scan_time: float) -> tuple[float, tuple[str, ...]]:
    """Seconds between beams as far as they can be believed, and what was ignored."""
    duration = time_increment * (beams - 1)
    longest = min(1.1 * scan_time if scan_time > 0.0 else math.inf, _LONGEST_TURN)
    if 0.0 <= duration <= longest:
        return time_increment, ()
    return 0.0, ("time_increment ignored: no scan takes that long",)


def odometry_from(message: Any, twist_in_parent_frame: bool = False) -> Odometry:
    """A ``nav_msgs/Odometry`` with its twist in ``base_link``.

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


def pose_from(pose: Any) -> Pose2D:
    """A ``geometry_msgs/Pose``, seen from above.

    Raises:
        scanpilot.types.InvalidInput: a number is not finite or the orientation is no rotation.
    """
    q = pose.orientation
    planar = Pose2D(pose.position.x, pose.position.y, yaw_from_quaternion(q.x, q.y, q.z, q.w))
    if not all(math.isfinite(v) for v in planar):
        raise InvalidInput(f"position ({pose.position.x}, {pose.position.y}) is not finite")
    return planar


def poses_from(message: Any) -> tuple[tuple[Pose2D, ...], str]:
    """A ``geometry_msgs/PoseArray`` and its frame.

    Raises:
        scanpilot.types.InvalidInput: names the pose that is none.
    """
    poses: list[Pose2D] = []
    try:
        poses.extend(map(pose_from, message.poses))
    except InvalidInput as error:
        raise InvalidInput(f"pose {len(poses)}: {error}") from error
    return tuple(poses), frame_id(message.header.frame_id)


def path_from(message: Any) -> tuple[DoubleArray, str]:
    """A ``nav_msgs/Path``: ``(P, 3)`` x, y, yaw, and its frame.

    Planners often leave orientations at zero. Those on the way are not needed; an end without one
    gets the path's direction.

    Raises:
        scanpilot.types.InvalidInput: its poses are in several frames, or the end's orientation is no
            number.
    """
    frames = {frame_id(pose.header.frame_id) for pose in message.poses} | {frame_id(message.header.frame_id)}
    frames.discard("")
    if len(frames) > 1:
        raise InvalidInput(f"its poses are in different frames: {', '.join(sorted(frames))}")
    positions = [pose.pose.position for pose in message.poses]
    path: DoubleArray = np.array([(p.x, p.y, 0.0) for p in positions], dtype=np.float64).reshape(-1, 3)
    if len(path):
        q = message.poses[-1].pose.orientation
        if (q.x, q.y, q.z, q.w) == (0.0, 0.0, 0.0, 0.0):
            before = path[(path[:, :2] != path[-1, :2]).any(axis=1)]
            dx, dy = path[-1, :2] - before[-1, :2] if len(before) else (1.0, 0.0)
            path[-1, 2] = math.atan2(dy, dx)
        else:
            path[-1, 2] = yaw_from_quaternion(q.x, q.y, q.z, q.w)
    return path, next(iter(frames), "")


def planar_from(transform: Any) -> Pose2D:
    """A ``geometry_msgs/Transform``, seen from above: the pose of its child frame in its parent.

    Raises:
        scanpilot.types.InvalidInput: the rotation is none.
    """
    q, t = transform.rotation, transform.translation
    return Pose2D(t.x, t.y, yaw_from_quaternion(q.x, q.y, q.z, q.w))


def mount_from(transform: Any) -> tuple[Pose2D, bool]:
    """A lidar's mount in its robot, and whether it hangs upside down; of a ``geometry_msgs/Transform``.

    Raises:
        scanpilot.types.InvalidInput: the rotation is none, or tilts the scan plane by over 45 deg.
    """
    q, t = transform.rotation, transform.translation
    return mount_of((t.x, t.y), (q.x, q.y, q.z, q.w))


def mount_of(position: tuple[float, float], rotation: Quaternion) -> tuple[Pose2D, bool]:
    """`mount_from` of a position x, y in metres and a quaternion x, y, z, w.

    Raises:
        scanpilot.types.InvalidInput: the rotation is none, or tilts the scan plane by over 45 deg.
    """
    yaw_from_quaternion(*rotation)
    norm = math.sqrt(sum(v * v for v in rotation))
    x, y, z, w = (v / norm for v in rotation)
    upright = 1.0 - 2.0 * (x * x + y * y)
    if abs(upright) < math.cos(math.radians(45.0)):
        raise InvalidInput(f"lidar is tilted: its z axis points {upright:.2f} up, expected about 1 or -1")
    # Where the lidar's x axis points to, seen from above.
    yaw = math.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
    return Pose2D(*position, yaw), upright < 0.0


def twist_from(message: Any) -> Twist2D:
    """A ``geometry_msgs/Twist`` or ``TwistStamped``."""
    twist = getattr(message, "twist", message)
    return Twist2D(twist.linear.x, twist.linear.y, twist.angular.z)
