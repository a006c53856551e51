"""From facts about a robot to findings: each fault is named, with a remedy, and a healthy robot has none."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from scanpilot import doctor
from scanpilot.diagnosis import (
    Endpoint,
    Finding,
    NodeFacts,
    OdometryFacts,
    RobotFacts,
    ScanFacts,
    TopicFacts,
    diagnose,
)
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.observation import observation_for
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import Pose2D

ROBOT = RobotSpec(
    "test", "differential", Footprint(radius=0.2), Limits(vx=0.5, wz=1.0), Lidar(beams=360, range_max=12.0)
)
POLICY = PolicyManifest("test", ROBOT, observation_for(ROBOT), NetworkConfig(), 0.2)
LASER, ODOMETRY, GOAL = "sensor_msgs/msg/LaserScan", "nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseStamped"
TWIST, STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"


def healthy() -> RobotFacts:
    """A robot with nothing wrong; its lidar, turned to the left by 90 deg, sees a box 1 m behind itself."""
    ranges = np.full(360, 5.0, np.float32)
    ranges[0] = 1.0
    return RobotFacts(
        scan=TopicFacts("/scan", LASER, [Endpoint("/lidar", LASER)], [], 40, 4.0, [0.02] * 40, {"laser"}),
        odometry=TopicFacts(
            "/odom", ODOMETRY, [Endpoint("/base", ODOMETRY)], [], 80, 4.0, [0.01] * 80, {"odom"}
        ),
        goal=TopicFacts("/goal_pose", GOAL, [Endpoint("/rviz", GOAL)]),
        command=TopicFacts("/cmd_vel", TWIST, [], [Endpoint("/base", TWIST)]),
        geometry=ScanFacts(ranges, {360}, -np.pi, 2.0 * np.pi / 360, 0.1, 12.0),
        pose=OdometryFacts("base_link"),
        policy=POLICY,
        node=NodeFacts("/policy_node", {}, "no goal", "waiting for a goal"),
        mount=(Pose2D(0.0, 0.0, np.pi / 2.0), False),
        mount_source="TF",
        tf={},
        others=3,
    )


def wrong(facts: RobotFacts) -> list[Finding]:
    return [f for f in diagnose(facts) if f.level in ("warning", "error")]


def test_a_healthy_robot_has_no_fault() -> None:
    facts = healthy()
    assert wrong(facts) == []
    (mount,) = (f for f in diagnose(facts) if f.subject == "lidar mount")
    # The first beam looks backwards from a lidar that looks left: to the right.
    assert "yaw 90 deg (TF)" in mount.message
    assert mount.message.endswith("the nearest thing is 1.00 m away, right")


def publishers(name: str, *endpoints: Endpoint) -> Callable[[RobotFacts], None]:
    return lambda f: setattr(getattr(f, name), "publishers", list(endpoints))


def change(path: str, value: object) -> Callable[[RobotFacts], None]:
    def apply(facts: RobotFacts) -> None:
        *parents, last = path.split(".")
        target: object = facts
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)

    return apply


def both(*changes: Callable[[RobotFacts], None]) -> Callable[[RobotFacts], None]:
    def apply(facts: RobotFacts) -> None:
        for one in changes:
            one(facts)

    return apply


FAULTS = [
    (change("others", 0), "error", "no other ROS node", "ROS_DOMAIN_ID"),
    (publishers("scan"), "error", "nobody publishes /scan", "start the driver"),
    (
        both(publishers("scan"), change("scan.candidates", ["/base_scan"])),
        "error",
        "nobody publishes /scan",
        "scan:=/base_scan",
    ),
    (
        publishers("scan", Endpoint("/lidar", "sensor_msgs/msg/PointCloud2")),
        "error",
        "is published as sensor_msgs/msg/PointCloud2, expected sensor_msgs/msg/LaserScan",
        "start the driver",
    ),
    (
        publishers("odometry", Endpoint("/base", ODOMETRY), Endpoint("/ekf", ODOMETRY)),
        "warning",
        "several publishers: /base, /ekf",
        "remap",
    ),
    (
        both(
            publishers("scan", Endpoint("/lidar", LASER, "Subscription has a deadline")),
            change("scan.count", 0),
        ),
        "error",
        "QoS of /lidar cannot reach",
        "QoS",
    ),
    (change("scan.count", 0), "error", "nothing came in 4 s", "multicast"),
    # 2 Hz: 1.75 periods of 0.2 s are 0.35 s, scans come each 0.5 s.
    (change("scan.count", 8), "error", "2.0 Hz: the robot stops after 0.35 s", "scan_timeout:=0.9"),
    (change("odometry.count", 14), "warning", "3.5 Hz", "5 Hz or more"),
    (change("scan.stamp_ages", [10.0] * 40), "warning", "stamps are 10.00 s old", "chrony"),
    (change("scan.stamp_ages", [-0.5] * 40), "warning", "stamps are 0.50 s in the future", "chrony"),
    (
        both(change("clock", (True, True)), change("scan.stamp_ages", [1.7e9] * 40)),
        "warning",
        "somebody publishes /clock",
        "use_sim_time:=true",
    ),
    (change("use_sim_time", True), "error", "nobody publishes /clock", "use_sim_time:=false"),
    (
        both(change("use_sim_time", True), change("clock", (True, False))),
        "error",
        "/clock stands still",
        "paused",
    ),
    (change("geometry.fault", "angle_increment is 0"), "error", "angle_increment is 0", "driver"),
    (change("geometry.ranges", np.zeros(360, np.float32)), "error", "not one of 360 ranges", "covered"),
    (change("geometry.beams", {180}), "warning", "looks at 360 deg, the lidar sees 180", "train"),
    (
        both(change("geometry.beams", {45}), change("geometry.angle_increment", 2.0 * np.pi / 45)),
        "warning",
        "beams stand 8.0 deg apart",
        "resolution",
    ),
    (change("geometry.range_min", 0.4), "warning", "nothing nearer than 0.4 m", "shortest range"),
    (change("pose.fault", "orientation is zero"), "error", "orientation is zero", "driver"),
    (change("pose.child_frame", ""), "error", "names no child frame", "base_frame:=base_link"),
    (change("scan.frames", {"a", "b"}), "warning", "several frames: a, b", "remap"),
    (change("scan.frames", {""}), "warning", "names no frame", "frame_id"),
    (change("mount", None), "error", "where the lidar sits is not known: TF knows no way", "lidar.yaw"),
    (both(change("mount", None), change("tf", None)), "warning", "TF cannot be read here", "lidar.yaw"),
    (
        publishers("goal", Endpoint("/gui", "geometry_msgs/msg/Pose")),
        "error",
        "as geometry_msgs/msg/Pose",
        "PoseStamped",
    ),
    (publishers("goal", Endpoint("/gui", GOAL, "BEST_EFFORT")), "warning", "may get lost", "RELIABLE"),
    (change("command.subscribers", []), "error", "nobody listens to /cmd_vel", "driver"),
    (
        both(change("command.subscribers", []), change("command.candidates", ["/base/cmd_vel"])),
        "error",
        "nobody listens to /cmd_vel",
        "cmd_vel:=/base/cmd_vel",
    ),
    (
        change("command.subscribers", [Endpoint("/base", STAMPED)]),
        "error",
        "sent as Twist, but its listeners want TwistStamped",
        "stamped:=true",
    ),
    (
        change("stamped", True),
        "error",
        "sent as TwistStamped, but its listeners want Twist",
        "stamped:=false",
    ),
    (
        change("command.subscribers", [Endpoint("/base", TWIST, "durability")]),
        "error",
        "/base cannot hear the policy node: durability",
        "VOLATILE",
    ),
    (
        change("command.publishers", [Endpoint("/policy_node", TWIST), Endpoint("/teleop", TWIST)]),
        "error",
        "published by others too: /teleop",
        "twist_mux",
    ),
    (
        change("node", NodeFacts("/policy_node", {}, "bad input", "scan is stale")),
        "warning",
        "bad input: scan is stale",
        "docs/robot.md",
    ),
]


@pytest.mark.parametrize(("fault", "level", "message", "remedy"), FAULTS, ids=[f[2] for f in FAULTS])
def test_each_fault_is_named_with_its_remedy(
    fault: Callable[[RobotFacts], None], level: str, message: str, remedy: str
) -> None:
    facts = healthy()
    fault(facts)
    found = [f for f in wrong(facts) if message in f.message]
    assert len(found) == 1, wrong(facts)
    assert found[0].level == level
    assert remedy in found[0].remedy
    # Every other complaint has a remedy too.
    assert all(f.remedy for f in wrong(facts))


def test_notes_do_not_count_as_wrong() -> None:
    facts = healthy()
    facts.node, facts.goal.publishers, facts.scan.frames = None, [], {"/laser"}
    assert wrong(facts) == []
    notes = [f.message for f in diagnose(facts) if f.level == "note"]
    assert len(notes) == 3
    assert any("leading" in f.remedy for f in diagnose(facts))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ROS_DOMAIN_ID": "kitchen"}, "ROS_DOMAIN_ID is 'kitchen'"),
        ({"ROS_DOMAIN_ID": "150"}, "ROS_DOMAIN_ID is '150'"),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"}, "no node sees another"),
        ({"FASTRTPS_DEFAULT_PROFILES_FILE": "/no/such.xml"}, "/no/such.xml, which is not there"),
        ({"CYCLONEDDS_URI": "file:///no/such.xml"}, "/no/such.xml, which is not there"),
    ],
)
def test_environment_that_hides_the_robot(environment: dict[str, str], message: str) -> None:
    errors = [f for f in doctor.examine_environment(environment) if f.level == "error"]
    assert [message in f.message for f in errors if f.subject == "discovery"] == [True]


def test_an_ordinary_environment_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        f for f in doctor.examine_environment({"ROS_DOMAIN_ID": "3"}) if f.subject in ("python", "discovery")
    ]
    assert doctor.exit_code(findings) == 0
    doctor.show(findings)
    assert "ROS_DOMAIN_ID=3" in capsys.readouterr().out
    assert json.loads(json.dumps(doctor.as_json(findings)))["ok"] is True


def test_a_policy_that_does_not_load_is_an_error() -> None:
    policy, finding = doctor.examine_policy("no_such_policy")
    assert policy is None
    assert finding.level == "error"
    assert "no_such_policy" in finding.message
