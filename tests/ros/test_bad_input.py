"""Input that must not be acted on: zero velocity, a reason that names it, and on it goes once it is good."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from tests.ros.conftest import moving, odometry_message, scan_message, until

PERIOD = 0.2
HAS_TF = importlib.util.find_spec("tf2_ros") is not None


@pytest.fixture(scope="module")
def node(start_node, policy):
    """One node for all of this: what one bad input leaves behind, the next would stumble over."""
    return start_node("policy_node", "bad", policy=policy)


@pytest.fixture
def fake(node, robot):
    """Its robot, driving."""
    made = robot("bad")
    made.send_goal()
    assert made.reports("driving", seconds=20.0), node.output
    assert until(lambda: made.commands and moving(made.commands[-1].message), 5.0)
    return made


def _nan_odometry() -> Any:
    return odometry_message(x=math.nan)


def _zero_quaternion() -> Any:
    return odometry_message(w=0.0)


def _infinite_speed() -> Any:
    message = odometry_message()
    message.twist.twist.angular.z = math.inf
    return message


def _no_beams() -> Any:
    message = scan_message()
    message.ranges = []
    return message


def _no_turn() -> Any:
    message = scan_message()
    message.angle_increment = 0.0
    return message


def _no_range() -> Any:
    message = scan_message()
    message.range_max = 0.0
    return message


BAD_SCANS: dict[str, tuple[Callable[[], Any], str]] = {
    "all inf": (lambda: scan_message(np.full(360, np.inf)), "none of the scan's 360 ranges"),
    "all nan": (lambda: scan_message(np.full(360, np.nan)), "none of the scan's 360 ranges"),
    "no beams": (_no_beams, "ranges of shape (0,)"),
    "no increment": (_no_turn, "angle_increment is 0"),
    "no range": (_no_range, "range_max 0.0"),
}
BAD_ODOMETRY: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (_nan_odometry, "not finite"),
    "zero quaternion": (_zero_quaternion, "quaternion is all zero"),
    "infinite speed": (_infinite_speed, "not finite"),
}


@pytest.mark.parametrize("case", BAD_SCANS)
def test_bad_scan_stops_and_is_named(node, fake, case: str) -> None:
    fake.scan, words = BAD_SCANS[case]
    assert fake.reports("bad input", "/bad/scan", words), f"{fake.status}\n{node.output}"
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    fake.scan = scan_message
    assert fake.reports("driving"), node.output


@pytest.mark.parametrize("case", BAD_ODOMETRY)
def test_bad_odometry_stops_and_is_named(node, fake, case: str) -> None:
    fake.odometry, words = BAD_ODOMETRY[case]
    assert fake.reports("bad input", "/bad/odom", words), f"{fake.status}\n{node.output}"
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    fake.odometry = odometry_message
    assert fake.reports("driving"), node.output


@pytest.mark.parametrize("silent", ["scan", "odom"])
def test_silent_input_stops_within_two_periods_and_is_named(node, fake, machine_delay, silent: str) -> None:
    if silent == "scan":
        fake.scan = None
    else:
        fake.odometry = None
    assert fake.reports("bad input", f"/bad/{silent} is stale"), node.output
    last = fake.last_scan if silent == "scan" else fake.last_odometry
    stopped = next(s.time for s in fake.commands if s.time > last and not moving(s.message))
    assert stopped - last < 2.0 * PERIOD + machine_delay(last)
    fake.scan, fake.odometry = scan_message, odometry_message
    assert fake.reports("driving"), node.output


def test_goal_with_zero_quaternion_stops_and_is_named(node, fake) -> None:
    fake.send_goal(w=0.0)
    assert fake.reports("bad input", "/bad/goal_pose", "quaternion is all zero"), node.output
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    fake.send_goal()
    assert fake.reports("driving"), node.output


def test_goal_in_an_unknown_frame_stops_and_is_named(node, fake) -> None:
    fake.send_goal(frame="nowhere")
    assert fake.reports("bad input", "/bad/goal_pose", "'nowhere'"), node.output
    assert ("TF does not know" if HAS_TF else "without tf2_ros") in fake.status["reason"]
    assert until(lambda: not moving(fake.commands[-1].message), 1.0)
    fake.send_goal()
    assert fake.reports("driving"), node.output


def test_frame_with_leading_slash_and_goal_relative_to_the_robot(node, fake) -> None:
    fake.odometry = lambda: odometry_message(x=2.0)
    assert until(lambda: fake.status["reason"] == "goal is 3.0 m away", 5.0), node.output
    fake.send_goal(x=5.0, frame="/odom")
    assert until(lambda: fake.status["reason"] == "goal is 3.0 m away", 5.0), node.output
    fake.send_goal(x=4.0, frame="base_link")
    assert until(lambda: fake.status["reason"] == "goal is 4.0 m away", 5.0), node.output
    # It stays where it was when it was given, while the robot moves on.
    fake.odometry = lambda: odometry_message(x=3.0)
    assert until(lambda: fake.status["reason"] == "goal is 3.0 m away", 5.0), node.output


def test_looped_recording_starts_afresh(node, fake) -> None:
    from scanpilot_ros import convert

    resets = int(fake.status["time_resets"])

    def old_scan() -> Any:
        message = scan_message()
        message.header.stamp = convert.stamp_of(5.0)
        return message

    fake.scan = old_scan
    assert until(lambda: int(fake.status["time_resets"]) == resets + 1, 5.0), node.output
    assert fake.status["state"] == "driving"


def test_nothing_of_all_this_ended_the_node(node) -> None:
    assert node.code is None
    assert "Traceback" not in node.output


ROBOT_WITH_UNKNOWN_KEY = """\
name: odd
kinematics: differential
footprint: {radius: 0.2}
limits: {vx: 1.0, wz: 1.5}
lidar: {beams: 90}
colour: red
"""


@pytest.mark.parametrize(
    ("module", "values"), [("policy_node", {}), ("simulator_node", {"world": "clutter:1", "robots": 1})]
)
def test_robot_file_with_unknown_key_ends_the_node_with_file_and_line(
    start_node, tmp_path: Path, module: str, values: dict[str, Any]
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(ROBOT_WITH_UNKNOWN_KEY)
    node = start_node(module, "odd", robot=file, **values)
    assert node.wait() == 1
    assert f"error: {file}:6: unknown key 'colour'" in node.output
    assert "Traceback" not in node.output


def test_world_file_with_unknown_type_ends_the_simulator_with_file_and_line(
    start_node, tmp_path: Path
) -> None:
    file = tmp_path / "odd.world"
    file.write_text('model\n(\n  name "wall"\n)\nmodul ( pose [0 0 0 0] )\n')
    node = start_node("simulator_node", "odd", world=file)
    assert node.wait() == 1
    assert f"{file}:5" in node.output
    assert "modul" in node.output
    assert "Traceback" not in node.output


def test_unknown_parameter_ends_the_node_and_is_named(start_node) -> None:
    node = start_node("policy_node", "parameters", polcy="x")
    assert node.wait() == 1
    assert "error: unknown parameter 'polcy', the nearest known one is 'policy'" in node.output
    assert "Traceback" not in node.output
