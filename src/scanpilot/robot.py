"""What a robot is: footprint, kinematics, limits and lidars, read from ``config/robots/*.yaml``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scanpilot import configuration
from scanpilot.geometry import wrap_angle
from scanpilot.types import Pose2D

Kinematics = Literal["differential", "omnidirectional", "car"]


@dataclass(frozen=True)
class Footprint:
    """Outline on the ground in ``base_link``, metres: a circle, or a convex polygon.

    Attributes:
        radius: of a circle centred on ``base_link``; leave out when ``polygon`` is given.
        polygon: corners (x, y), counter-clockwise, convex, with ``base_link`` inside.
    """

    radius: float | None = None
    polygon: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        if (self.radius is None) == (self.polygon is None):
            raise ValueError("footprint needs either radius or polygon")
        if self.radius is not None and not 0.0 < self.radius < math.inf:
            raise ValueError(f"footprint radius is {self.radius} m, expected more than 0")
        if self.polygon is not None:
            _check_convex(self.polygon)

    @property
    def circumscribed_radius(self) -> float:
        """Radius of the smallest circle about ``base_link`` that holds the footprint, metres."""
        if self.polygon is None:
            assert self.radius is not None
            return self.radius
        return max(math.hypot(x, y) for x, y in self.polygon)

    @property
    def inscribed_radius(self) -> float:
        """Radius of the largest circle about ``base_link`` inside the footprint, metres."""
        if self.polygon is None:
            assert self.radius is not None
            return self.radius
        return min(
            (x0 * y1 - x1 * y0) / math.hypot(x1 - x0, y1 - y0)
            for (x0, y0), (x1, y1) in zip(self.polygon, self.polygon[1:] + self.polygon[:1], strict=True)
        )


def _check_convex(polygon: tuple[tuple[float, float], ...]) -> None:
    if len(polygon) < 3:
        raise ValueError(f"footprint polygon has {len(polygon)} corners, expected at least 3")
    if not all(math.isfinite(v) for corner in polygon for v in corner):
        raise ValueError("footprint polygon has a corner that is not finite")
    n = len(polygon)
    turned = 0.0
    for i in range(n):
        (x0, y0), (x1, y1), (x2, y2) = polygon[i], polygon[(i + 1) % n], polygon[(i + 2) % n]
        if (x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1) <= 0.0:
            raise ValueError("footprint polygon is not convex and counter-clockwise")
        if x0 * y1 - x1 * y0 <= 0.0:
            raise ValueError("footprint polygon does not contain base_link (0, 0)")
        turned += math.atan2(x0 * y1 - x1 * y0, x0 * x1 + y0 * y1)
    # A star turns left at every corner too, but goes round more than once.
    if turned > 3.0 * math.pi:
        raise ValueError("footprint polygon is not convex: it crosses itself")


@dataclass(frozen=True)
class Limits:
    """Bounds of the velocity command, all non-negative; lateral 0 for a robot that cannot move sideways.

    Attributes:
        vx: fastest forward speed, m/s. The policy never drives backwards.
        vy: fastest lateral speed either way, m/s.
        wz: fastest turn either way, rad/s.
        ax: fastest change of vx, m/s^2.
        ay: fastest change of vy, m/s^2.
        awz: fastest change of wz, rad/s^2.
    """

    vx: float
    wz: float
    vy: float = 0.0
    ax: float = math.inf
    ay: float = math.inf
    awz: float = math.inf

    def __post_init__(self) -> None:
        for name in ("vx", "wz"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"limit {name} is {getattr(self, name)}, expected a positive number")
        if not 0.0 <= self.vy < math.inf:
            raise ValueError(f"limit vy is {self.vy}, expected 0 or more")
        for name in ("ax", "ay", "awz"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"limit {name} is {getattr(self, name)}, expected more than 0")


@dataclass(frozen=True)
class Lidar:
    """A planar lidar and where it is mounted.

    Attributes:
        beams: number of beams.
        angle_min, angle_max: directions of first and last beam in the lidar's own frame, radians.
        range_min, range_max: metres.
        x, y, yaw: mount in ``base_link``, metres and radians.
        rate: scans per second.
    """

    beams: int
    angle_min: float = -math.pi
    angle_max: float = math.pi
    range_min: float = 0.1
    range_max: float = 10.0
    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0
    rate: float = 10.0

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"lidar beams is {self.beams}, expected at least 1")
        if not self.angle_min < self.angle_max or self.angle_max - self.angle_min > 2.0 * math.pi + 1e-6:
            raise ValueError(
                f"lidar angles {self.angle_min}..{self.angle_max} rad: expected at most one turn, growing"
            )
        if not 0.0 <= self.range_min < self.range_max < math.inf:
            raise ValueError(f"lidar range {self.range_min}..{self.range_max} m: expected 0 <= min < max")
        if not self.rate > 0.0:
            raise ValueError(f"lidar rate is {self.rate} Hz, expected more than 0")

    @property
    def mount(self) -> Pose2D:
        """Pose of the lidar in ``base_link``."""
        return Pose2D(self.x, self.y, wrap_angle(self.yaw))

    @property
    def angle_increment(self) -> float:
        """Radians between beams.

        A full turn has its last beam one increment before the first direction comes round
        again; a partial field of view has beams on both its edges.
        """
        span = self.angle_max - self.angle_min
        if self.beams == 1:
            return span
        return span / (self.beams if span > 2.0 * math.pi - 1e-6 else self.beams - 1)


@dataclass(frozen=True)
class RobotSpec:
    """A robot as training, simulation and the policy node know it.

    Attributes:
        name: letters, digits and underscores.
        kinematics: how it can move.
        footprint: what must not touch anything.
        limits: bounds of its command.
        lidar: what it sees with.
        control_period: seconds between commands.
        turning_radius: smallest, metres; for a car, which cannot turn on the spot.
        actuation_delay: seconds between a command and its first effect.
    """

    name: str
    kinematics: Kinematics
    footprint: Footprint
    limits: Limits
    lidar: Lidar
    control_period: float = 0.2
    turning_radius: float = 0.0
    actuation_delay: float = 0.0

    def __post_init__(self) -> None:
        # ROS names are ASCII.
        if not (self.name.isascii() and self.name.replace("_", "").isalnum()):
            raise ValueError(f"robot name {self.name!r}: expected letters, digits and underscores")
        if not 0.0 < self.control_period <= 2.0:
            raise ValueError(f"control_period is {self.control_period} s, expected more than 0 and at most 2")
        if self.kinematics != "omnidirectional" and self.limits.vy != 0.0:
            raise ValueError(
                f"limit vy is {self.limits.vy}, but a {self.kinematics} robot cannot move sideways"
            )
        if self.kinematics == "omnidirectional" and self.limits.vy == 0.0:
            raise ValueError("limit vy is 0, but the robot is omnidirectional")
        if (self.kinematics == "car") != (self.turning_radius > 0.0):
            raise ValueError("turning_radius is for a car, which needs one, and for nothing else")
        if not self.actuation_delay >= 0.0:
            raise ValueError(f"actuation_delay is {self.actuation_delay} s, expected 0 or more")

    @property
    def is_symmetric(self) -> bool:
        """Whether its left side is its right side in a mirror: footprint, lidar and field of view."""
        lidar, polygon = self.lidar, self.footprint.polygon
        middle = wrap_angle(lidar.yaw + 0.5 * (lidar.angle_min + lidar.angle_max))
        full_turn = lidar.angle_max - lidar.angle_min > 2.0 * math.pi - lidar.angle_increment - 1e-6
        sees_evenly = lidar.y == 0.0 and (full_turn or abs(middle) < 1e-6)
        corners = set() if polygon is None else {(round(x, 6), round(y, 6)) for x, y in polygon}
        return sees_evenly and {(x, 0.0 - y) for x, y in corners} == corners


def load_robot(path: str | Path) -> RobotSpec:
    """Read a robot from its YAML file.

    Raises:
        scanpilot.configuration.ConfigurationError: names file, line and what was expected.
    """
    return configuration.load(RobotSpec, path)
