"""The launch files, run by the real launch and launch_ros."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")

from scanpilot_ros.parameters import PolicyNodeParameters
from tests.ros.conftest import Bench, FakeRobot, Process, moving, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launch(start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    """Start a launch file as ``ros2 launch`` would."""
    # Not `launch`: without it, Python takes the folder of that name in the repository for a package.
    pytest.importorskip("launch_ros", reason="the wheels of ROS lack launch_ros: source a ROS installation")
    import sys

    # Set-up made .venv a prefix that holds this package; in a sourced colcon workspace it is there already.
    prefixes = [sys.prefix, *filter(None, [os.environ.get("AMENT_PREFIX_PATH")])]
    monkeypatch.setenv("AMENT_PREFIX_PATH", os.pathsep.join(prefixes))

    def begin(file: str, **arguments: Any) -> Process:
        assignments = [f"{name}:={value}" for name, value in arguments.items()]
        return start(Path(__file__).with_name("run_launch.py"), ROOT / "launch" / file, *assignments)

    return begin


def ends_cleanly(process: Process) -> None:
    """Ctrl-C: every node hears it from the terminal and may hear it again from launch."""
    process.signal(signal.SIGINT)
    assert process.wait() == 0, process.output
    assert "process has died" not in process.output, process.output


def test_simulation_starts_a_policy_node_for_each_robot(
    launch: Callable[..., Process], bench: Bench, policy: Path
) -> None:
    from geometry_msgs.msg import PoseStamped, Twist
    from nav_msgs.msg import Odometry

    from scanpilot_ros import qos

    process = launch("simulation.launch.py", world="clutter:3", robots=2, robot="generic_diff", policy=policy)
    names = ["robot_0", "robot_1"]
    odometry = {name: bench.listen(Odometry, f"/{name}/odom", qos.SENSOR) for name in names}
    commands = {name: bench.listen(Twist, f"/{name}/cmd_vel", qos.RELIABLE) for name in names}
    goals = {name: bench.node.create_publisher(PoseStamped, f"/{name}/goal_pose", 1) for name in names}

    def drives(name: str) -> bool:
        goal = PoseStamped()
        goal.header.frame_id = f"{name}/odom"
        goal.pose.position.x = 3.0
        goal.pose.orientation.w = 1.0
        goals[name].publish(goal)
        return bool(odometry[name]) and any(moving(seen.message) for seen in list(commands[name]))

    for name in names:
        assert until(lambda name=name: drives(name), 60.0), process.output
    assert process.code is None

    ends_cleanly(process)


def test_navigation_uses_the_names_of_the_driver(
    launch: Callable[..., Process], robot: Callable[..., FakeRobot], policy: Path
) -> None:
    base = robot("base", stamped=True)
    topics = {topic: f"/base/{topic}" for topic in ("scan", "odom", "goal_pose", "cmd_vel")}
    process = launch("navigation.launch.py", policy=policy, namespace="amr", stamped="true", **topics)
    assert until(lambda: base.commands, 60.0), process.output
    base.send_goal()
    assert until(lambda: moving(base.commands[-1].message), 20.0), process.output

    ends_cleanly(process)


@pytest.mark.parametrize(
    ("file", "arguments", "reason"),
    [
        ("simulation.launch.py", {"sim": "stage"}, "sim:=stage will use the package stage_ros2"),
        ("simulation.launch.py", {"sim": "webots"}, "embedded"),
        ("simulation.launch.py", {"world": "no_such"}, "no_such"),
        ("navigation.launch.py", {"policy": "no_such"}, "policy no_such: neither shipped"),
        ("navigation.launch.py", {"stamped": "yes"}, "stamped:=yes is neither true nor false"),
    ],
)
def test_a_wrong_argument_is_named(
    launch: Callable[..., Process], policy: Path, file: str, arguments: dict[str, str], reason: str
) -> None:
    process = launch(file, **{"policy": policy, **arguments})
    assert process.wait() != 0
    assert reason in process.output


def test_the_parameter_file_states_the_defaults() -> None:
    from dataclasses import fields

    import numpy as np

    given = yaml.safe_load((ROOT / "config/policy_node.yaml").read_text())["/**"]["ros__parameters"]
    flat: dict[str, Any] = {}
    for name, value in given.items():
        flat.update(
            {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
        )
    defaults = {f.metadata["name"] or f.name: f.default for f in fields(PolicyNodeParameters)}
    for name in ("policy", "robot"):  # arguments of the launch file
        del defaults[name]
    assert flat.keys() == defaults.keys()
    for name, default in defaults.items():
        np.testing.assert_equal(flat[name], default, err_msg=name)
