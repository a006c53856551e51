"""Publishes a recorded bag on real topics at its own pace: ``play_bag.py BAG NAMESPACE [TOPIC=NAME ...]``.

BAG is a rosbag2 or a ROS 1 bag. Each TOPIC goes out as NAME below NAMESPACE (default: /scan as scan, /odom as
odom), serialised as it was recorded, or converted from ROS 1 on the fly; TF goes out as such where tf2_msgs
is there. ``odom=standing`` stands for a bag without odometry: one of a robot that stands is added.
"""

from __future__ import annotations

import array
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from nav_msgs.msg import Odometry
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import LaserScan

from scanpilot_ros import convert

BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
STATIC = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
STANDING = "standing"


def main(bag: Path, namespace: str, names: dict[str, str]) -> None:
    rclpy.init()
    node = rclpy.create_node("bag_player")
    inputs = {}
    for topic, name in names.items():
        odometry = name in ("odom", STANDING)
        kind, profile = (Odometry, BEST_EFFORT) if odometry else (LaserScan, RELIABLE)
        inputs[topic] = node.create_publisher(kind, f"/{namespace}/{'odom' if odometry else name}", profile)
    while not all(publisher.get_subscription_count() for publisher in inputs.values()):
        time.sleep(0.01)
    for topic, name in names.items():
        if name == STANDING:
            threading.Thread(target=stand, args=(inputs[topic],), daemon=True).start()
    play(bag, {**inputs, **transforms(node)})
    rclpy.shutdown()


def transforms(node: Any) -> dict[str, Any]:
    """Publishers of TF, where its messages are there."""
    try:
        from tf2_msgs.msg import TFMessage
    except ImportError:
        return {}
    return {
        "/tf": node.create_publisher(TFMessage, "/tf", RELIABLE),
        "/tf_static": node.create_publisher(TFMessage, "/tf_static", STATIC),
    }


def play(bag: Path, publishers: dict[str, Any]) -> None:
    with AnyReader([bag], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
        connections = [c for c in reader.connections if c.topic in publishers]
        begun = None
        for connection, stamp, data in reader.messages(connections=connections):
            begun = time.monotonic() - 1e-9 * stamp if begun is None else begun
            time.sleep(max(0.0, begun + 1e-9 * stamp - time.monotonic()))
            publisher = publishers[connection.topic]
            if reader.is2:
                publisher.publish(bytes(data))
            else:
                publisher.publish(converted(reader.deserialize(data, connection.msgtype), publisher.msg_type))


def converted(recorded: Any, kind: Any) -> Any:
    """A ROS 1 message, as the rosbags library reads it, as the ROS 2 message of the same name."""
    message = kind()
    for name in kind.get_fields_and_field_types():
        value = getattr(recorded, name)
        field = getattr(message, name)
        if isinstance(field, array.array):
            value = array.array(field.typecode, np.asarray(value, np.dtype(field.typecode)).tobytes())
        elif isinstance(field, list):
            # Of messages; only transforms are such here.
            from geometry_msgs.msg import TransformStamped

            value = [converted(one, TransformStamped) for one in value]
        elif hasattr(field, "get_fields_and_field_types"):
            value = converted(value, type(field))
        setattr(message, name, value)
    return message


def stand(publisher: Any) -> None:
    while True:
        stamp = convert.stamp_of(time.time())
        publisher.publish(convert.odometry_message(np.zeros(3), np.zeros(3), "odom", "base_link", stamp))
        time.sleep(0.05)


if __name__ == "__main__":
    given = dict(argument.rsplit("=", 1) for argument in sys.argv[3:])
    main(Path(sys.argv[1]), sys.argv[2], given or {"/scan": "scan", "/odom": "odom"})
