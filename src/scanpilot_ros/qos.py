"""Quality of service of each kind of topic, in one place.

A RELIABLE subscriber hears nothing from a BEST_EFFORT publisher, and no error shows; a BEST_EFFORT
subscriber hears both. So everything that comes from a sensor is subscribed to as BEST_EFFORT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from scanpilot_ros.compat import SubscriptionEventCallbacks

# Scans and odometry: the newest counts, lost ones are not sent again.
SENSOR = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=5,
    reliability=ReliabilityPolicy.BEST_EFFORT,
    durability=DurabilityPolicy.VOLATILE,
)

# What a simulator publishes: RELIABLE can be heard by subscribers of either kind.
SENSOR_SOURCE = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=5,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)

# Commands and goals: must arrive, and an old one is worth nothing once there is a newer.
RELIABLE = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)

# The latest state, also for those who come later.
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)

# Announced policies: each is looked at, so none may be dropped while an earlier one loads.
ANNOUNCEMENTS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1000,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)

# /tf, as tf2 itself has it.
TRANSFORMS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=100,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)

# What is asked of those who publish goals but cannot do it RELIABLE.
ANYTHING = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.BEST_EFFORT,
    durability=DurabilityPolicy.VOLATILE,
)


def subscribe_to_any(
    node: Node, kind: Any, topic: str, callback: Callable[[Any], None], subscriptions: list[Any]
) -> None:
    """Subscribe as RELIABLE, and as BEST_EFFORT as well once somebody publishes who is not.

    Args:
        node: that subscribes.
        kind: type of message.
        topic: its name.
        callback: for each message; hears one twice from a publisher that both can hear.
        subscriptions: the subscription is put here, and so is a second one when it comes to be.
    """

    def incompatible(_event: Any) -> None:
        if len(made) == 1:
            node.get_logger().warning(f"{topic}: a publisher is BEST_EFFORT, what it sends may get lost")
            made.append(node.create_subscription(kind, topic, callback, ANYTHING))
            subscriptions.append(made[1])

    events = SubscriptionEventCallbacks(incompatible_qos=incompatible)
    made = [node.create_subscription(kind, topic, callback, RELIABLE, event_callbacks=events)]
    subscriptions.append(made[0])
