"""What a bag looks like: the robot's path with its scans over it, and its speed against its commands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from scanpilot.bags.info import Description
from scanpilot.geometry import transform_points
from scanpilot.observation import obstacle_points
from scanpilot.types import DoubleArray, Pose2D


def draw(description: Description, path: Path, title: str) -> None:
    """Write a PNG (or what the name ends in)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_map(left, description)
    _draw_speeds(right, description)
    figure.savefig(path, dpi=100)


def _draw_map(axes: Any, description: Description) -> None:
    trace, mount = description.path, description.mount
    for number, scan in enumerate(description.scans):
        points = obstacle_points(scan, mount.pose, mount.flipped)
        if len(trace):
            pose = _pose_at(trace, scan.stamp)
            if pose is None:
                continue
            points = transform_points(pose, points)
        shade = number / max(1, len(description.scans) - 1)
        color = (0.2 + 0.6 * shade, 0.3, 0.8 - 0.6 * shade)
        axes.plot(*points.T, ".", markersize=1.0, color=color, alpha=0.5)
    if len(trace):
        axes.plot(trace[:, 1], trace[:, 2], color="black", linewidth=1.2)
        axes.plot(trace[0, 1], trace[0, 2], "o", color="black", label="start")
        step = max(1, len(trace) // 15)
        axes.quiver(
            trace[::step, 1],
            trace[::step, 2],
            np.cos(trace[::step, 3]),
            np.sin(trace[::step, 3]),
            color="black",
            width=0.003,
            scale=30,
        )
        axes.set_title("path in the odometry frame, scans from blue to red", fontsize=9)
    else:
        axes.set_title("scans in the robot's frame; no odometry", fontsize=9)
    axes.set_aspect("equal", "datalim")
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")


def _draw_speeds(axes: Any, description: Description) -> None:
    speeds, commands = description.speeds, description.commands
    if len(commands):
        # Commands are dated by the recorder; where odometry's clock is another, each begins at 0.
        shared = description.stream.same_clock and len(speeds)
        at = commands[:, 0] - (speeds[0, 0] if shared else commands[0, 0])
        axes.plot(at, commands[:, 1], color="#d08a00", linewidth=0.8, label="commanded vx (m/s)")
        axes.plot(at, commands[:, 2], color="#9467bd", linewidth=0.8, label="commanded wz (rad/s)")
    if len(speeds):
        at = speeds[:, 0] - speeds[0, 0]
        axes.plot(at, speeds[:, 1], color="#1f77b4", linewidth=0.8, label="odometry vx")
        axes.plot(at, speeds[:, 3], color="#2a7f3f", linewidth=0.8, label="odometry wz")
    if len(commands) or len(speeds):
        axes.legend(fontsize=8)
    axes.set_xlabel("seconds")
    axes.set_title("speeds", fontsize=9)


def _pose_at(trace: DoubleArray, stamp: float) -> Pose2D | None:
    """The newest pose by this stamp; none before the first."""
    index = int(np.searchsorted(trace[:, 0], stamp, side="right")) - 1
    if index < 0 or not math.isfinite(stamp):
        return None
    return Pose2D(*map(float, trace[index, 1:]))
