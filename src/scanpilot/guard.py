"""The collision guard: from a raw scan and the footprint, slows or stops a command before contact.

Independent of the policy: it sees every point of the scan, not the policy's beams, and knows neither
goal nor network. It only ever makes a command smaller. What it answers for is what the lidar can see
and what stands still; see docs/safety.md.

How it decides. The command is followed in thought: the base keeps the command before for its actuation
delay, then ramps to this one and holds it for a control period, then brakes to a stop. If nothing comes
nearer to the footprint than the padding on the way, the next tick can still stop in time, whatever it
sees. The same command is also followed unbraked for ``time_before_collision``. Otherwise it is tried
with less forward speed and the same turn, then smaller as a whole, and if nothing helps it is a stop.
At the escape speed the robot may come nearer, and where something is nearer yet, it may do anything
that brings it no closer: one that is too close is not locked in.

Units: metres, radians, seconds; `base_link`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from scanpilot.robot import Footprint, Limits, RobotSpec
from scanpilot.types import ZERO_TWIST, BoolArray, DoubleArray, InvalidInput, Twist2D

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class GuardConfig:
    """How far the guard looks ahead. Where Nav2's collision monitor has the same thing, it has its name.

    Attributes:
        enabled: whether it acts at all.
        time_before_collision: seconds; a command is slowed until the arc it commands meets nothing for
            so long. Braking distance is kept in any case; 0 leaves it at that.
        simulation_time_step: seconds between two poses that are checked.
        min_points: points of the scan that must lie in the footprint to be taken for an obstacle.
        base_shift_correction: move the points by what the robot has driven since they were measured.
        footprint_padding: metres kept between the footprint and any point.
        escape_padding: metres kept at the escape speed.
        latency: seconds that a scan is old when it arrives, and a command takes on top of the robot's
            ``actuation_delay``.
        deceleration: m/s^2 that the base brakes with; None: the acceleration limit of the robot.
        escape_speed: m/s, of any part of the footprint, at which the robot may come nearer than the
            padding, and at most while something is.
    """

    enabled: bool = True
    time_before_collision: float = 0.4
    simulation_time_step: float = 0.1
    min_points: int = 1
    base_shift_correction: bool = True
    footprint_padding: float = 0.03
    escape_padding: float = 0.01
    latency: float = 0.0
    deceleration: float | None = None
    escape_speed: float = 0.1

    def __post_init__(self) -> None:
        for name in ("time_before_collision", "footprint_padding", "escape_padding", "latency"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InvalidInput(f"guard {name} is {getattr(self, name)}, expected 0 or more")
        for name in ("simulation_time_step", "escape_speed", "min_points"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"guard {name} is {getattr(self, name)}, expected more than 0")
        if self.deceleration is not None and not self.deceleration > 0.0:
            raise InvalidInput(f"guard deceleration is {self.deceleration} m/s^2, expected more than 0")


class Action(str, Enum):
    """What the guard did to a command."""

    NONE = "none"
    SLOWED = "slowed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Verdict:
    """What the guard made of a command.

    Attributes:
        twist: that may be sent.
        action: ``STOPPED`` where nothing of the linear speed is left.
        clearance: metres from the footprint to the nearest point now, below 0 inside; inf where no
            point is near enough to matter.
    """

    twist: Twist2D
    action: Action
    clearance: float


# Shares of a command that are tried, in this order.
_SHARES = np.linspace(0.9, 0.0, 10)
# Longest look ahead: what takes longer to stop is told to stop now.
_LONGEST = 5.0
# What rounding may add to a distance that stays as it is, metres.
_ROUNDING = 1e-6
_NEVER = 1e9


class Guard:
    """The guard of one robot; holds no state from one tick to the next.

    Args:
        config: how far it looks ahead.
        robot: its footprint, kinematics and actuation delay.
        limits: accelerations of the base, where they differ from the robot's.
    """

    def __init__(self, config: GuardConfig, robot: RobotSpec, limits: Limits | None = None) -> None:
        limits = limits or robot.limits
        self.config = config
        self._outline = _Outline(robot.footprint)
        self._delay = robot.actuation_delay + config.latency
        self._may_turn_alone = robot.kinematics != "car"
        self._ramp = np.minimum([limits.ax, limits.ay, limits.awz], _NEVER)
        linear = _NEVER if config.deceleration is None else config.deceleration
        self._brake = np.minimum(self._ramp, [linear, linear, _NEVER])

    def check(
        self,
        command: Twist2D,
        points: DoubleArray,
        *,
        measured: Twist2D,
        previous: Twist2D = ZERO_TWIST,
        age: float = 0.0,
        period: float,
    ) -> Verdict:
        """What may be sent of ``command``.

        Args:
            command: about to be sent.
            points: ``(P, 2)`` of the newest scan, in ``base_link`` as it was ``age`` seconds ago.
            measured: velocity of the base now.
            previous: the command before, in force until this one arrives.
            age: seconds by which the points lag behind; the robot is taken to have moved as ``measured``
                since. 0 where the caller has moved them, by odometry, to where they are now.
            period: seconds until the next command.
        """
        config = self.config
        if command == ZERO_TWIST:
            return Verdict(command, Action.NONE, math.inf)
        near = self._near(command, points, measured, previous, age, period)
        if len(near) < config.min_points:
            return Verdict(command, Action.NONE, math.inf)
        clearance = self._clearance(near)
        state = (np.array(measured), np.array(previous))
        wanted = np.array(command)
        still: DoubleArray | None = None
        if clearance >= config.footprint_padding:
            allowed = self._largest(wanted, near, state, period, config.footprint_padding)
            if allowed is not None and (allowed[:2].any() or not wanted[:2].any()):
                return Verdict(*self._judged(command, allowed), clearance)
            still = allowed
        # Slowly it may come nearer; and where it is nearer yet, anything is allowed but closer still.
        keep = min(config.escape_padding, clearance - _ROUNDING)
        slow = self._slow(wanted)
        if still is None:
            allowed = self._largest(slow, near, state, period, keep)
        else:
            allowed = self._largest_free(slow[None], near, state, period, keep)
            allowed = still if allowed is None else allowed
        if allowed is None:
            return Verdict(ZERO_TWIST, Action.STOPPED, clearance)
        return Verdict(*self._judged(command, allowed), clearance)

    def relevant(self, points: DoubleArray, speeds: DoubleArray, period: float) -> BoolArray:
        """``(N,)`` whether any of ``(N, P, 2)`` points can matter to robots of these ``(N,)`` speeds."""
        reach = self._outline.radius + self.config.footprint_padding + self._travel(speeds, period)
        return np.asarray((np.einsum("npk,npk->np", points, points) < (reach**2)[:, None]).any(axis=1))

    def _near(
        self,
        command: Twist2D,
        points: DoubleArray,
        measured: Twist2D,
        previous: Twist2D,
        age: float,
        period: float,
    ) -> DoubleArray:
        """The points that can be met at all, where they lie seen from the base now."""
        speed = max(math.hypot(t.vx, t.vy) for t in (command, measured, previous))
        shift = (age + self.config.latency) if self.config.base_shift_correction else 0.0
        travel = float(self._travel(np.array([speed]), period)[0])
        reach = self._outline.radius + self.config.footprint_padding + travel + speed * shift
        near: DoubleArray = points[(points * points).sum(axis=1) < reach * reach]
        if shift == 0.0 or not len(near):
            return near
        x, y, yaw = _arc(np.array(measured)[None], np.array([shift]))[0, 0]
        c, s = math.cos(yaw), math.sin(yaw)
        dx, dy = near[:, 0] - x, near[:, 1] - y
        return np.stack((c * dx + s * dy, c * dy - s * dx), axis=1)

    def _travel(self, speeds: DoubleArray, period: float) -> DoubleArray:
        """At most how far these speeds carry the base before it can stand still, metres."""
        held = speeds * max(self._delay + period, self.config.time_before_collision)
        # While the base still ramps up it is slower than what it ramps to.
        return np.asarray(np.minimum(held + speeds**2 / (2.0 * self._brake[:2].min()), speeds * _LONGEST))

    def _slow(self, command: DoubleArray) -> DoubleArray:
        """A command with which no part of the footprint is faster than the escape speed."""
        speed, turn = math.hypot(command[0], command[1]), abs(command[2]) * self._outline.lever
        allowed = self.config.escape_speed
        if speed + turn <= allowed:
            return command
        if turn >= allowed or not self._may_turn_alone:
            return np.asarray(command * (allowed / (speed + turn)))
        share = (allowed - turn) / speed
        return np.array([share * command[0], share * command[1], command[2]])

    def _smaller(self, wanted: DoubleArray) -> list[DoubleArray]:
        """Families of smaller commands, each from the largest to the smallest."""
        scaled = _SHARES[:, None] * wanted
        if not self._may_turn_alone or wanted[2] == 0.0:
            return [scaled]
        # Turning on while going slower leads away from what is ahead; the arc itself would end there.
        turning = scaled.copy()
        turning[:, 2] = wanted[2]
        return [turning, scaled]

    def _judged(self, command: Twist2D, allowed: DoubleArray) -> tuple[Twist2D, Action]:
        twist = Twist2D(*map(float, allowed))
        if twist == command:
            return command, Action.NONE
        stopped = twist.vx == 0.0 and twist.vy == 0.0
        return twist, Action.STOPPED if stopped else Action.SLOWED

    def _largest(
        self,
        wanted: DoubleArray,
        points: DoubleArray,
        state: tuple[DoubleArray, DoubleArray],
        period: float,
        keep: float,
    ) -> DoubleArray | None:
        """The largest command found, up to ``wanted``, that keeps this distance; None if none does."""
        for candidates in (wanted[None], *self._smaller(wanted)):
            allowed = self._largest_free(candidates, points, state, period, keep)
            if allowed is not None:
                return allowed
        return None

    def _largest_free(
        self,
        candidates: DoubleArray,
        points: DoubleArray,
        state: tuple[DoubleArray, DoubleArray],
        period: float,
        keep: float,
    ) -> DoubleArray | None:
        """The first of ``(S, 3)`` shrinking commands that comes nowhere nearer than ``keep`` to the points.

        Found by halving, as if whatever is smaller than a free command were free too; what is returned
        has been checked itself.
        """
        poses = self._braked(candidates, state, period)
        horizon, step = self.config.time_before_collision, self.config.simulation_time_step
        if horizon > 0.0:
            times = np.linspace(0.0, horizon, math.ceil(horizon / step) + 1)[1:]
            poses = np.concatenate((poses, _arc(candidates, times)), axis=1)

        def free(index: int) -> bool:
            close = self._outline.count_close(poses[index], points, keep)
            return bool((close < self.config.min_points).all())

        low, high = 0, len(candidates) - 1
        if not free(high):
            return None
        while low < high:
            middle = (low + high) // 2
            if free(middle):
                high = middle
            else:
                low = middle + 1
        return np.asarray(candidates[high])

    def _braked(
        self, candidates: DoubleArray, state: tuple[DoubleArray, DoubleArray], period: float
    ) -> DoubleArray:
        """``(S, K, 3)`` poses under each command until the base stands again."""
        measured, previous = state
        delay = self._delay
        started = _towards(measured, previous, self._ramp * delay)
        held = _towards(started, candidates, self._ramp * period)
        braking = float((np.abs(held) / self._brake).max())
        total = min(delay + period + braking, _LONGEST)
        count = math.ceil(total / self.config.simulation_time_step)
        step = total / count
        # In the middle of each step: exact for a steady ramp.
        t = (step * (np.arange(count) + 0.5))[None, :, None]
        before = _towards(measured, previous, self._ramp * np.clip(t, 0.0, delay))
        during = _towards(started, candidates[:, None], self._ramp * np.clip(t - delay, 0.0, period))
        after = _towards(held[:, None], 0.0, self._brake * np.maximum(t - delay - period, 0.0))
        twists = np.where(t < delay, before, np.where(t < delay + period, during, after))
        return _integrated(twists, step)

    def _clearance(self, points: DoubleArray) -> float:
        """Distance to the nearest point but ``min_points - 1``."""
        distances = self._outline.distances(points[:, 0], points[:, 1])
        which = self.config.min_points - 1
        return float(np.partition(distances, which)[which])


class _Outline:
    """Distances to a footprint.

    Attributes:
        radius: of the circle about base_link that holds it.
        lever: metres by which a turn on the spot moves its outermost part for each radian; 0 for a
            circle, which a turn does not move.
    """

    def __init__(self, footprint: Footprint) -> None:
        self.radius = footprint.circumscribed_radius
        self._inner = footprint.inscribed_radius
        self._circle = footprint.polygon is None
        self.lever = 0.0 if self._circle else self.radius
        if footprint.polygon is not None:
            corners = np.array(footprint.polygon)
            edges = np.roll(corners, -1, axis=0) - corners
            # Outward, for corners run counter-clockwise.
            normals = np.stack((edges[:, 1], -edges[:, 0]), axis=1)
            self._normals = normals / np.hypot(*normals.T)[:, None]
            self._offsets = np.einsum("ek,ek->e", self._normals, corners)

    def distances(self, x: DoubleArray, y: DoubleArray) -> DoubleArray:
        """``(P,)`` of points in base_link to the footprint; below 0 inside.

        Exact for a circle. For a polygon the largest distance to any edge's line: exact but off the
        corners, where it is too small, on the safe side.
        """
        if self._circle:
            return np.asarray(np.hypot(x, y) - self.radius)
        lines = self._normals[:, :1] * x + self._normals[:, 1:] * y - self._offsets[:, None]
        return np.asarray(lines.max(axis=0))

    def count_close(self, poses: DoubleArray, points: DoubleArray, keep: float) -> IntArray:
        """``(K,)`` how many of ``(P, 2)`` points are nearer than ``keep`` to the footprint at ``(K, 3)``."""
        # |p - c|^2 by one product of matrices: most pairs are settled by their distance alone.
        squares = (points * points).sum(axis=1) - 2.0 * (poses[:, :2] @ points.T)
        squares += (poses[:, :2] * poses[:, :2]).sum(axis=1)[:, None]
        sure = squares < max(0.0, self._inner + keep) ** 2
        counts: IntArray = np.count_nonzero(sure, axis=1)
        if self._circle:
            return counts
        pose, point = np.nonzero((squares < max(0.0, self.radius + keep) ** 2) & ~sure)
        dx, dy = points[point, 0] - poses[pose, 0], points[point, 1] - poses[pose, 1]
        c, s = np.cos(poses[:, 2])[pose], np.sin(poses[:, 2])[pose]
        close = self.distances(c * dx + s * dy, c * dy - s * dx) < keep
        return counts + np.bincount(pose[close], minlength=len(poses))


def _towards(start: DoubleArray, end: DoubleArray | float, reach: DoubleArray) -> DoubleArray:
    """``start`` moved to ``end`` by at most ``reach`` in each component."""
    return np.asarray(start + np.clip(end - start, -reach, reach))


def _integrated(twists: DoubleArray, step: float) -> DoubleArray:
    """``(S, K, 3)`` poses at the end of each step under ``(S, K, 3)`` velocities, from the origin."""
    turns = step * twists[:, :, 2]
    yaw = np.cumsum(turns, axis=1)
    heading = yaw - 0.5 * turns
    c, s = np.cos(heading), np.sin(heading)
    x = np.cumsum(step * (c * twists[:, :, 0] - s * twists[:, :, 1]), axis=1)
    y = np.cumsum(step * (s * twists[:, :, 0] + c * twists[:, :, 1]), axis=1)
    return np.stack((x, y, yaw), axis=2)


def _arc(twists: DoubleArray, times: DoubleArray) -> DoubleArray:
    """``(S, K, 3)`` poses after ``(K,)`` times of steady ``(S, 3)`` velocities, from the origin."""
    yaw = twists[:, 2, None] * times
    half = 0.5 * yaw
    # Chord of the arc: sin(x) / x is what numpy calls sinc, of x / pi.
    chord = np.sinc(half / math.pi) * times
    c, s = np.cos(half) * chord, np.sin(half) * chord
    vx, vy = twists[:, 0, None], twists[:, 1, None]
    return np.stack((c * vx - s * vy, s * vx + c * vy, yaw), axis=2)
