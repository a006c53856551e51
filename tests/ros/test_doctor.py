"""`scanpilot doctor` against running robots: a healthy one, and one with everything wrong that it can see."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import LaserScan

from scanpilot.diagnosis import Finding
from scanpilot_ros import convert
from scanpilot_ros.doctor import Question, examine
from tests.ros.conftest import odometry_message, scan_message

SECONDS = 2.0


class Beat:
    """Calls something ten times a second, in a thread."""

    def __init__(self) -> None:
        self._quit = threading.Event()
        self._work = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add(self, work) -> None:
        self._work.append(work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._quit.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._quit.wait(0.1):
            for work in self._work:
                work()


@pytest.fixture
def beat() -> Iterator[Beat]:
    made = Beat()
    yield made
    made.stop()


def problems(findings: list[Finding]) -> str:
    return "\n".join(f"{f.level} {f.subject}: {f.message} -> {f.remedy}" for f in findings if f.level != "ok")


def test_a_robot_with_faults_has_each_named(bench, beat) -> None:
    node = bench.node

    def old(message, seconds: float):
        message.header.stamp = convert.stamp_of(time.time() - seconds)
        return message

    # A scan ten seconds old on another name's topic, clockwise, without one measurement.
    scans = node.create_publisher(LaserScan, "/faulty/scan", qos_profile_sensor_data)
    beat.add(lambda: scans.publish(old(scan_message(np.full(360, np.inf), frame="/laser"), 10.0)))
    # Two publishers of odometry without a child frame, one with a quaternion that is none.
    for w in (1.0, 0.0):
        odometries = node.create_publisher(Odometry, "/faulty/odom", 10)

        def publish(odometries=odometries, w=w) -> None:
            message = odometry_message(w=w)
            message.child_frame_id = ""
            odometries.publish(message)

        beat.add(publish)
    # A base that wants TwistStamped, kept; and somebody else who drives it.
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    node.create_subscription(TwistStamped, "/faulty/cmd_vel", lambda _: None, latched)
    node.create_publisher(TwistStamped, "/faulty/cmd_vel", 10)
    beat.start()

    found = examine(Question(namespace="faulty", seconds=SECONDS))
    text = problems(found)
    for fault, remedy in (
        ("/faulty/scan: stamps are 10.0", "chrony"),
        ("not one of 360 ranges is a measurement", "covered"),
        ("frame '/laser'", "leading slash"),
        ("/faulty/odom has several publishers", "remap"),
        ("/faulty/odom: orientation", "odometry driver"),
        ("/faulty/odom names no child frame", "base_frame:=base_link"),
        ("where the lidar sits is not known", "lidar.yaw"),
        ("listeners want TwistStamped", "stamped:=true"),
        ("/faulty/cmd_vel is published by others too", "twist_mux"),
        ("nobody publishes /faulty/goal_pose", "ros2 topic pub --once /faulty/goal_pose"),
    ):
        line = [one for one in text.splitlines() if fault in one]
        assert line, f"{fault!r} not in\n{text}"
        assert remedy in line[0]

    # With TwistStamped the base still does not hear: it asks for commands that are kept.
    stamped = problems(examine(Question(namespace="faulty", stamped=True, seconds=0.5)))
    assert "listeners want" not in stamped
    assert "cannot hear the policy node" in stamped
    assert "olatile publisher and transient local subscription" in stamped


def test_names_other_topics_where_the_expected_are_silent(bench, beat) -> None:
    node = bench.node
    scans = node.create_publisher(LaserScan, "/renamed/base_scan", qos_profile_sensor_data)
    beat.add(lambda: scans.publish(scan_message()))
    node.create_subscription(Twist, "/renamed/base/cmd_vel", lambda _: None, 10)
    beat.start()
    text = problems(examine(Question(namespace="renamed", seconds=SECONDS)))
    assert "/renamed/base_scan" in next(t for t in text.splitlines() if "nobody publishes /renamed/scan" in t)
    assert "/renamed/base/cmd_vel" in next(
        t for t in text.splitlines() if "nobody listens to /renamed/cmd_vel" in t
    )
    odometry = next(t for t in text.splitlines() if "nobody publishes /renamed/odom" in t)
    assert "start the driver" in odometry or "odom:=" in odometry


def test_looks_at_what_a_running_node_listens_to(
    bench, start, start_node, robot, policy, tmp_path: Path
) -> None:
    lidar = {"lidar__x": 0.1, "lidar__y": 0.0, "lidar__yaw": 1.5708}
    remap = {"scan": "front/scan", "cmd_vel": "wheels"}
    node = start_node("policy_node", "asked", remap, policy=policy, **lidar)
    made = robot("asked")
    scans = bench.node.create_publisher(LaserScan, "/asked/front/scan", qos_profile_sensor_data)
    ranges = np.full(360, 3.0)
    ranges[180] = 1.0
    scan = made.scan
    made.scan = lambda: (scans.publish(scan_message(ranges)), scan())[1]
    bench.node.create_subscription(Twist, "/asked/wheels", lambda _: None, 10)
    assert made.reports("no goal", "waiting for a goal", seconds=60.0), node.output

    out = tmp_path / "findings.json"
    # On a busy machine DDS may not have made the node known when the doctor looks: then it looks again.
    for seconds in (SECONDS, 2 * SECONDS, 4 * SECONDS):
        done = start(
            "-m", "scanpilot_ros.doctor", "namespace:=asked", "--seconds", str(seconds), "--json", out
        )
        code = done.wait(90.0)
        data = json.loads(out.read_text())
        if "does not run" not in done.output:
            break
    assert code == 0, done.output
    assert data["ok"]
    said = {(f["level"], f["subject"]): f["message"] for f in data["findings"]}
    assert "/asked/wheels: Twist, heard by" in said["ok", "cmd_vel"], done.output
    assert "no goal: waiting for a goal" in said["ok", "policy node"]
    # Straight ahead of a lidar that looks left.
    assert "yaw 90 deg (parameters lidar.*)" in said["ok", "lidar mount"]
    assert said["ok", "lidar mount"].endswith("1.00 m away, left")
    assert any("/asked/front/scan" in f["message"] for f in data["findings"])
    assert "0 errors" in done.output


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, start) -> None:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF")
    done = start("-m", "scanpilot_ros.doctor", "--seconds", "0.1")
    assert done.wait(60.0) == 1
    assert "no other ROS node can be seen" in done.output
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE=OFF: no node sees another" in done.output
