"""The values that every other room passes around.

Units and frames (REP-103, REP-105): metres, seconds, radians; ``base_link`` is
x forward, y left; angles are counter-clockwise positive. Anything else is
converted once, at the border where it enters (world files, ROS messages, bags).

This module holds plain containers and their validation. It holds no behaviour
that needs a robot, a simulator or a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class InvalidInput(ValueError):
    """Input that must not be acted on; the message names what was wrong and what was expected."""


class Pose2D(NamedTuple):
    """A planar pose: ``x``, ``y`` in metres, ``yaw`` in radians, in a frame the context names."""

    x: float
    y: float
    yaw: float


class Twist2D(NamedTuple):
    """A planar velocity in ``base_link``: ``vx``, ``vy`` in m/s, ``wz`` in rad/s."""

    vx: float
    vy: float
    wz: float

    def is_finite(self) -> bool:
        """Whether all three components are finite numbers."""
        return all(math.isfinite(v) for v in self)


ZERO_TWIST = Twist2D(0.0, 0.0, 0.0)
ORIGIN = Pose2D(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class LaserScan:
    """One planar scan as its sensor reports it, in the sensor's own frame.

    Attributes:
        ranges: (m,) float32, metres, in the order of the beams. May hold inf, nan or
            codes below ``range_min``: `observation.py` alone decides what those mean.
        angle_min: direction of the first beam, radians.
        angle_increment: radians between beams; negative for a clockwise scan.
        range_min: metres; readings below it are not measurements.
        range_max: metres; readings at or beyond it are "no return".
        stamp: seconds on the clock of the context.
        time_increment: seconds from one beam to the next; 0 where all were taken at once.
        repairs: what of the header had to be mended, in words.
    """

    ranges: FloatArray
    angle_min: float
    angle_increment: float
    range_min: float
    range_max: float
    stamp: float = 0.0
    time_increment: float = 0.0
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse headers that describe no possible sensor.

        Raises:
            InvalidInput: a header field is not finite, the increment is zero for more than
                one beam, the range limits are not ordered, or the beams span over a turn.
        """
        if self.ranges.ndim != 1 or self.ranges.size == 0:
            raise InvalidInput(
                f"scan has ranges of shape {self.ranges.shape}, expected (beams,) with beams >= 1"
            )
        header = {
            "angle_min": self.angle_min,
            "angle_increment": self.angle_increment,
            "range_min": self.range_min,
            "range_max": self.range_max,
        }
        for name, value in header.items():
            if not math.isfinite(value):
                raise InvalidInput(f"scan header {name} is {value}, expected a finite number")
        if self.ranges.size > 1 and self.angle_increment == 0.0:
            raise InvalidInput(f"scan header angle_increment is 0 for {self.ranges.size} beams")
        if not 0.0 <= self.range_min < self.range_max:
            raise InvalidInput(
                f"scan header range_min {self.range_min} and range_max {self.range_max}: "
                "expected 0 <= range_min < range_max"
            )
        span = abs(self.angle_increment) * (self.ranges.size - 1)
        # One increment of slack: some drivers repeat the first direction as the last beam.
        if span > 2.0 * math.pi + 1.5 * abs(self.angle_increment):
            raise InvalidInput(
                f"scan header angle_increment {self.angle_increment} with {self.ranges.size} beams "
                f"spans {span:.3f} rad, expected at most one turn (are they degrees?)"
            )

    @property
    def angles(self) -> DoubleArray:
        """(m,) float64 direction of each beam in the sensor's frame, radians."""
        return self.angle_min + self.angle_increment * np.arange(self.ranges.size, dtype=np.float64)


@dataclass(frozen=True)
class Odometry:
    """Where odometry says the robot is and how it moves.

    Attributes:
        pose: in the odometry frame.
        twist: in ``base_link`` (REP-105's child frame).
        stamp: seconds on the clock of the context.
    """

    pose: Pose2D
    twist: Twist2D
    stamp: float = 0.0


@dataclass(frozen=True)
class Triplet:
    """What the policy sees: state, goal and speed. One robot, or a batch with N in front.

    Attributes:
        scan: float32 ``(k, n)`` or ``(N, k, n)``: k stacked frames, newest last, n beams
            counter-clockwise over the policy's field of view in ``base_link``, metres,
            clipped to the policy's ``[range_min, range_max]``; no return = range_max.
        goal: float32 ``(3,)`` or ``(N, 3)``: goal pose x, y, yaw in ``base_link``.
        speed: float32 ``(3,)`` or ``(N, 3)``: vx, vy, wz in ``base_link``, m/s and rad/s.
        guidance: float32 ``(3,)`` or ``(N, 3)``: what `scanpilot.guidance` makes of what the robot has
            seen, for a policy that wants it; without it the policy asks the scan alone.
    """

    scan: FloatArray
    goal: FloatArray
    speed: FloatArray
    guidance: FloatArray | None = None

    def __len__(self) -> int:
        """Number of robots in a batch."""
        if self.scan.ndim != 3:
            raise TypeError("a single triplet has no length")
        return int(self.scan.shape[0])

    def batched(self) -> Triplet:
        """This triplet with a batch dimension in front; a batch is returned as it is."""
        if self.scan.ndim == 3:
            return self
        return self._each(lambda values: values[None])

    def __getitem__(self, index: int | slice | NDArray[np.generic]) -> Triplet:
        """The triplets of some robots of a batch."""
        return self._each(lambda values: values[index])

    def _each(self, change: Callable[[FloatArray], FloatArray]) -> Triplet:
        guidance = None if self.guidance is None else change(self.guidance)
        return Triplet(change(self.scan), change(self.goal), change(self.speed), guidance)

    def is_finite(self) -> bool:
        """Whether every number in it is finite."""
        return bool(
            np.isfinite(self.scan).all() and np.isfinite(self.goal).all() and np.isfinite(self.speed).all()
        )


@dataclass(frozen=True)
class StepResult:
    """What happened to N robots in one control period.

    Attributes:
        triplets: the true successors: for a robot whose episode ended, the last
            observation of that episode, not the first of the next one.
        actions: float32 ``(N, 3)`` the executed actions, in action units.
        rewards: float32 ``(N,)``.
        terminated: bool ``(N,)`` the episode ended by goal or collision: no bootstrap.
        truncated: bool ``(N,)`` the episode was cut by time: bootstrap.
        reached: bool ``(N,)`` ended at the goal.
        collided: bool ``(N,)`` ended in contact.
        info: named per-robot arrays ``(N, ...)`` for metrics (clearance, poses, ...).
    """

    triplets: Triplet
    actions: FloatArray
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    reached: BoolArray
    collided: BoolArray
    info: dict[str, NDArray[np.generic]] = field(default_factory=dict)
