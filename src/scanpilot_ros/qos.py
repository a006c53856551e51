"""Quality of service of each kind of topic, in one place.

A RELIABLE subscriber hears nothing from a BEST_EFFORT publisher, and no error shows; a BEST_EFFORT
subscriber hears both. So everything that comes from a sensor is subscribed to as BEST_EFFORT.
"""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

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
