"""Robots in a simulated world, each driven by a policy.

``ros2 launch scanpilot simulation.launch.py robots:=8 world:=demo policy:=generic_diff``. With more
than one robot, each has its own namespace: goals go to ``/robot_0/goal_pose`` and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    GroupAction,
    IncludeLaunchDescription,
    OpaqueFunction,
    Shutdown,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from scanpilot import resources
from scanpilot_ros.placement import make_scene

NAVIGATION = Path(__file__).with_name("navigation.launch.py")
LATER = {"stage": "stage_ros2", "gazebo": "ros_gz"}


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("world", "demo", "world file, shipped world's name, or a generated one such as clutter:7"),
        ("robots", "0", "how many; 0: those that the world places"),
        ("robot", "", "shipped robot's name or a YAML file; empty: as the world describes it"),
        ("policy", "generic_diff", "released policy's name or a policy directory; empty: nobody drives"),
        ("real_time_factor", "1.0", "simulated seconds per second; 0: as fast as possible"),
        ("seed", "0", "of sampled starts and of noise"),
        ("stamped", "false", "true: commands are TwistStamped"),
        ("rviz", "false", "true: open RViz for the first robot"),
    ]
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "sim",
                default_value="embedded",
                choices=["embedded", *LATER],
                description="the simulator; stage and gazebo come with a later version",
            ),
            *(DeclareLaunchArgument(name, default_value=d, description=text) for name, d, text in arguments),
            OpaqueFunction(function=_simulation),
        ]
    )


def _simulation(context: LaunchContext) -> list[Any]:
    def value(name: str) -> str:
        return str(LaunchConfiguration(name).perform(context))

    simulator = value("sim")
    if simulator in LATER:
        raise RuntimeError(
            f"sim:={simulator} will use the package {LATER[simulator]} and comes with a later version of"
            " scanpilot; sim:=embedded needs no other package"
        )
    robot = str(resources.find("robot", value("robot")).absolute()) if value("robot") else ""
    # The same function that the simulator node asks: so names here are names there.
    scene = make_scene(value("world"), robot, int(value("robots")), int(value("seed")))
    node = Node(
        package="scanpilot",
        executable="simulator_node",
        parameters=[
            {
                "world": value("world"),
                "robots": int(value("robots")),
                "robot": robot,
                "real_time_factor": float(value("real_time_factor")),
                "seed": int(value("seed")),
                "use_stamped_velocity": value("stamped").lower() == "true",
            }
        ],
        output="screen",
        on_exit=Shutdown(reason="the simulator ended"),
    )
    if not value("policy"):
        return [node]
    drivers = [_driver(prefix, first=i == 0) for i, prefix in enumerate(scene.prefixes)]
    return [node, *drivers]


def _driver(prefix: str, first: bool) -> GroupAction:
    navigation = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(NAVIGATION)),
        launch_arguments={
            "policy": LaunchConfiguration("policy"),
            "robot": LaunchConfiguration("robot"),
            "namespace": prefix.rstrip("/"),
            "stamped": LaunchConfiguration("stamped"),
            "scan": "base_scan",
            "use_sim_time": "true",
            "rviz": LaunchConfiguration("rviz") if first else "false",
            "fixed_frame": "world",
        }.items(),
    )
    # Scoped, because what is set for one robot would otherwise hold for the next.
    return GroupAction([navigation])
