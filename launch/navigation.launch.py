"""The policy on one robot: ``ros2 launch scanpilot navigation.launch.py policy:=generic_diff``.

Goals come in on ``goal_pose``, RViz's 2D Goal Pose. Topics of a driver with other names are given as
``scan:=base_scan`` and the like.
"""

from __future__ import annotations

import os
from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from scanpilot import resources

TOPICS = ("scan", "odom", "goal_pose", "cmd_vel")


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("policy", "generic_diff", "released policy's name, or a policy directory; watched for new ones"),
        ("robot", "", "shipped robot's name or a YAML file, if not the robot the policy was trained for"),
        ("namespace", "", "of the node and of the topics it uses"),
        ("stamped", "", "true: cmd_vel is a TwistStamped; empty: as params_file says"),
        ("use_sim_time", "false", "true: time comes from /clock"),
        (
            "params_file",
            str(resources.root() / "config/policy_node.yaml"),
            "all other parameters of the node",
        ),
        ("rviz", "false", "true: open RViz; its 2D Goal Pose is the robot's goal"),
        ("fixed_frame", "odom", "the frame that stands still in RViz"),
        *((topic, topic, f"name of the topic {topic}") for topic in TOPICS),
    ]
    declared = [DeclareLaunchArgument(name, default_value=d, description=text) for name, d, text in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=_nodes)])


def _nodes(context: LaunchContext) -> list[Any]:
    def value(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    parameters: dict[str, Any] = {
        "policy": _path("policy", value("policy")),
        "use_sim_time": _truth("use_sim_time", value("use_sim_time")),
    }
    if value("robot"):
        parameters["robot"] = _path("robot", value("robot"))
    if value("stamped"):
        parameters["stamped"] = _truth("stamped", value("stamped"))
    remappings = [(topic, value(topic)) for topic in TOPICS if value(topic) != topic]
    node = Node(
        package="scanpilot",
        executable="policy_node",
        namespace=value("namespace"),
        parameters=[value("params_file"), parameters],
        remappings=remappings,
        output="screen",
    )
    if not _truth("rviz", value("rviz")):
        return [node]
    # The topics in the file are relative, so that it serves a robot in any namespace.
    rviz = Node(
        package="rviz2",
        executable="rviz2",
        namespace=value("namespace"),
        arguments=["-d", str(resources.root() / "config/rviz/robot.rviz"), "-f", value("fixed_frame")],
        parameters=[{"use_sim_time": parameters["use_sim_time"]}],
        remappings=remappings,
    )
    return [node, rviz]


def _path(kind: resources.Kind, name: str) -> str:
    # A path need not exist yet: training will put a policy there, and the node waits for it.
    return os.path.abspath(name) if os.sep in name else str(resources.find(kind, name).absolute())


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RuntimeError(f"{name}:={text} is neither true nor false")
    return text.lower() == "true"
