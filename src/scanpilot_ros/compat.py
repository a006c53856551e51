"""What differs between the releases of rclpy, Humble to the newest; nodes import it from here.

Everything else that this package takes from rclpy has the same name and meaning in all of them.
"""

from __future__ import annotations

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:
    # Humble.
    from rclpy.qos_event import SubscriptionEventCallbacks

__all__ = ["SubscriptionEventCallbacks"]
