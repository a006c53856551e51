"""Every recorded robot drives the node over real topics, at its own pace; a table says what was mended.

``SCANPILOT_BAG_SECONDS=1000 pytest -s tests/ros/test_real_bags.py`` plays the bags as a whole.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, Twist
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.typesys import Stores, get_typestore

from scanpilot_ros import qos
from tests.ros.conftest import moving, until

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("SCANPILOT_BAG_SECONDS", "2.5"))
# As made by `policy` of conftest.
FASTEST, QUICKEST = 1.0, 1.5
BEHIND = "0 0 3.1416"


@dataclass(frozen=True)
class Recording:
    """A bag with scans in it.

    Attributes:
        path: below the bags' folder.
        topics: the bag's topics and what they are published as.
        moves: whether it ought to make the robot move: not where every scan is empty.
        parameters: of the node: where the lidar sits, and what is odd about the odometry.
    """

    path: str
    topics: tuple[str, ...] = ("/scan=scan", "/odom=odom")
    moves: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)


ONE = {"scan_topics": ["scan"], "lidar.mounts": [""], "odom_twist_in_parent_frame": False}
STANDING = ("/none=standing",)

RECORDINGS = [
    Recording("turtlebot4_rplidar", parameters={"lidar.mounts": ["0.0039 0 1.5708"]}),
    Recording("neato_drive_square", parameters={"lidar.mounts": [BEHIND]}),
    Recording("neato_jittery_drive", parameters={"lidar.mounts": [BEHIND]}),
    Recording("neato_simulated_star", moves=False),
    Recording("neato_teleop", parameters={"lidar.mounts": [BEHIND]}),
    Recording("neato_wall_follower", parameters={"lidar.mounts": [BEHIND]}),
    Recording("ros1_turtlebot3_drive_square/drive_square1.bag", ("/scan=scan", *STANDING)),
    Recording(
        "ros1_hokuyo_two_lidars/scans_demo.bag",
        ("/front_scan=front_scan", "/rear_scan=rear_scan", *STANDING),
        parameters={
            "scan_topics": ["front_scan", "rear_scan"],
            "lidar.mounts": ["0.2 0.15 0.785", "-0.2 -0.15 -2.356"],
        },
    ),
    Recording(
        "ros1_neato_simulated_goal/obstacle_avoider_demo.bag", parameters={"odom_twist_in_parent_frame": True}
    ),
]
WITHOUT_SCANS = ["mcap_zstd_file_mode"]
UNREADABLE = ["ros1_version_1_2_unsupported/demo.bag"]

TABLE: list[str] = []


@pytest.fixture(scope="module")
def node(start_node, policy):
    # A recorded robot does not do what it is told, which to the node looks like one that is stuck.
    yield start_node("policy_node", "bags", policy=policy, lidar__from_tf=False, recovery__enabled=False)
    print("\n" + "\n".join(TABLE))


def configure(bench: Any, recording: Recording) -> None:
    """Configure the node anew for this robot, so that what it counts begins anew."""

    def change(transition: int) -> None:
        request = ChangeState.Request(transition=Transition(id=transition))
        assert bench.call(ChangeState, "/bags/policy_node/change_state", request, 60.0).success

    change(Transition.TRANSITION_DEACTIVATE)
    change(Transition.TRANSITION_CLEANUP)
    values = {**ONE, **recording.parameters}
    request = SetParameters.Request(
        parameters=[Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
    )
    answer = bench.call(SetParameters, "/bags/policy_node/set_parameters", request)
    assert all(result.successful for result in answer.results), answer
    change(Transition.TRANSITION_CONFIGURE)
    change(Transition.TRANSITION_ACTIVATE)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.path.split("/")[0])
def test_a_recorded_robot_is_driven_by_finite_bounded_commands(
    bench, start, node, data, recording: Recording
) -> None:
    statuses = bench.listen(DiagnosticStatus, "/bags/policy_node/status", qos.LATCHED)
    assert until(lambda: statuses, 60.0), node.output
    configure(bench, recording)
    commands = bench.listen(Twist, "/bags/cmd_vel", 100)
    goals = bench.node.create_publisher(PoseStamped, "/bags/goal_pose", 1)
    assert until(goals.get_subscription_count, 60.0), node.output
    scans = [name.split("=")[1] for name in recording.topics if "odom" not in name and name not in STANDING]

    def values() -> dict[str, str]:
        return {v.key: v.value for v in statuses[-1].message.values}

    def inputs() -> list[str]:
        """What is said of each lidar."""
        return [values().get(f"/bags/{name} input", "") for name in scans]

    assert until(lambda: all(said.startswith("no scan yet") for said in inputs()), 60.0), node.output
    player = start(HERE / "play_bag.py", data / "bags" / recording.path, "bags", *recording.topics)
    assert until(lambda: not any(said.startswith("no scan yet") for said in inputs()), 60.0), (
        f"{node.output}\n{player.output}"
    )
    goal = PoseStamped()
    goal.pose.position.x, goal.pose.position.y, goal.pose.orientation.w = 40.0, 30.0, 1.0
    goals.publish(goal)
    begun = time.monotonic()
    until(lambda: player.code is not None, SECONDS)
    player.stop()

    driven = [s.message for s in list(commands) if s.time > begun]
    twists = [(t.linear.x, t.linear.y, t.angular.z) for t in driven]
    assert all(math.isfinite(v) for twist in twists for v in twist)
    assert all(0.0 <= x <= FASTEST and y == 0.0 and abs(w) <= QUICKEST for x, y, w in twists)
    share = sum(map(moving, driven)) / max(1, len(driven))
    seen = " | ".join(f"{name}: {said}" for name, said in zip(scans, inputs(), strict=True))
    TABLE.append(f"{recording.path.split('/')[0]} | {len(driven)} commands, {share:.0%} moving | {seen}")
    if recording.moves:
        assert share > 0.0, f"{values()}\n{node.output}"
    assert node.code is None
    assert "Traceback" not in node.output


@pytest.mark.parametrize("path", WITHOUT_SCANS)
def test_a_recording_without_scans_has_nothing_to_drive_by(data, path: str) -> None:
    with AnyReader([data / "bags" / path], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
        assert "sensor_msgs/msg/LaserScan" not in {c.msgtype for c in reader.connections}


@pytest.mark.parametrize("path", UNREADABLE)
def test_a_recording_that_nothing_reads_is_refused(data, path: str) -> None:
    with pytest.raises(AnyReaderError, match="magic"):
        AnyReader([data / "bags" / path]).open()
