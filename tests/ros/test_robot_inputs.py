"""What robots' drivers send, and what the node makes of it: the table in docs/robot_inputs.md, row by row.

Input that must stop the robot is in test_bad_input.py, frames that need TF in test_frames.py.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from geometry_msgs.msg import Twist
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from scanpilot_ros import convert
from tests.ros.conftest import FakeRobot, moving, odometry_message, scan_message, until

ROOM = np.linspace(2.0, 4.0, 360).astype(np.float32)
QUALITIES = [
    QoSProfile(depth=5, reliability=reliability, durability=durability)
    for reliability in (ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE)
    for durability in (DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL)
]


def named(profile: QoSProfile) -> str:
    return f"{profile.reliability.name} {profile.durability.name}".lower()


@pytest.fixture(scope="module")
def node(start_node, policy):
    return start_node("policy_node", "inputs", policy=policy)


@pytest.fixture(scope="module")
def shared(bench, node) -> Iterator[FakeRobot]:
    """Its robot; silent unless `fake` is asked for."""
    made = FakeRobot(bench, "inputs", 20.0)
    made.scan = made.odometry = None
    yield made
    made.close()


@pytest.fixture
def fake(node, shared) -> Iterator[FakeRobot]:
    """Its robot, driving, with a scan that is never twice the same."""
    shared.scan = noisy
    shared.odometry = odometry_message
    shared.send_goal()
    assert shared.reports("driving", "goal is 5.0 m away", seconds=60.0), node.output
    yield shared
    shared.scan = shared.odometry = None


def noisy() -> Any:
    return scan_message(ROOM + np.float32(np.random.default_rng().normal(0.0, 0.01)))


def drives_on(fake: Any, seconds: float = 1.0) -> bool:
    """Whether it keeps driving for a while, from now on.

    A loaded machine holds this process up, and its robot's input becomes stale: then it must go on after.
    """
    begun = time.monotonic()
    time.sleep(seconds)
    stops = [s.message.message for s in fake.statuses if s.time > begun and s.message.level == b"\x02"]
    moves = [s for s in list(fake.commands) if s.time > begun and moving(s.message)]
    return all("is stale" in stop for stop in stops) and bool(moves) and fake.reports("driving")


# Quality of service.


@pytest.mark.parametrize("profile", QUALITIES, ids=named)
def test_publishers_of_every_quality_are_heard(node, robot, profile: QoSProfile) -> None:
    fake = robot("inputs", profile=profile)
    fake.scan = noisy
    assert until(lambda: fake.status.get("state") in ("no goal", "driving"), 60.0), node.output
    fake.send_goal(x=7.0)
    # A best-effort goal is heard once the node has found out that its publisher is such.
    assert until(
        lambda: fake.status["reason"] == "goal is 7.0 m away" or (time.sleep(0.2), fake.send_goal(x=7.0))[0],
        10.0,
    ), f"{fake.status}\n{node.output}"
    assert fake.status["state"] == "driving"
    assert until(lambda: bool(fake.commands) and moving(fake.commands[-1].message), 3.0)


@pytest.mark.parametrize("profile", QUALITIES, ids=named)
def test_listeners_of_every_quality_hear_the_commands_or_are_named(
    bench, node, fake, profile: QoSProfile
) -> None:
    heard: list[Any] = []
    subscription = bench.node.create_subscription(Twist, "/inputs/cmd_vel", heard.append, profile)
    if profile.durability is DurabilityPolicy.VOLATILE:
        assert until(lambda: any(map(moving, heard)), 5.0), node.output
    else:
        # It would be given a velocity of long ago when it comes late: it is told so instead.
        words = "asks for TRANSIENT_LOCAL and hears nothing: subscribe as VOLATILE"
        assert until(lambda: words in fake.status["reason"], 5.0), f"{fake.status}\n{node.output}"
        assert not heard
    bench.node.destroy_subscription(subscription)
    assert until(lambda: "TRANSIENT_LOCAL" not in fake.status["reason"], 5.0)


# Clocks.


def shifted(make: Callable[[], Any], offset: float) -> Callable[[], Any]:
    """Messages stamped by a clock that is off by so many seconds."""

    def message() -> Any:
        made = make()
        made.header.stamp = convert.stamp_of(time.time() + offset)
        return made

    return message


@pytest.mark.parametrize("offset", [-10.0, -0.5, 0.5, 10.0])
def test_clocks_of_two_machines_may_disagree(node, fake, offset: float) -> None:
    fake.scan = shifted(fake.scan, offset)
    assert drives_on(fake), f"{fake.status}\n{node.output}"
    fake.odometry = shifted(odometry_message, -offset)
    assert drives_on(fake), f"{fake.status}\n{node.output}"
    assert float(fake.status["/inputs/scan stamp age (s)"]) == pytest.approx(-offset, abs=0.3)


def test_simulated_time_may_stand_still_begin_at_0_and_begin_again(bench, start_node, robot, policy) -> None:
    node = start_node("policy_node", "simulated", policy=policy, use_sim_time=True)
    fake = robot("simulated", rate=20.0)
    assert fake.drives(60.0), f"no /clock at all: {fake.status}\n{node.output}"
    publisher = bench.node.create_publisher(Clock, "/clock", 10)
    done = threading.Event()

    def tick() -> None:
        # From 0, and again from 0 every second.
        for i in itertools.count():
            publisher.publish(Clock(clock=convert.stamp_of(0.02 * (i % 50))))
            if done.wait(0.02):
                return

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    begun = time.monotonic()
    assert drives_on(fake, 2.5), f"{fake.status}\n{node.output}"
    assert until(lambda: any(s.message.values for s in fake.statuses if s.time > begun + 1.0), 5.0)
    done.set()
    thread.join()
    bench.node.destroy_publisher(publisher)
    assert "Traceback" not in node.output


# Frames and orientations.


def test_leading_slashes_are_taken_off(node, fake) -> None:
    def odometry() -> Any:
        message = odometry_message()
        message.header.frame_id, message.child_frame_id = "/odom", "/base_link"
        return message

    fake.scan = lambda: scan_message(ROOM, frame="/laser")
    fake.odometry = odometry
    fake.send_goal(x=6.0, frame="/base_link")
    assert until(lambda: fake.status["reason"] == "goal is 6.0 m away", 5.0), f"{fake.status}\n{node.output}"
    assert drives_on(fake)


def _broken(field: str, value: float) -> Any:
    message = odometry_message()
    setattr(message.pose.pose.orientation, field, value)
    return message


@pytest.mark.parametrize(
    ("quaternion", "words"), [(("z", math.nan), "is not finite"), (("w", 0.0), "is all zero")]
)
def test_odometry_without_an_orientation_stops_it(
    node, fake, quaternion: tuple[str, float], words: str
) -> None:
    fake.odometry = lambda: _broken(*quaternion)
    assert fake.reports("bad input", "/inputs/odom", "quaternion", words), f"{fake.status}\n{node.output}"
    assert until(lambda: not moving(fake.commands[-1].message), 3.0)
    fake.odometry = odometry_message
    assert fake.reports("driving"), node.output


@pytest.mark.parametrize(("w", "words"), [(math.nan, "is not finite"), (0.0, "is all zero")])
def test_a_goal_without_an_orientation_stops_it(node, fake, w: float, words: str) -> None:
    fake.send_goal(w=w)
    assert fake.reports("bad input", "/inputs/goal_pose", "quaternion", words), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 3.0)


# Odometry.


def circling(parent: bool) -> Callable[[], Any]:
    """Odometry of a robot on a circle of 1 m, with its velocity in its own frame or in the odometry's."""
    begun = time.monotonic()

    def message() -> Any:
        yaw = 0.7 * (time.monotonic() - begun)
        pose = np.array([math.sin(yaw), 1.0 - math.cos(yaw), math.remainder(yaw, 2.0 * math.pi)])
        twist = (0.7 * math.cos(yaw), 0.7 * math.sin(yaw), 0.7) if parent else (0.7, 0.0, 0.7)
        stamp = convert.stamp_of(time.time())
        return convert.odometry_message(pose, np.array(twist), "odom", "base_link", stamp)

    return message


def test_velocities_in_the_world_frame_are_noticed_and_the_remedy_named(node, fake) -> None:
    fake.odometry = circling(parent=False)
    assert drives_on(fake, 2.5), f"{fake.status}\n{node.output}"
    assert "REP-105" not in fake.status["reason"]
    fake.odometry = circling(parent=True)
    words = "set odom_twist_in_parent_frame:=true"
    assert until(lambda: words in fake.status["reason"], 10.0), f"{fake.status}\n{node.output}"
    assert fake.status["state"] == "driving"
    assert fake.statuses[-1].message.level == b"\x01"


def test_a_scan_frozen_while_odometry_moves_stops_it(node, fake) -> None:
    fake.odometry = circling(parent=False)
    fake.scan = lambda: scan_message(ROOM)
    assert fake.reports("bad input", "/inputs/scan: has not changed for", "the lidar's driver hangs"), (
        f"{fake.status}\n{node.output}"
    )
    assert until(lambda: not moving(fake.commands[-1].message), 3.0)
    fake.scan = lambda: scan_message(ROOM + np.float32(0.01))
    assert fake.reports("driving"), node.output


# Scans.


def test_gaps_of_a_fifth_of_a_second_between_scans_do_not_stop_it(node, fake, machine_delay) -> None:
    last = itertools.count()

    def seldom() -> Any:
        # One of four rounds of 0.05 s: the others repeat a topic that nobody listens to.
        fake.scan = None
        return scan_message(ROOM + np.float32(0.001 * next(last)))

    done = threading.Event()

    def feed() -> None:
        while not done.wait(0.2):
            fake.scan = seldom

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    time.sleep(0.5)
    begun = time.monotonic()
    time.sleep(2.0)
    stops = [s.message.message for s in fake.statuses if s.time > begun and s.message.level != b"\x00"]
    done.set()
    thread.join()
    # 0.35 s are allowed; what the machine held up is not the node's doing.
    if machine_delay(begun) + fake.delay(begun) < 0.1:
        assert not [s for s in stops if "scan" in s], f"{stops}\n{node.output}"
    assert next(last) > 2


def test_beam_counts_may_change_from_scan_to_scan(node, fake) -> None:
    count = itertools.count()

    def scan() -> Any:
        return scan_message(np.linspace(2.0, 4.0, 246 + next(count) % 3))

    fake.scan = scan
    assert drives_on(fake), f"{fake.status}\n{node.output}"
    assert until(lambda: "246 to 360 beams" in fake.status["/inputs/scan input"], 2.0), fake.status


def test_a_header_that_misses_its_last_beam_is_mended_and_reported(node, fake) -> None:
    def scan() -> Any:
        message = scan_message(ROOM[:271] + np.float32(np.random.default_rng().normal(0.0, 0.01)))
        message.angle_min, message.angle_max = -2.35, 2.35
        message.angle_increment = 4.7 / 271
        return message

    fake.scan = scan
    assert drives_on(fake), f"{fake.status}\n{node.output}"
    words = "angle_increment did not lead to angle_max: beams spread evenly"
    assert until(lambda: words in fake.status["/inputs/scan input"], 2.0), fake.status


def test_a_header_that_contradicts_itself_stops_it(node, fake) -> None:
    def scan() -> Any:
        message = scan_message(ROOM)
        message.angle_increment *= -1.0
        return message

    fake.scan = scan
    assert fake.reports("bad input", "/inputs/scan: scan header contradicts itself"), fake.status
    assert until(lambda: not moving(fake.commands[-1].message), 3.0)
    assert until(lambda: "refused: " in fake.status["/inputs/scan input"], 2.0), fake.status


def test_several_lidars_are_merged_and_each_is_waited_for(bench, start_node, robot, policy) -> None:
    from sensor_msgs.msg import LaserScan

    # Two of 360 degrees, 0.5 m ahead and behind; the rear one alone sees an obstacle.
    node = start_node(
        "policy_node",
        "two",
        policy=policy,
        scan_topics="[scan, rear_scan]",
        lidar__mounts="['0.5 0 0', '-0.5 0 3.14159 flipped']",
    )
    fake = robot("two", rate=20.0)
    fake.scan = noisy
    assert until(lambda: fake.status, 60.0), node.output
    fake.send_goal()
    assert fake.reports("bad input", "/two/rear_scan: nothing received yet", seconds=60.0), node.output
    rear = bench.node.create_publisher(LaserScan, "/two/rear_scan", 5)
    timer = bench.node.create_timer(
        0.05, lambda: rear.publish(scan_message(ROOM * np.float32(np.random.default_rng().uniform(0.4, 0.5))))
    )
    assert fake.reports("driving"), f"{fake.status}\n{node.output}"
    assert "upside down" in fake.status["/two/rear_scan input"]
    timer.cancel()
    assert fake.reports("bad input", "/two/rear_scan is stale"), fake.status


def test_nothing_of_all_this_ended_the_node(node) -> None:
    assert node.code is None
    assert "Traceback" not in node.output
