"""What RViz shows of one robot's navigation."""

from __future__ import annotations

import math
from typing import Any

from geometry_msgs.msg import Point
from visualization_msgs.msg import Marker, MarkerArray

from scanpilot.geometry import quaternion_from_yaw
from scanpilot.navigator import Command, State
from scanpilot.robot import RobotSpec
from scanpilot.types import Pose2D, Twist2D

_HORIZON = 1.5
_ARC_POINTS = 16
_COLOURS = {State.DRIVING: (0.1, 0.7, 0.2), State.REACHED: (0.1, 0.4, 0.9)}
_STOPPED = (0.9, 0.2, 0.1)


def navigation(
    command: Command, goal: Pose2D | None, robot: RobotSpec, frames: tuple[str, str], stamp: Any
) -> MarkerArray:
    """Goal, predicted arc, footprint and reason.

    Args:
        command: what is sent now.
        goal: in the odometry frame.
        robot: gives the footprint.
        frames: names of the odometry frame and of the robot's.
        stamp: of the messages.
    """
    odometry_frame, base_frame = frames
    colour = _COLOURS.get(command.state, _STOPPED)
    arc = _marker("arc", Marker.LINE_STRIP, base_frame, stamp, colour)
    arc.scale.x = 0.03
    arc.points = [Point(x=x, y=y, z=0.05) for x, y in predicted_arc(command.twist)]
    outline = _marker("footprint", Marker.LINE_STRIP, base_frame, stamp, colour)
    outline.scale.x = 0.02
    outline.points = [Point(x=x, y=y, z=0.02) for x, y in _outline(robot)]
    text = _marker("reason", Marker.TEXT_VIEW_FACING, base_frame, stamp, (1.0, 1.0, 1.0))
    text.scale.z, text.pose.position.z, text.text = 0.15, 0.6, f"{command.state.value}: {command.reason}"
    arrow = _marker("goal", Marker.ARROW, odometry_frame, stamp, (0.9, 0.6, 0.0))
    if goal is None:
        arrow.action = Marker.DELETE
    else:
        arrow.scale.x, arrow.scale.y, arrow.scale.z = 0.5, 0.08, 0.08
        arrow.pose.position.x, arrow.pose.position.y = goal.x, goal.y
        q = arrow.pose.orientation
        q.x, q.y, q.z, q.w = quaternion_from_yaw(goal.yaw)
    return MarkerArray(markers=[arc, outline, text, arrow])


def predicted_arc(twist: Twist2D) -> list[tuple[float, float]]:
    """Where ``base_link`` goes in the next 1.5 s if the command is held, metres in ``base_link``."""
    points = []
    x = y = yaw = 0.0
    dt = _HORIZON / (_ARC_POINTS - 1)
    for _ in range(_ARC_POINTS):
        points.append((x, y))
        middle = yaw + 0.5 * twist.wz * dt
        x += dt * (twist.vx * math.cos(middle) - twist.vy * math.sin(middle))
        y += dt * (twist.vx * math.sin(middle) + twist.vy * math.cos(middle))
        yaw += twist.wz * dt
    return points


def _outline(robot: RobotSpec) -> list[tuple[float, float]]:
    corners = robot.footprint.polygon
    if corners is None:
        radius = robot.footprint.circumscribed_radius
        steps = [2.0 * math.pi * i / 24 for i in range(24)]
        corners = tuple((radius * math.cos(a), radius * math.sin(a)) for a in steps)
    return [*corners, corners[0]]


def _marker(namespace: str, kind: int, frame: str, stamp: Any, colour: tuple[float, float, float]) -> Marker:
    marker = Marker(ns=namespace, id=0, type=kind, action=Marker.ADD)
    marker.header.frame_id, marker.header.stamp = frame, stamp
    marker.color.r, marker.color.g, marker.color.b = colour
    marker.color.a = 1.0
    return marker
