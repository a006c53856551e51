"""scanpilot: a learned local navigator for ROS 2 robots.

    policy = scanpilot.load_policy(path)
    action = policy.act(triplet)

Importing this package starts nothing and pulls in neither ROS nor plotting libraries; torch is
imported when a policy is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scanpilot.types import LaserScan, Odometry, Pose2D, Triplet, Twist2D

if TYPE_CHECKING:
    from scanpilot.checkpoint import load_policy
    from scanpilot.policy import Policy

__version__ = "0.1.0"

__all__ = ["LaserScan", "Odometry", "Policy", "Pose2D", "Triplet", "Twist2D", "__version__", "load_policy"]


def __getattr__(name: str) -> Any:
    # Lazily, because torch takes seconds to import and the simulator does without it.
    if name == "load_policy":
        from scanpilot.checkpoint import load_policy

        return load_policy
    if name == "Policy":
        from scanpilot.policy import Policy

        return Policy
    raise AttributeError(f"module 'scanpilot' has no attribute {name!r}")
