"""The simulator node on the topics of stage_ros2."""

from __future__ import annotations

import importlib.util
import math
import signal
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import LaserScan
from std_msgs.msg import Bool, Float32
from std_srvs.srv import Empty

from scanpilot.types import InvalidInput, Twist2D
from scanpilot_ros import convert, qos
from scanpilot_ros.placement import make_scene
from tests.ros.conftest import until


@pytest.fixture(scope="module")
def two(start_node):
    """Two robots placed anew in a generated world."""
    return start_node("simulator_node", world="clutter:7", robots=2, robot=_robot(), seed=3, scan_rate=10.0)


def _robot() -> str:
    from scanpilot import resources

    return str(resources.find("robot", "generic_diff").absolute())


def _drive(bench, publisher, twist: Twist2D, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        publisher.publish(convert.twist_message(twist))
        time.sleep(0.05)


def test_topics_frames_and_rates(bench, two) -> None:
    odometry = bench.listen(Odometry, "/robot_1/odom", qos.SENSOR)
    truth = bench.listen(Odometry, "/robot_1/ground_truth", qos.SENSOR)
    scans = bench.listen(LaserScan, "/robot_1/base_scan", qos.SENSOR)
    clocks = bench.listen(Clock, "/clock", qos.SENSOR)
    contacts = bench.listen(Bool, "/robot_1/contact", qos.SENSOR)
    clearances = bench.listen(Float32, "/robot_1/clearance", qos.SENSOR)
    assert until(lambda: len(scans) > 3 and len(clocks) > 3, 30.0), two.output
    assert until(lambda: len(odometry) > 50, 10.0)

    first = odometry[0].message
    assert (first.header.frame_id, first.child_frame_id) == ("robot_1/odom", "robot_1/base_link")
    assert truth[0].message.header.frame_id == "world"
    scan = scans[0].message
    assert scan.header.frame_id == "robot_1/laser"
    assert len(scan.ranges) == 360
    assert scan.range_max == pytest.approx(10.0)
    assert not contacts[0].message.data
    assert clearances[0].message.data > 0.0
    # Best effort: one may be lost.
    stamps = [convert.seconds(s.message.header.stamp) for s in odometry]
    assert np.median(np.diff(stamps)) == pytest.approx(0.05, abs=1e-6)
    scan_stamps = [convert.seconds(s.message.header.stamp) for s in scans]
    assert np.median(np.diff(scan_stamps)) == pytest.approx(0.1, abs=1e-6)
    # In real time, as far as the machine lets it.
    rate = (stamps[-1] - stamps[0]) / (odometry[-1].time - odometry[0].time)
    assert 0.7 < rate < 1.1
    scene = make_scene("clutter:7", _robot(), 2, 3)
    assert convert.pose_from(truth[0].message.pose.pose) == pytest.approx(scene.starts[1].pose)


def test_commands_move_a_robot_and_their_end_stops_it(bench, two) -> None:
    odometry = bench.listen(Odometry, "/robot_0/odom", qos.SENSOR)
    other = bench.listen(Odometry, "/robot_1/odom", qos.SENSOR)
    commands = bench.node.create_publisher(Twist, "/robot_0/cmd_vel", 1)
    assert until(lambda: odometry and commands.get_subscription_count(), 30.0), two.output
    _drive(bench, commands, Twist2D(0.0, 0.0, 1.0), 1.0)
    turning = odometry[-1].message
    assert turning.twist.twist.angular.z == pytest.approx(1.0)
    # 0.5 simulated seconds after the last command it stops by itself.
    assert until(lambda: odometry[-1].message.twist.twist.angular.z == 0.0, 3.0)
    rest = convert.odometry_from(odometry[-1].message).pose.yaw
    assert 0.5 < rest < 2.2
    assert convert.odometry_from(other[-1].message).pose == (0.0, 0.0, 0.0)

    bench.call(Empty, "/reset_positions", Empty.Request())
    assert until(lambda: convert.odometry_from(odometry[-1].message).pose.yaw == 0.0, 2.0)


def test_command_that_is_not_finite_stops_the_robot(bench, two) -> None:
    odometry = bench.listen(Odometry, "/robot_0/odom", qos.SENSOR)
    commands = bench.node.create_publisher(Twist, "/robot_0/cmd_vel", 1)
    assert until(lambda: odometry and commands.get_subscription_count(), 30.0), two.output
    _drive(bench, commands, Twist2D(0.0, 0.0, 0.5), 0.5)
    commands.publish(convert.twist_message(Twist2D(math.nan, 0.0, 0.5)))
    assert until(lambda: "/robot_0/cmd_vel: command is not finite" in two.output, 3.0)
    assert until(lambda: odometry[-1].message.twist.twist.angular.z == 0.0, 3.0)
    assert two.code is None


def test_ends_cleanly(two) -> None:
    two.signal(signal.SIGINT)
    assert two.wait(10.0) == 0
    assert "Traceback" not in two.output


def test_one_robot_has_no_prefix_and_takes_stamped_commands(bench, start_node) -> None:
    node = start_node(
        "simulator_node", world="clutter:7", robots=1, robot=_robot(), use_stamped_velocity=True
    )
    odometry = bench.listen(Odometry, "/odom", qos.SENSOR)
    commands = bench.node.create_publisher(TwistStamped, "/cmd_vel", 1)
    assert until(lambda: odometry and commands.get_subscription_count(), 30.0), node.output
    assert odometry[0].message.header.frame_id == "odom"
    twist = convert.stamped_twist_message(Twist2D(0.0, 0.0, 0.5), "base_link", convert.stamp_of(0.0))
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        commands.publish(twist)
        time.sleep(0.05)
    assert odometry[-1].message.twist.twist.angular.z == pytest.approx(0.5)


@pytest.mark.skipif(importlib.util.find_spec("tf2_msgs") is None, reason="tf2_msgs is not installed")
def test_transforms_lead_from_world_to_laser(bench, start_node) -> None:
    from tf2_msgs.msg import TFMessage

    node = start_node("simulator_node", world="clutter:7", robots=2, robot=_robot())
    moving = bench.listen(TFMessage, "/tf", qos.TRANSFORMS)
    static = bench.listen(TFMessage, "/tf_static", qos.LATCHED)
    wanted = {
        link
        for name in ("robot_0", "robot_1")
        for link in (
            ("world", f"{name}/odom"),
            (f"{name}/odom", f"{name}/base_link"),
            (f"{name}/base_link", f"{name}/laser"),
        )
    }

    def links() -> set[tuple[str, str]]:
        messages = [seen.message for seen in (*moving, *static)]
        return {(t.header.frame_id, t.child_frame_id) for m in messages for t in m.transforms}

    assert until(lambda: wanted <= links(), 30.0), node.output


def test_scene_takes_robots_from_the_world_file() -> None:
    scene = make_scene("demo", "", 0, 0)
    assert [s.name for s in scene.starts] == ["robot_0", "robot_1", "robot_2", "robot_3"]
    assert scene.prefixes == ("robot_0/", "robot_1/", "robot_2/", "robot_3/")
    assert scene.robot.kinematics == "differential"
    assert len(make_scene("demo", "", 2, 0).starts) == 2
    assert make_scene("demo", "", 1, 0).prefixes == ("",)
    anew = make_scene("demo", "", 6, 0)
    assert [s.name for s in anew.starts] == [f"robot_{i}" for i in range(6)]


@pytest.mark.parametrize(
    ("world", "robot", "robots", "words"),
    [
        ("", "", 0, "no world was named"),
        ("clutter:x", "generic_diff", 1, "expected a seed, such as clutter:7"),
        ("clutter:7", "generic_diff", 0, "say how many"),
        ("clutter:7", "", 1, "describes no robot"),
        ("clutter:7", "generic_dif", 1, "did you mean generic_diff"),
        ("demoo", "", 1, "did you mean demo"),
        ("clutter:7", "generic_diff", 999, "of 999 robots fit"),
    ],
)
def test_scene_that_cannot_be_had_says_why(world: str, robot: str, robots: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make_scene(world, robot, robots, 0)
