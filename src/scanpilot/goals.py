"""Where to drive to next: goals in a row, a planned path, and when one has arrived.

A route is given in one frame, which may move against odometry (a map's does); whoever drives says where
the robot is in that frame and gets the next target in it. Nothing here knows topics, policies or time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from scanpilot.geometry import relative, wrap_angle
from scanpilot.robot import Footprint
from scanpilot.types import DoubleArray, InvalidInput, Pose2D


@dataclass(frozen=True)
class Target:
    """Where to drive to now.

    Attributes:
        pose: in the route's frame.
        final: it is the route's end; only there does the robot stop.
        remaining: metres to the route's end, along it.
        words: what it is, for people.
    """

    pose: Pose2D
    final: bool
    remaining: float
    words: str


class Waypoints:
    """Goals to be visited one after the other; all but the last are driven through.

    Args:
        poses: at least one.
        tolerance: metres; nearer than this a goal that is not the last has been visited.

    Raises:
        InvalidInput: there is none, or a number is not finite.
    """

    def __init__(self, poses: Sequence[Pose2D], tolerance: float = 0.3) -> None:
        _check(np.array(poses, dtype=np.float64).reshape(-1, 3))
        self.poses = tuple(poses)
        self._tolerance = tolerance
        self._index = 0

    @property
    def end(self) -> Pose2D:
        """The last goal."""
        return self.poses[-1]

    def target(self, robot: Pose2D, _points: DoubleArray | None = None) -> Target:
        """The goal that is next for a robot here."""
        last = len(self.poses) - 1
        while self._index < last and _distance(robot, self.poses[self._index]) < self._tolerance:
            self._index += 1
        ahead = (robot, *self.poses[self._index :])
        remaining = sum(_distance(a, b) for a, b in itertools.pairwise(ahead))
        distance = _distance(*ahead[:2])
        which = "goal" if last == 0 else f"goal {self._index + 1} of {last + 1}"
        return Target(
            self.poses[self._index], self._index == last, remaining, f"{which} is {distance:.1f} m away"
        )


class PlannedPath:
    """A path, such as a global planner's, followed by sub-goals a little ahead on it.

    A local navigator drives to what it can see: the sub-goal comes nearer while an obstacle stands
    between it and the robot, so that it leads round corners and out of dead ends.

    Args:
        poses: ``(P, 3)`` along the path; headings matter at the end alone.
        look_ahead: metres of path from the place nearest to the robot to the sub-goal.
        clearance: metres to either side of the way to the sub-goal that must be free to call it seen.

    Raises:
        InvalidInput: it is empty, or a number is not finite.
    """

    # A sub-goal nearer than this would have the policy slow down for it.
    _NEAREST = 0.6
    _STEP = 0.1

    def __init__(self, poses: DoubleArray, look_ahead: float = 1.5, clearance: float = 0.2) -> None:
        _check(poses)
        steps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
        # Poses on top of one another have no direction between them.
        kept = np.concatenate(([True], steps > 1e-6))
        self._points = poses[kept, :2]
        self._along = np.concatenate(([0.0], np.cumsum(steps[steps > 1e-6])))
        self._look_ahead, self._clearance = look_ahead, clearance
        self._progress = 0.0
        self.end = Pose2D(*map(float, poses[-1]))

    @property
    def length(self) -> float:
        """Metres."""
        return float(self._along[-1])

    def target(self, robot: Pose2D, points: DoubleArray | None = None) -> Target:
        """The sub-goal for a robot here that sees ``(P, 2)`` points in its own frame."""
        place = np.array(robot[:2])
        aside = self._advance(place)
        remaining = self.length - self._progress + aside
        words = f"following the plan, {remaining:.1f} m to go"
        reach = self._seen(robot, points)
        if self._progress + reach >= self.length:
            return Target(self.end, True, remaining, words)
        return Target(self._pose(self._progress + reach), False, remaining, words)

    def _advance(self, place: DoubleArray) -> float:
        """Move progress to the place on the path nearest to the robot; returns how far that is, metres.

        Never backwards, and not to where the path passes by again later, unless the robot is far off.
        """
        for window in (2.0 * self._look_ahead, math.inf):
            along, aside = self._nearest(place, self._progress, self._progress + window)
            if aside <= self._look_ahead:
                break
        self._progress = along
        return aside

    def _nearest(self, place: DoubleArray, low: float, high: float) -> tuple[float, float]:
        """Arc length between these of the path's point nearest to a place, and its distance to it."""
        if len(self._points) == 1:
            return 0.0, float(np.hypot(*(place - self._points[0])))
        first = max(0, int(np.searchsorted(self._along, low, side="right")) - 1)
        last = min(len(self._points) - 1, max(first + 1, int(np.searchsorted(self._along, high))))
        first = min(first, last - 1)
        starts, ways = self._points[first:last], np.diff(self._points[first : last + 1], axis=0)
        lengths = np.diff(self._along[first : last + 1])
        share = ((place - starts) * ways).sum(axis=1) / lengths**2
        least = np.where(np.arange(first, last) == first, (low - self._along[first]) / lengths, 0.0)
        share = np.clip(share, np.clip(least, 0.0, 1.0), 1.0)
        distances = np.hypot(*(starts + share[:, None] * ways - place).T)
        i = int(np.argmin(distances))
        return float(self._along[first + i] + share[i] * lengths[i]), float(distances[i])

    def _seen(self, robot: Pose2D, points: DoubleArray | None) -> float:
        """How far ahead on the path the farthest sub-goal is that the robot sees, metres."""
        if points is None or not len(points):
            return self._look_ahead
        for reach in np.arange(self._look_ahead, self._NEAREST, -self._STEP):
            pose = self._pose(min(self._progress + float(reach), self.length))
            if free_way(relative(pose, robot), points, self._clearance):
                return float(reach)
        return self._NEAREST

    def _pose(self, along: float) -> Pose2D:
        """The pose at this arc length, heading along the path."""
        along = min(max(along, 0.0), self.length)
        x, y = (float(np.interp(along, self._along, self._points[:, i])) for i in (0, 1))
        if len(self._points) == 1:
            return Pose2D(x, y, self.end.yaw)
        i = min(int(np.searchsorted(self._along, along, side="right")), len(self._points) - 1)
        dx, dy = self._points[i] - self._points[i - 1]
        return Pose2D(x, y, math.atan2(dy, dx))


Route = Waypoints | PlannedPath


def free_way(goal: Pose2D, points: DoubleArray, clearance: float) -> bool:
    """Whether no point is nearer than ``clearance`` to the straight way to a goal, all in ``base_link``.

    What is nearer than that to the robot itself is not in the way: it is beside it.
    """
    length = math.hypot(goal.x, goal.y)
    if length < 1e-6:
        return True
    c, s = goal.x / length, goal.y / length
    along, aside = c * points[:, 0] + s * points[:, 1], c * points[:, 1] - s * points[:, 0]
    return not bool(((along > clearance) & (along < length) & (np.abs(aside) < clearance)).any())


class Phase(Enum):
    """What is left to do at a route's end."""

    DRIVE = "drive"
    TURN = "turn"
    ARRIVED = "arrived"


class Arrival:
    """Whether a robot is at its goal; once there, it must be moved farther away to set off again.

    Args:
        tolerance: metres; nearer than this it is at the goal's place.
        hysteresis: metres beyond that it may be moved.
        heading_tolerance: radians; 0: the heading does not matter.
    """

    # A heading once reached may be off by so many tolerances.
    _HEADING_SLACK = 2.0

    def __init__(self, tolerance: float, hysteresis: float, heading_tolerance: float = 0.0) -> None:
        self._tolerance, self._hysteresis, self._heading = tolerance, hysteresis, heading_tolerance
        self.reset()

    def reset(self) -> None:
        """Another goal."""
        self._there = self._headed = False

    def judge(self, goal: Pose2D) -> Phase:
        """What is left to do; the goal is given in ``base_link``."""
        radius = self._tolerance + (self._hysteresis if self._there else 0.0)
        self._there = math.hypot(goal.x, goal.y) < radius
        if not self._there:
            self._headed = False
            return Phase.DRIVE
        allowed = self._heading * (self._HEADING_SLACK if self._headed else 1.0)
        self._headed = self._heading == 0.0 or abs(wrap_angle(goal.yaw)) <= allowed
        return Phase.ARRIVED if self._headed else Phase.TURN


def turn_rate(error: float, limit: float, deceleration: float) -> float:
    """Yaw rate, rad/s, that takes away a heading error, rad, and can be braked in time."""
    error = float(wrap_angle(error))
    # Half of what w^2 = 2 a e allows, and never so fast that one tick of 0.5 s overshoots.
    fastest = min(limit, 1.5 * abs(error), math.sqrt(deceleration * abs(error)))
    return math.copysign(fastest, error)


def turns_freely(footprint: Footprint, points: DoubleArray, margin: float = 0.02) -> bool:
    """Whether a robot can turn on the spot without touching any of ``(P, 2)`` points in ``base_link``."""
    if footprint.polygon is None:
        return True
    # A point within the inscribed circle is inside the robot already, and is its own part.
    distances = np.hypot(points[:, 0], points[:, 1])
    swept = (distances > footprint.inscribed_radius) & (distances < footprint.circumscribed_radius + margin)
    return not bool(swept.any())


def _distance(a: Pose2D, b: Pose2D) -> float:
    return math.hypot(b.x - a.x, b.y - a.y)


def _check(poses: DoubleArray) -> None:
    if len(poses) == 0:
        raise InvalidInput("there are no poses in it")
    broken = np.flatnonzero(~np.isfinite(poses).all(axis=1))
    if broken.size:
        raise InvalidInput(f"not finite: pose {broken[0]}, {tuple(map(float, poses[broken[0]]))}")
