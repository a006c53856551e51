"""The policy on one robot: ``ros2 launch scanpilot navigation.launch.py policy:=generic_diff``.

Goals come in on ``goal_pose``, RViz's 2D Goal Pose. Topics of a driver with other names are given as
``scan:=base_scan`` and the like. With ``nav2:=true``, Nav2's planner leads the policy, and its velocity
smoother and collision monitor stand between the policy and the robot: see docs/nav2.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

from scanpilot import resources

TOPICS = ("scan", "odom", "goal_pose", "goal_poses", "plan", "cmd_vel")
NAV2 = {
    "bt_navigator": "nav2_bt_navigator",
    "planner_server": "nav2_planner",
    "velocity_smoother": "nav2_velocity_smoother",
    "collision_monitor": "nav2_collision_monitor",
}


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
        ("nav2", "false", "true: with Nav2's planner, velocity smoother and collision monitor"),
        ("nav2_params_file", str(resources.root() / "config/nav2.yaml"), "parameters of Nav2's nodes"),
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
    names = {topic: value(topic) for topic in TOPICS}
    remappings = _renamed(names)
    nav2: list[Any] = []
    if _truth("nav2", value("nav2")):
        nav2 = _nav2(value, parameters, names)
        parameters |= {"follow_path": True, "navigate_to_pose": False}
        # The policy's goals are plans, and its commands pass through the smoother and the monitor.
        names |= {"goal_pose": "policy_goal_pose", "plan": "policy_plan", "cmd_vel": "cmd_vel_nav"}
    node = Node(
        package="scanpilot",
        executable="policy_node",
        namespace=value("namespace"),
        parameters=[value("params_file"), parameters],
        remappings=_renamed(names),
        output="screen",
    )
    if not _truth("rviz", value("rviz")):
        return [node, *nav2]
    # The topics in the file are relative, so that it serves a robot in any namespace.
    rviz = Node(
        package="rviz2",
        executable="rviz2",
        namespace=value("namespace"),
        arguments=["-d", str(resources.root() / "config/rviz/robot.rviz"), "-f", value("fixed_frame")],
        parameters=[{"use_sim_time": parameters["use_sim_time"]}],
        remappings=remappings,
    )
    return [node, *nav2, rviz]


def _nav2(value: Callable[[str], str], parameters: dict[str, Any], names: dict[str, str]) -> list[Any]:
    """Nav2's nodes: a planner that is asked once a second, and what the policy's commands pass through."""
    common: dict[str, Any] = {"use_sim_time": parameters["use_sim_time"]}
    own: dict[str, dict[str, Any]] = {
        "bt_navigator": {
            "default_nav_to_pose_bt_xml": PathJoinSubstitution(
                [FindPackageShare("nav2_bt_navigator"), "behavior_trees", "navigate_w_replanning_time.xml"]
            )
        },
        "planner_server": {},
        # As Nav2 calls it from Jazzy on; Humble only knows Twist.
        "velocity_smoother": {"enable_stamped_cmd_vel": parameters.get("stamped", False)},
        "collision_monitor": {"enable_stamped_cmd_vel": parameters.get("stamped", False)},
    }
    nodes = []
    for name, package in NAV2.items():
        remapped = dict(names)
        if name == "velocity_smoother":
            remapped["cmd_vel"] = "cmd_vel_nav"
        nodes.append(
            Node(
                package=package,
                executable=name,
                name=name,
                namespace=value("namespace"),
                parameters=[value("nav2_params_file"), common, own[name]],
                remappings=_renamed(remapped),
                output="screen",
            )
        )
    manager = Node(
        package="nav2_lifecycle_manager",
        executable="lifecycle_manager",
        name="lifecycle_manager_navigation",
        namespace=value("namespace"),
        parameters=[common, {"autostart": True, "node_names": list(NAV2)}],
        output="screen",
    )
    return [*nodes, manager]


def _renamed(names: dict[str, str]) -> list[tuple[str, str]]:
    return [(old, new) for old, new in names.items() if old != new]


def _path(kind: resources.Kind, name: str) -> str:
    # A path need not exist yet: training will put a policy there, and the node waits for it.
    return os.path.abspath(name) if os.sep in name else str(resources.find(kind, name).absolute())


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RuntimeError(f"{name}:={text} is neither true nor false")
    return text.lower() == "true"
