"""Parameters as dataclasses: declared with description and range, refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter

from scanpilot.navigator import State
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import InvalidInput, Pose2D
from scanpilot_ros.parameters import PolicyNodeParameters, as_markdown, declare, read, with_table


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.shutdown()


def make_node(**values: Any) -> Node:
    overrides = [Parameter(name.replace("__", "."), value=value) for name, value in values.items()]
    return rclpy.create_node("parameters", parameter_overrides=overrides)


def parameters(**values: Any) -> PolicyNodeParameters:
    node = make_node(**values)
    try:
        declare(node, PolicyNodeParameters)
        return read(node, PolicyNodeParameters)
    finally:
        node.destroy_node()


def test_defaults_are_those_of_the_dataclass() -> None:
    given = parameters()
    assert given.policy == ""
    assert given.mounts == (None,)
    config = given.navigator_config(None)
    assert (config.control_period, config.scan_timeout, config.vx) == (None, None, None)


def test_every_parameter_is_described() -> None:
    node = make_node()
    declare(node, PolicyNodeParameters)
    names = [n for n in node._parameters if n not in ("use_sim_time", "start_type_description_service")]
    assert len(names) > 15
    assert all(node.describe_parameter(name).description for name in names)
    node.destroy_node()


def test_values_are_read_and_whole_numbers_taken_for_numbers() -> None:
    given = parameters(control_period=1, limits__vx=0.5, lidar__yaw=1.5, stamped=True)
    assert (given.control_period, given.vx, given.stamped) == (1.0, 0.5, True)
    assert given.mounts == ((Pose2D(0.0, 0.0, 1.5), False),)


def test_several_lidars_and_their_mounts() -> None:
    given = parameters(scan_topics=["front", "rear"], lidar__mounts=["0.2 0 0", "-0.2 0.1 3.14 flipped"])
    assert given.scan_topics == ("front", "rear")
    assert given.mounts == ((Pose2D(0.2, 0.0, 0.0), False), (Pose2D(-0.2, 0.1, 3.14), True))
    assert parameters(scan_topics=["front", "rear"]).mounts == (None, None)
    assert parameters(lidar__mounts=[""], lidar__x=0.1).mounts == ((Pose2D(0.1, 0.0, 0.0), False),)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scan_topics": ["a", "b"], "lidar__x": 0.1}, "are for one lidar"),
        ({"scan_topics": ["a", "b"], "lidar__mounts": ["0 0 0"]}, "states 1 lidars, scan_topics 2"),
        ({"lidar__mounts": ["0 0 0"], "lidar__yaw": 1.0}, "lidar.x, y or yaw is stated too"),
        ({"lidar__mounts": ["0 0"]}, "has '0 0', expected such as"),
        ({"lidar__mounts": ["0 0 nan"]}, "expected such as"),
        ({"lidar__mounts": ["0 0 0 upside"]}, "expected such as"),
        ({"scan_topics": ["a", "a"]}, "expected names that differ"),
    ],
)
def test_mounts_that_make_no_sense_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _ = parameters(**values).mounts
    assert words in str(caught.value)


def test_limits_come_from_the_robot_where_no_parameter_states_one() -> None:
    robot = RobotSpec("slow", "differential", Footprint(radius=0.2), Limits(vx=0.3, wz=1.0), Lidar(beams=90))
    config = parameters(limits__wz=0.5).navigator_config(robot)
    assert (config.vx, config.wz, config.ax) == (0.3, 0.5, None)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"polcy": "x"}, "unknown parameter 'polcy', the nearest known one is 'policy'"),
        ({"goal_tolerance": -1.0}, "goal_tolerance"),
        ({"control_period": "fast"}, "parameter 'control_period' is 'fast', expected a number"),
        ({"lidar__yaw": 10.0}, "parameter 'lidar.yaw' is 10.0, expected -7.0 to 7.0"),
        ({"stamped": "yes"}, "stamped"),
    ],
)
def test_bad_value_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parameters(**values)


def test_the_manual_has_every_parameter_and_state_as_they_are() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "robot.md").read_text()
    assert as_markdown(PolicyNodeParameters) in manual
    assert with_table(manual) == manual, "run: python -m scanpilot_ros.parameters docs/robot.md"
    states = manual.partition("## States")[2].partition("\n## ")[0]
    assert [line.split("|")[1].strip() for line in states.splitlines() if line.startswith("| ")][1:] == [
        state.value for state in State
    ]


def test_every_number_says_its_unit() -> None:
    counted = {"recovery.circling_turns"}
    for row in as_markdown(PolicyNodeParameters).splitlines()[2:]:
        name, default, unit = (cell.strip().strip("`") for cell in row.split("|")[1:4])
        if "." in default.strip("'") or default == "nan":
            assert unit or name in counted, row
