"""Goals and mounts through the real tf2; skipped where only the wheels of ROS are."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="no ROS 2: neither sourced nor installed as wheels")
pytest.importorskip("tf2_ros", reason="the wheels of ROS lack tf2_ros: source a ROS installation")

from geometry_msgs.msg import TransformStamped
from tf2_msgs.msg import TFMessage

from scanpilot.geometry import quaternion_from_yaw
from scanpilot_ros import convert, qos
from tests.ros.conftest import scan_message

Quaternion = tuple[float, float, float, float]


def transform(parent: str, child: str, x: float, quaternion: Quaternion) -> Any:
    message = TransformStamped()
    message.header.frame_id, message.child_frame_id = parent, child
    message.header.stamp = convert.stamp_of(time.time())
    message.transform.translation.x = x
    q = message.transform.rotation
    q.x, q.y, q.z, q.w = quaternion
    return message


@pytest.fixture
def broadcast(bench) -> Iterator[Callable[..., None]]:
    """Keep publishing these transforms until others are given."""
    publisher = bench.node.create_publisher(TFMessage, "/tf", qos.TRANSFORMS)
    current: list[tuple[Any, ...]] = []
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.05):
            publisher.publish(TFMessage(transforms=[transform(*one) for one in list(current)]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def give(*transforms: tuple[str, str, float, Quaternion]) -> None:
        current[:] = transforms

    yield give
    done.set()
    thread.join()
    bench.node.destroy_publisher(publisher)


UPRIGHT = quaternion_from_yaw(0.0)
LASER = ("base_link", "laser", 0.1, UPRIGHT)


def test_goal_in_the_map_follows_the_map(start_node, robot, policy, broadcast) -> None:
    broadcast(LASER, ("map", "odom", 1.0, UPRIGHT))
    node = start_node("policy_node", "mapped", policy=policy)
    fake = robot("mapped")
    fake.send_goal(x=5.0, frame="map")
    assert fake.reports("driving", "goal is 4.0 m away", seconds=20.0), f"{fake.status}\n{node.output}"
    broadcast(LASER, ("map", "odom", 2.0, UPRIGHT))
    assert fake.reports("driving", "goal is 3.0 m away"), f"{fake.status}\n{node.output}"
    broadcast(LASER, ("map", "odom", 4.9, UPRIGHT))
    assert fake.reports("reached"), f"{fake.status}\n{node.output}"
    fake.send_goal(x=5.0, frame="kitchen")
    assert fake.reports("bad input", "TF does not know frame 'kitchen'"), f"{fake.status}\n{node.output}"


@pytest.mark.parametrize(
    ("name", "quaternion", "words"),
    [
        ("upright", quaternion_from_yaw(math.pi / 2), "x 0.200 m, y 0.000 m, yaw 1.571 rad\n"),
        ("hanging", (1.0, 0.0, 0.0, 0.0), "x 0.200 m, y 0.000 m, yaw 0.000 rad, upside down\n"),
    ],
)
def test_mount_comes_from_tf(
    start_node, robot, policy, broadcast, name: str, quaternion: Quaternion, words: str
) -> None:
    broadcast(("base_link", name, 0.2, quaternion))
    node = start_node("policy_node", name, policy=policy)
    fake = robot(name)
    fake.scan = lambda: scan_message(frame=name)
    assert fake.drives(), f"{fake.status}\n{node.output}"
    assert f"lidar '{name}' sits at {words}" in node.output


def test_scan_in_a_frame_that_tf_does_not_know_stops(start_node, robot, policy, broadcast) -> None:
    broadcast(LASER)
    node = start_node("policy_node", "lost", policy=policy)
    fake = robot("lost")
    fake.scan = lambda: scan_message(frame="camera")
    fake.send_goal()
    assert fake.reports("bad input", "/lost/scan: TF does not know frame 'camera'", seconds=20.0), node.output
    fake.scan = scan_message
    assert fake.reports("driving"), f"{fake.status}\n{node.output}"
