"""Messages to types and back, and what of a message is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from geometry_msgs.msg import Pose, Transform, TwistStamped
from nav_msgs.msg import Odometry as OdometryMessage
from sensor_msgs.msg import LaserScan as LaserScanMessage

from scanpilot.checkpoint import load_policy
from scanpilot.geometry import quaternion_from_yaw
from scanpilot.navigator import Navigator, NavigatorConfig
from scanpilot.observation import FrameStack, ScanResampler, triplets_of
from scanpilot.types import InvalidInput, LaserScan, Odometry, Pose2D, Twist2D
from scanpilot_ros import convert


def test_scan_survives_the_way_through_a_message() -> None:
    ranges = np.array([1.0, math.inf, math.nan, -math.inf, 0.0], np.float32)
    message = convert.scan_message(ranges, -1.0, 0.5, (0.1, 8.0), "laser", convert.stamp_of(12.25))
    scan = convert.scan_from(message)
    np.testing.assert_array_equal(scan.ranges, ranges)
    assert (scan.angle_min, scan.angle_increment, scan.stamp) == (-1.0, 0.5, 12.25)
    assert (scan.range_min, scan.range_max) == pytest.approx((0.1, 8.0))
    assert message.angle_max == 1.0


def test_scan_without_beams_is_refused() -> None:
    message = LaserScanMessage(angle_increment=0.1, range_max=5.0)
    with pytest.raises(InvalidInput, match="ranges of shape"):
        convert.scan_from(message)


def test_odometry_twist_in_parent_frame_is_turned() -> None:
    message = convert.odometry_message(
        np.array([1.0, 2.0, math.pi / 2]), np.array([0.0, 0.5, 0.1]), "odom", "base", convert.stamp_of(1.0)
    )
    assert convert.odometry_from(message).twist == Twist2D(0.0, 0.5, 0.1)
    turned = convert.odometry_from(message, twist_in_parent_frame=True).twist
    assert turned == pytest.approx((0.5, 0.0, 0.1))


@pytest.mark.parametrize(
    ("quaternion", "words"),
    [((0.0, 0.0, 0.0, 0.0), "all zero"), ((math.nan, 0.0, 0.0, 1.0), "not finite")],
)
def test_quaternion_that_is_no_rotation_is_refused(quaternion: tuple[float, ...], words: str) -> None:
    pose = Pose()
    q = pose.orientation
    q.x, q.y, q.z, q.w = quaternion
    with pytest.raises(InvalidInput, match=words):
        convert.pose_from(pose)


def test_quaternion_of_any_length_is_taken() -> None:
    pose = Pose()
    _, _, z, w = quaternion_from_yaw(2.0)
    pose.orientation.z, pose.orientation.w = 3.0 * z, 3.0 * w
    assert convert.pose_from(pose).yaw == pytest.approx(2.0)


def test_position_that_is_not_finite_is_refused() -> None:
    pose = Pose()
    pose.position.x = math.inf
    with pytest.raises(InvalidInput, match="not finite"):
        convert.pose_from(pose)


@pytest.mark.parametrize("raw", ["odom", "/odom", "//odom"])
def test_frame_ids_lose_leading_slashes(raw: str) -> None:
    assert convert.frame_id(raw) == "odom"


def _transform(x: float, y: float, z: float, w: float) -> Transform:
    transform = Transform()
    q = transform.rotation
    q.x, q.y, q.z, q.w = x, y, z, w
    transform.translation.x = 0.2
    return transform


def test_mount_of_a_turned_lidar() -> None:
    mount, flipped = convert.mount_from(_transform(*quaternion_from_yaw(math.pi / 2)))
    assert mount == pytest.approx((0.2, 0.0, math.pi / 2))
    assert not flipped


def test_mount_of_a_lidar_upside_down() -> None:
    # Rolled half a turn about its own x axis, then turned by 30 deg.
    half = math.radians(15.0)
    mount, flipped = convert.mount_from(_transform(math.cos(half), math.sin(half), 0.0, 0.0))
    assert flipped
    assert mount.yaw == pytest.approx(math.radians(30.0))


def test_tilted_lidar_is_refused() -> None:
    half = math.radians(40.0)
    with pytest.raises(InvalidInput, match="tilted"):
        convert.mount_from(_transform(math.sin(half), 0.0, 0.0, math.cos(half)))


def test_commands_stamped_or_not() -> None:
    twist = Twist2D(0.5, -0.25, 1.0)
    assert convert.twist_from(convert.twist_message(twist)) == twist
    stamped = convert.stamped_twist_message(twist, "base_link", convert.stamp_of(3.5))
    assert isinstance(stamped, TwistStamped)
    assert convert.twist_from(stamped) == twist
    assert (stamped.header.frame_id, convert.seconds(stamped.header.stamp)) == ("base_link", 3.5)


def test_recorded_robot_gives_bit_identical_observations_on_both_paths(data: Path, policy: Path) -> None:
    """Must-hold f of the spine: ROS messages through the navigator, and arrays in a batch of robots."""
    messages = list(_recorded(data / "bags" / "turtlebot4_rplidar"))
    assert len(messages) > 300
    loaded = load_policy(policy)
    spec = loaded.observation
    mount, goal = Pose2D(0.0039, 0.0, math.pi / 2), Pose2D(30.0, -10.0, 0.5)

    navigator = Navigator(NavigatorConfig(), loaded)
    navigator.set_mount(mount)
    navigator.set_goal(goal)
    ours = []
    for scan_message, odometry_message in messages:
        navigator.set_scan(convert.scan_from(scan_message), 0.0)
        navigator.set_odometry(convert.odometry_from(odometry_message), 0.0)
        triplet = navigator.tick(0.0).triplet
        assert triplet is not None
        ours.append(triplet)

    robots = 7
    stack = FrameStack(spec, robots)
    for (scan_message, odometry_message), one in zip(messages, ours, strict=True):
        resample = ScanResampler(
            spec,
            scan_message.angle_min,
            scan_message.angle_increment,
            len(scan_message.ranges),
            scan_message.range_min,
            scan_message.range_max,
            mount,
        )
        batch_ranges = np.tile(np.array(scan_message.ranges, np.float32), (robots, 1))
        pose = convert.pose_from(odometry_message.pose.pose)
        raw = odometry_message.twist.twist
        speed = (raw.linear.x, raw.linear.y, raw.angular.z)
        moved = np.tile(np.array(speed), (robots, 1))
        batch = triplets_of(
            stack.push(resample(batch_ranges, moved, scan_message.time_increment)),
            np.tile(np.array(goal), (robots, 1)),
            np.tile(np.array(pose), (robots, 1)),
            moved,
        )
        for robot in range(robots):
            assert batch.scan[robot].tobytes() == one.scan.tobytes()
            assert batch.goal[robot].tobytes() == one.goal.tobytes()
            assert batch.speed[robot].tobytes() == one.speed.tobytes()
    assert len({one.scan.tobytes() for one in ours}) > 300
    assert max(abs(one.speed[0]) for one in ours) > 0.1


def _recorded(bag: Path) -> Any:
    """Each recorded scan with the latest odometry before it, as real ROS messages."""
    rosbags = pytest.importorskip("rosbags.rosbag2", reason="rosbags is not installed")
    from rclpy.serialization import deserialize_message

    kinds = {"sensor_msgs/msg/LaserScan": LaserScanMessage, "nav_msgs/msg/Odometry": OdometryMessage}
    latest: OdometryMessage | None = None
    with rosbags.Reader(bag) as reader:
        connections = [c for c in reader.connections if c.msgtype in kinds]
        for connection, _, data in reader.messages(connections=connections):
            message = deserialize_message(data, kinds[connection.msgtype])
            if isinstance(message, OdometryMessage):
                latest = message
            elif latest is not None:
                yield message, latest


def test_types_are_those_of_the_core() -> None:
    message = convert.odometry_message(np.zeros(3), np.zeros(3), "odom", "base_link", convert.stamp_of(0.5))
    assert convert.odometry_from(message) == Odometry(Pose2D(0.0, 0.0, 0.0), Twist2D(0.0, 0.0, 0.0), 0.5)
    assert isinstance(convert.scan_from(LaserScanMessage(ranges=[1.0], range_max=2.0)), LaserScan)
