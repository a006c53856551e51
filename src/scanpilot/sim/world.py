"""Worlds: exact planar geometry of everything that stands still, and where robots are placed.

Geometry is vectors (line segments and circles), never a grid, so ranges and contacts
are exact. This module knows nothing of files, robots' motion or beams: readers and
generators build worlds with `build_world`, the simulator indexes and drives in them.

Frame: the world frame, metres, radians, counter-clockwise positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scanpilot.robot import Footprint, Kinematics, Lidar
from scanpilot.types import DoubleArray, Pose2D

OBSTACLE = 1
VISIBLE = 2
FlagArray = NDArray[np.uint8]

ALL_HEIGHTS = (-math.inf, math.inf)


class WorldFileError(ValueError):
    """A world file that cannot be used; the message names file, line and what was expected."""


@dataclass(frozen=True, eq=False)
class Solid:
    """A body bounded by closed loops; a point is inside where an odd number of loops surround it.

    Attributes:
        loops: each ``(K, 2)`` corners in the world frame, metres, in any orientation; the last
            corner joins the first. Several loops make holes or islands.
        z: lowest and highest point, metres; decides what beams and robots meet it.
        obstacle: whether robots of its height collide with it.
        visible: whether beams at its height see it.
        color: for pictures, a name or ``#rrggbb``.
        name: of the model it came from, for messages and pictures.
        oriented: the maker vouches that every loop has the solid on its left and no repeated corner.
    """

    loops: tuple[DoubleArray, ...]
    z: tuple[float, float] = ALL_HEIGHTS
    obstacle: bool = True
    visible: bool = True
    color: str = "#555555"
    name: str = ""
    oriented: bool = False


@dataclass(frozen=True)
class Disc:
    """A solid upright cylinder, the circular sibling of `Solid`."""

    x: float
    y: float
    radius: float
    z: tuple[float, float] = ALL_HEIGHTS
    obstacle: bool = True
    visible: bool = True
    color: str = "#555555"


@dataclass(frozen=True)
class PlacedLidar:
    """A lidar of a placed robot and the height of its beams, metres."""

    lidar: Lidar
    height: float = 0.0


@dataclass(frozen=True)
class PlacedRobot:
    """A robot as a world file places it.

    Attributes:
        name: as topics and messages call it.
        pose: of ``base_link`` in the world frame.
        kinematics: how it can move.
        footprint: what collides.
        lidars: in file order; may be empty.
        parts: its bodies in base_link, with their heights.
        z: lowest and highest point of the body, metres.
        wheelbase: metres, of a car.
        velocity_bounds: largest (vx, vy, wz), m/s and rad/s.
        color: for pictures.
    """

    name: str
    pose: Pose2D
    kinematics: Kinematics
    footprint: Footprint
    lidars: tuple[PlacedLidar, ...] = ()
    parts: tuple[Solid, ...] = ()
    z: tuple[float, float] = (0.0, 1.0)
    wheelbase: float = 1.0
    velocity_bounds: tuple[float, float, float] = (1.0, 1.0, math.pi / 2.0)
    color: str = "#cc0000"


@dataclass(frozen=True, eq=False)
class World:
    """What stands in one world; made by `build_world`.

    Attributes:
        name: for messages and pictures.
        segments: ``(S, 4)`` x0, y0, x1, y1, metres; the solid side is on the left of the way
            from the first to the second end, so a segment is seen and hit from its right only.
        segment_flags: ``(S,)`` bits `OBSTACLE` and `VISIBLE`.
        circles: ``(C, 3)`` x, y, radius, metres; solid discs.
        circle_flags: ``(C,)`` bits as above.
        bounds: lowest x, lowest y, highest x, highest y of everything, metres.
        area: the same of where robots are meant to be: within ``bounds``, and equal to it unless the
            maker knows better (a closed arena whose walls have an outside).
        solids, discs: the bodies the above was made from, for drawing and inside tests.
        robots: as the world file places them; empty for generated worlds.
        interval: seconds of one simulation step the world file asks for.
    """

    name: str
    segments: DoubleArray
    segment_flags: FlagArray
    circles: DoubleArray
    circle_flags: FlagArray
    bounds: tuple[float, float, float, float]
    area: tuple[float, float, float, float]
    solids: tuple[Solid, ...] = ()
    discs: tuple[Disc, ...] = ()
    robots: tuple[PlacedRobot, ...] = ()
    interval: float = 0.1
    _cache: dict[str, object] = field(default_factory=dict, repr=False)


def wall(x0: float, y0: float, x1: float, y1: float, color: str = "#555555") -> Solid:
    """An infinitely thin wall between two points, seen and hit from both sides."""
    return Solid((np.array([(x0, y0), (x1, y1)], dtype=np.float64),), color=color)


def box(x: float, y: float, width: float, height: float, yaw: float = 0.0) -> DoubleArray:
    """``(4, 2)`` corners of a rectangle centred on ``x, y`` and turned by ``yaw``."""
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]) * (width, height)
    c, s = math.cos(yaw), math.sin(yaw)
    return np.asarray(corners @ np.array([(c, s), (-s, c)]) + (x, y), dtype=np.float64)


def regular_polygon(x: float, y: float, radius: float, corners: int, yaw: float = 0.0) -> DoubleArray:
    """``(corners, 2)`` corners of a regular polygon."""
    angles = yaw + np.arange(corners) * (2.0 * math.pi / corners)
    return np.stack((x + radius * np.cos(angles), y + radius * np.sin(angles)), axis=1)


def convex_hull(points: DoubleArray) -> DoubleArray:
    """Corners of the convex hull, counter-clockwise, without corners in line (Andrew's chain)."""
    ordered = sorted({(round(float(x), 9), round(float(y), 9)) for x, y in points})

    def half(sequence: list[tuple[float, float]]) -> list[tuple[float, float]]:
        chain: list[tuple[float, float]] = []
        for p in sequence:
            while len(chain) >= 2:
                (ax, ay), (bx, by) = chain[-2], chain[-1]
                if (bx - ax) * (p[1] - ay) - (by - ay) * (p[0] - ax) > 3e-8:
                    break
                chain.pop()
            chain.append(p)
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]), dtype=np.float64).reshape(-1, 2)


def signed_area(loop: DoubleArray) -> float:
    """Area of a closed loop, m^2; positive when it runs counter-clockwise."""
    x, y = loop[:, 0], loop[:, 1]
    return 0.5 * float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))


def build_world(
    name: str,
    solids: Sequence[Solid] = (),
    discs: Sequence[Disc] = (),
    *,
    bounds: tuple[float, float, float, float] | None = None,
    area: tuple[float, float, float, float] | None = None,
    robots: Sequence[PlacedRobot] = (),
    interval: float = 0.1,
    beam_height: float | None = None,
    body: tuple[float, float] | None = None,
) -> World:
    """Turn bodies into oriented segments and circles.

    Args:
        name: of the world.
        solids, discs: what stands in it.
        bounds: if the world is larger than what stands in it.
        area: if robots are to be placed in a part of it only.
        robots: as placed.
        interval: seconds of one step.
        beam_height: only bodies that reach this height are visible; None sees all.
        body: lowest and highest point of the robots: only bodies that overlap it are obstacles.
    """
    segments: list[DoubleArray] = []
    flags: list[FlagArray] = []
    for solid in solids:
        flag = _flag(solid, beam_height, body)
        for loop in solid.loops if solid.oriented else _oriented_loops(solid.loops):
            edges = np.concatenate((loop, np.roll(loop, -1, axis=0)), axis=1)
            segments.append(edges)
            flags.append(np.full(len(edges), flag, dtype=np.uint8))
    all_segments = np.concatenate(segments) if segments else np.zeros((0, 4))
    all_flags = np.concatenate(flags) if flags else np.zeros(0, dtype=np.uint8)
    circles = np.array([(d.x, d.y, d.radius) for d in discs], dtype=np.float64).reshape(-1, 3)
    circle_flags = np.array([_flag(d, beam_height, body) for d in discs], dtype=np.uint8)
    whole = _bounds(all_segments, circles, robots, bounds)
    return World(
        name=name,
        segments=all_segments,
        segment_flags=all_flags,
        circles=circles,
        circle_flags=circle_flags,
        bounds=whole,
        area=area or whole,
        solids=tuple(solids),
        discs=tuple(discs),
        robots=tuple(robots),
        interval=interval,
    )


def cut(world: World, beam_height: float | None, body: tuple[float, float] | None) -> World:
    """The same world as seen by a lidar at another height and hit by a body of another height."""
    return build_world(
        world.name,
        world.solids,
        world.discs,
        bounds=world.bounds,
        area=world.area,
        robots=world.robots,
        interval=world.interval,
        beam_height=beam_height,
        body=body,
    )


def _flag(solid: Solid | Disc, beam_height: float | None, body: tuple[float, float] | None) -> int:
    low, high = solid.z
    seen = solid.visible and (beam_height is None or low <= beam_height <= high)
    hit = solid.obstacle and (body is None or (low < body[1] and body[0] < high))
    return (VISIBLE if seen else 0) | (OBSTACLE if hit else 0)


def _oriented_loops(loops: tuple[DoubleArray, ...]) -> list[DoubleArray]:
    """Loops turned so that the solid is on the left, without repeated corners."""
    cleaned = [_without_repeats(np.asarray(loop, dtype=np.float64)) for loop in loops]
    cleaned = [loop for loop in cleaned if len(loop) >= 2]
    if len(cleaned) == 1:
        loop = cleaned[0]
        if _crosses_itself(loop):
            # No side is the solid one all along; both are, as of a thin wall.
            return [loop, loop[::-1].copy()]
        return [loop if signed_area(loop) >= 0.0 else loop[::-1].copy()]
    oriented = []
    for index, loop in enumerate(cleaned):
        # A corner of one loop is inside an even number of the other loops: the loop is an outer one.
        depth = sum(
            int(points_in_loop(loop[:1], other)[0])
            for other_index, other in enumerate(cleaned)
            if other_index != index
        )
        counter_clockwise = depth % 2 == 0
        oriented.append(loop if (signed_area(loop) >= 0.0) == counter_clockwise else loop[::-1].copy())
    return oriented


def _without_repeats(loop: DoubleArray) -> DoubleArray:
    keep = np.any(np.abs(loop - np.roll(loop, 1, axis=0)) > 1e-9, axis=1)
    return loop[keep]


def _crosses_itself(loop: DoubleArray) -> bool:
    n = len(loop)
    if n <= 3 or n > 64:
        # Longer loops come from bitmaps and curves, whose makers do not cross them.
        return False
    a, b = loop, np.roll(loop, -1, axis=0)
    for i in range(n):
        for j in range(i + 2, n - (1 if i == 0 else 0)):
            if _properly_cross(a[i], b[i], a[j], b[j]):
                return True
    return False


def _properly_cross(a: DoubleArray, b: DoubleArray, c: DoubleArray, d: DoubleArray) -> bool:
    def side(p: DoubleArray, q: DoubleArray, r: DoubleArray) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return side(a, b, c) * side(a, b, d) < -1e-15 and side(c, d, a) * side(c, d, b) < -1e-15


def points_in_loop(points: DoubleArray, loop: DoubleArray) -> NDArray[np.bool_]:
    """Whether each of ``(P, 2)`` points is inside a closed loop (even-odd rule)."""
    x, y = points[:, 0:1], points[:, 1:2]
    x0, y0 = loop[None, :, 0], loop[None, :, 1]
    x1, y1 = np.roll(x0, -1, axis=1), np.roll(y0, -1, axis=1)
    spans = (y0 > y) != (y1 > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = x0 + (y - y0) * (x1 - x0) / (y1 - y0)
    inside: NDArray[np.bool_] = np.count_nonzero(spans & (x < crossing), axis=1) % 2 == 1
    return inside


def _bounds(
    segments: DoubleArray,
    circles: DoubleArray,
    robots: Sequence[PlacedRobot],
    given: tuple[float, float, float, float] | None,
) -> tuple[float, float, float, float]:
    points = [
        segments[:, :2],
        segments[:, 2:],
        circles[:, :2] - circles[:, 2:],
        circles[:, :2] + circles[:, 2:],
    ]
    for robot in robots:
        reach = robot.footprint.circumscribed_radius
        centre = np.array([[robot.pose.x, robot.pose.y]])
        points += [centre - reach, centre + reach]
    if given is not None:
        points += [np.array([given[:2]]), np.array([given[2:]])]
    every = np.concatenate(points)
    if not len(every):
        return (-1.0, -1.0, 1.0, 1.0)
    (x0, y0), (x1, y1) = every.min(axis=0), every.max(axis=0)
    return (float(x0), float(y0), float(x1), float(y1))
