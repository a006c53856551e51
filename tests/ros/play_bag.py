"""Publishes a recorded bag on real topics at its own pace: ``play_bag.py BAG NAMESPACE``.

Scans and odometry as they were sent (serialised, with the recorded reliability), and TF where tf2_msgs
is there. Written out at the end, or when it is killed: nothing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rclpy
from nav_msgs.msg import Odometry
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import LaserScan

BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
STATIC = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def main(bag: Path, namespace: str) -> None:
    rclpy.init()
    node = rclpy.create_node("bag_player")
    publishers = {
        "/scan": node.create_publisher(LaserScan, f"/{namespace}/scan", RELIABLE),
        "/odom": node.create_publisher(Odometry, f"/{namespace}/odom", BEST_EFFORT),
    }
    try:
        from tf2_msgs.msg import TFMessage
    except ImportError:
        pass
    else:
        publishers["/tf"] = node.create_publisher(TFMessage, "/tf", RELIABLE)
        publishers["/tf_static"] = node.create_publisher(TFMessage, "/tf_static", STATIC)
    while not all(publishers[topic].get_subscription_count() for topic in ("/scan", "/odom")):
        time.sleep(0.01)
    with Reader(bag) as reader:
        begun = time.monotonic() - 1e-9 * reader.start_time
        connections = [c for c in reader.connections if c.topic in publishers]
        for connection, stamp, data in reader.messages(connections=connections):
            time.sleep(max(0.0, begun + 1e-9 * stamp - time.monotonic()))
            publishers[connection.topic].publish(bytes(data))
    rclpy.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
